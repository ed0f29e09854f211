"""What visitors say: microphones streamed block by block, files, and their codes.

Blocks of 16-bit PCM or whole files go in; out come *recordings*, which the service understands from
the moment they are complete. A request names an *utterance*: one recording or several, joined.
Nothing is written to disk, and all of it is bounded: bytes, seconds, files and waiting work.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioLongError,
    BusyError,
    MissingPackageError,
    ParameterError,
)
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Speech
from moss_engine.api.service import SpeechService, hear
from moss_engine.audio.file import MIN_S, SILENCE_PEAK, read_audio
from moss_engine.audio.follower import Heard
from moss_engine.audio.hearing import Hear, Hearing, Paused, TranscribePartial, Understanding
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import RATE_HZ, Change, interrupts, is_murmur
from moss_engine.audio.voice_activity import Detector, has_voice, load_detector
from moss_engine.ui.audio_in.recordings import JOIN, Recordings

LOOK_S = 0.35  # of new speech, whose words are shown
SHOWN_S = 0.15  # of silence
MAX_FILES, MAX_FILES_OF_VISITOR = 8, 3  # that are being sent and read


@dataclass(frozen=True)
class BlockResult:
    """What a block brought about: whether somebody is talking, the utterance of the recordings that
    it completed, and `text`, what was understood so far. The last word of what it completed ended
    `silent_s` before its end. `pauses`: whoever talks is silent, and may be done. While the page
    answers, `sure` says that somebody means to interrupt it."""

    talking: bool = False
    utterance: str = ""
    seconds: float = 0.0
    text: str = ""
    sure: bool = True
    silent_s: float = 0.0
    pauses: bool = False


class AudioIngest:
    """`hear`, `transcribe_partial` and `by_words` are as for a `Hearing`. `detector` is None where
    hands-free talking is not installed. Used on one event loop."""

    def __init__(
        self,
        hear: Hear,
        detector: Detector | None,
        *,
        max_s: float,
        transcribe_partial: TranscribePartial | None = None,
        by_words: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.max_s = max_s
        self.by_words = by_words
        self.transcribe_partial = transcribe_partial
        self.detector = detector
        self.recordings = Recordings(hear, clock)
        self.judge = Judge()
        self._files: Counter[str] = Counter()  # by visitor

    @contextmanager
    def receiving(self, visitor: str) -> Iterator[None]:
        """While a file is being sent and read, which may take its time and much memory; raises
        BusyError where many are."""
        if self._files.total() >= MAX_FILES or self._files[visitor] >= MAX_FILES_OF_VISITOR:
            raise BusyError("Several files are being read already; send it again in a moment.")
        self._files[visitor] += 1
        try:
            yield
        finally:
            self._files[visitor] -= 1
            self._files += Counter()  # forget those who send nothing

    async def read_file(self, visitor: str, data: bytes) -> BlockResult:
        """Take a whole audio file; raises the errors of `read_audio`, or BusyError."""
        pcm, rate_hz, wave = await asyncio.to_thread(_read, data, self.max_s)
        recording = self.recordings.keep(pcm, rate_hz, wave, visitor=visitor)
        return BlockResult(False, recording.key, recording.seconds)


class MicSession:
    """One microphone of a visitor, recording after recording. `paused` is as for a `Hearing`."""

    def __init__(self, ingest: AudioIngest, visitor: str = "", paused: Paused = lambda said: None):
        self._ingest = ingest
        self._visitor = visitor
        self._saying = ""  # the words of the answer that were last said
        self._hearing = Hearing(
            ingest.recordings.hear,
            ingest.transcribe_partial,
            paused,
            by_words=ingest.by_words,
            max_s=ingest.max_s,
            look_s=LOOK_S,
        )

    def begin(self, *, hands_free: bool) -> None:
        """A new recording; what was not completed is forgotten."""
        ingest = self._ingest
        if hands_free and ingest.detector is None:
            raise ParameterError(
                "Hands-free talking is not installed here; press the button to talk."
            )
        self._hearing.use(ingest.detector if hands_free else None, ingest.judge)

    async def hear(
        self,
        body: bytes,
        *,
        answering: bool,
        end: bool,
        saying: str = "",
        played: bytes | None = None,
    ) -> BlockResult:
        """Take the next int16 PCM at 16 kHz; `end` completes the recording. `played`, as long, is
        what the loudspeaker was given meanwhile, where that is known.

        Hands-free, turns are found and completed by themselves, and `end` ends the one that goes
        on; `answering` says that the page is talking meanwhile, and `saying` its last words. Raises
        an InputError where nothing was said.
        """
        if len(body) % 2:
            raise ParameterError("A block of the recording was lost; record it again.")
        self._saying = saying or self._saying
        pcm = np.frombuffer(body, "<i2").astype(np.int16)
        out = None if played is None else np.frombuffer(played, "<i2").astype(np.int16)
        found = await self._hearing.take(pcm, answering=answering, played=out)
        if not self._hearing.finds:
            return self._record(end)
        return await self._follow(found + (self._hearing.finish() if end else []))

    def _record(self, end: bool) -> BlockResult:
        """Push to talk: everything counts, from the first block to the last."""
        hearing, max_s = self._hearing, self._ingest.max_s
        if hearing.follower.held_s > max_s:
            hearing.use(None)
            raise AudioLongError(f"The recording is longer than {max_s:g} s; say it in parts.")
        if not end:
            hearing.look()
            return BlockResult(True, seconds=hearing.follower.held_s, text=hearing.turn.text or "")
        whole = hearing.follower.sound
        hearing.use(None)
        if len(whole) < MIN_S * RATE_HZ:
            raise AudioEmptyError("That was too short to hold a word; talk, then press again.")
        if np.abs(whole.astype(np.int32)).max() < SILENCE_PEAK * 32768:
            raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
        return self._keep(whole)

    async def _follow(self, found: list[tuple[Heard, Understanding]]) -> BlockResult:
        """Hands-free: the turns that a block completes, or the end of the microphone."""
        hearing, follower = self._hearing, self._hearing.follower
        turns = [(heard, known) for heard, known in found if heard.change is Change.ENDED]
        kept = [one for turn in turns if (one := await self._keep_turn(*turn))]
        if turns and not kept:
            hearing.paused(None)
        hearing.look()
        sure = not (hearing.transcribe_partial and follower.interrupts)
        last = turns[-1][0] if turns else None
        return BlockResult(
            follower.talking,
            JOIN.join(heard.utterance for heard in kept),
            sum(heard.seconds for heard in kept) or follower.length_s,
            hearing.turn.text or "",
            sure or hearing.means_it(self._saying),
            last.silent_s + (follower.num_taken - last.at) / RATE_HZ if last else 0.0,
            follower.talking and follower.silent_s >= SHOWN_S,
        )

    async def _keep_turn(self, turn: Heard, understood: Understanding) -> BlockResult | None:
        """A turn that is over; None where it held no words, but a cough or a murmur."""
        assert turn.pcm is not None, "a turn that ended has its sound"
        words, by_words = await understood.words(turn.num_spoken), self._ingest.by_words
        if words is not None and (by_words or words.sure):
            # Another language than the recogniser's is none to a checkpoint that hears by itself.
            if is_murmur(words.text):
                return None
            if turn.interrupts and not interrupts(words.text, turn.spoken_s, self._saying):
                return None
        return self._keep(turn.pcm, await understood.speech(turn.num_spoken))

    def _keep(self, pcm: np.ndarray, known: Speech | None = None) -> BlockResult:
        """What is not `known` is heard once more, or refused."""
        recordings = self._ingest.recordings
        recording = recordings.keep(pcm, RATE_HZ, known=known, visitor=self._visitor)
        return BlockResult(False, recording.key, recording.seconds)


def _read(data: bytes, max_s: float) -> tuple[np.ndarray, int, np.ndarray]:
    """An audio file as int16 [n], its sample rate, and float32 [n]."""
    wave, rate_hz = read_audio(data, max_s)
    return to_pcm16(np.clip(wave, -1.0, 1.0)), rate_hz, wave


def open_ingest(service: SpeechService, info: ServiceInfo) -> tuple[AudioIngest, str | None]:
    """It, and the sentence that says why turns have to be ended by hand, or None."""
    detector, no_hands_free = load_hands_free()
    ingest = AudioIngest(
        functools.partial(hear_voice, service, None if info.encodes else detector),
        detector,
        max_s=info.max_speech_s,
        transcribe_partial=service.transcribe_partial if info.recogniser is not None else None,
        by_words=not info.encodes,
    )
    return ingest, no_hands_free


async def hear_voice(
    service: SpeechService, detector: Detector | None, wave: np.ndarray, sample_rate_hz: int
) -> Speech:
    """As `hear`, but for noise and music, in which a recogniser finds words that nobody said:
    raises AudioEmptyError where the detector finds no voice."""
    if detector is not None and not await asyncio.to_thread(
        has_voice, detector, wave, sample_rate_hz
    ):
        raise AudioEmptyError("There is no voice in this recording; speak close to the microphone.")
    return await hear(service, wave, sample_rate_hz)


def load_hands_free() -> tuple[Detector | None, str | None]:
    """What finds the end of a turn, or the sentence that says why it has to be ended by hand."""
    try:
        return load_detector(), None
    except MissingPackageError as error:
        return None, str(error)
