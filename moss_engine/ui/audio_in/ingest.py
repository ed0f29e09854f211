"""What visitors say: microphones streamed block by block, files, and their codes.

Blocks of 16-bit PCM or whole files go in; out come *recordings*, which the service understands from
the moment they are complete. A request names an *utterance*: one recording or several, joined.
Nothing is written to disk, and all of it is bounded: microphones, bytes, seconds and waiting work.
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
    MossError,
    ParameterError,
)
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Speech
from moss_engine.api.service import SpeechService, hear
from moss_engine.audio.file import MIN_S, SILENCE_PEAK, read_audio
from moss_engine.audio.follower import Ear, Follower, Heard
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import RATE_HZ, Change, interrupts, is_murmur
from moss_engine.audio.voice_activity import Detector, has_voice, load_detector
from moss_engine.ui.audio_in.partial import Partial, TranscribePartial
from moss_engine.ui.audio_in.recordings import JOIN, Hear, Recordings, Utterance

Paused = Callable[[Speech | None], None]
SHOWN_S = 0.15  # of silence
MAX_MICROPHONES = 64
MAX_OF_VISITOR = 16  # whole offices are one address
IN_USE_S = 5.0  # a microphone that sent something so recently is not closed for another
MAX_READING = 4  # files decoded at a time
MAX_RECEIVING, MAX_RECEIVING_OF_VISITOR = 8, 3  # files that are being sent
READING = "Several files are being read already; send it again in a moment."


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
    """`hear` is `api.service.hear` of the service, and `transcribe_partial` the service's own where
    a recogniser listens; with `by_words` that is all there is to hear. `detector` is None where
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
        self.clock = clock
        self._microphones: list[MicSession] = []
        self._num_reading = 0
        self._receiving: Counter[str] = Counter()  # files, by visitor

    def open(self, visitor: str = "", paused: Paused | None = None) -> MicSession:
        """A microphone, until it is closed. Where there are too many, the visitor who has most
        loses one that is not in use. Raises BusyError where all are."""
        self._make_room(visitor)
        self._microphones.append(MicSession(self, visitor, paused))
        return self._microphones[-1]

    def close(self, microphone: MicSession) -> None:
        microphone.is_open = False
        if microphone in self._microphones:
            self._microphones.remove(microphone)

    def _make_room(self, visitor: str) -> None:
        """For one more microphone of a visitor; raises BusyError where there is none."""
        count = Counter(one.visitor for one in self._microphones)
        most = max(count, key=lambda name: (count[name], name == visitor), default=visitor)
        if count[visitor] >= MAX_OF_VISITOR:
            most = visitor
        elif len(self._microphones) < MAX_MICROPHONES:
            return
        unused_s = self.clock() - IN_USE_S
        unused = [
            one for one in self._microphones if one.visitor == most and one.used_s <= unused_s
        ]
        if not unused:
            raise BusyError("All microphones of this page are in use; try again in a moment.")
        self.close(min(unused, key=lambda one: one.used_s))

    @contextmanager
    def receiving(self, visitor: str) -> Iterator[None]:
        """While a file is being sent, which may take its time and much memory; raises BusyError
        where many are."""
        many = self._receiving.total() >= MAX_RECEIVING
        if many or self._receiving[visitor] >= MAX_RECEIVING_OF_VISITOR:
            raise BusyError(READING)
        self._receiving[visitor] += 1
        try:
            yield
        finally:
            self._receiving[visitor] -= 1
            self._receiving += Counter()  # forget those who send nothing

    async def read_file(self, visitor: str, data: bytes) -> BlockResult:
        """Take a whole audio file; raises the errors of `read_audio`, or BusyError."""
        if self._num_reading >= MAX_READING:
            raise BusyError(READING)
        self._num_reading += 1
        try:
            pcm, rate_hz, wave = await asyncio.to_thread(_read, data, self.max_s)
        finally:
            self._num_reading -= 1
        recording = self.recordings.keep(pcm, rate_hz, wave, visitor=visitor)
        return BlockResult(False, recording.key, recording.seconds)

    async def said(self, value: str) -> Utterance:
        """As `Recordings.said`."""
        return await self.recordings.said(value)


class MicSession:
    """One microphone of a visitor, recording after recording. `paused` is told what was said so far
    when whoever talks hands-free pauses, once that is understood, and None when she goes on."""

    def __init__(self, ingest: AudioIngest, visitor: str, paused: Paused | None = None):
        self.visitor = visitor
        self.used_s = ingest.clock()
        self.is_open = True
        self._ingest = ingest
        find = ingest.transcribe_partial
        self._partial = Partial(find, self._look_at_pause) if find else None
        self._paused = paused
        self._pause: Heard | None = None
        self._known: tuple[int, asyncio.Task[Speech]] | None = None  # up to a pause, in codes
        self._follower = Follower(None, ingest.max_s)
        self._ear: Ear | None = None  # where turns are found
        self._saying = ""  # the words of the answer that were last said

    def begin(self, *, hands_free: bool) -> None:
        """A new recording; what was not completed is forgotten."""
        ingest = self._ingest
        if hands_free and ingest.detector is None:
            raise ParameterError(
                "Hands-free talking is not installed here; press the button to talk."
            )
        detector = ingest.detector if hands_free else None
        self._follower = Follower(detector.open() if detector else None, ingest.max_s)
        self._ear = Ear(self._follower, ingest.judge, self._understood) if detector else None
        self._forget_pause()
        if self._partial is not None:
            self._partial.begin()

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
        if not self.is_open:
            raise ParameterError("This microphone was closed; start it again.")
        if len(body) % 2:
            raise ParameterError("A block of the recording was lost; record it again.")
        self.used_s = self._ingest.clock()
        self._saying = saying or self._saying
        pcm = np.frombuffer(body, "<i2").astype(np.int16)
        if self._ear is None:
            return self._record(pcm, end)
        out = None if played is None else np.frombuffer(played, "<i2").astype(np.int16)
        found = await self._ear.hear(pcm, answering=answering, played=out)
        found += self._ear.follower.finish() if end else []
        return await self._follow(self._ear, found)

    def _record(self, pcm: np.ndarray, end: bool) -> BlockResult:
        """Push to talk: everything counts, from the first block to the last."""
        follower, max_s = self._follower, self._ingest.max_s
        follower.take(pcm, answering=False)
        if follower.held_s > max_s:
            self.begin(hands_free=False)
            raise AudioLongError(f"The recording is longer than {max_s:g} s; say it in parts.")
        if not end:
            if self._partial is not None:
                self._partial.look(follower)
            text = self._partial.text if self._partial else ""
            return BlockResult(True, seconds=follower.held_s, text=text)
        whole = follower.sound
        self.begin(hands_free=False)
        if len(whole) < MIN_S * RATE_HZ:
            raise AudioEmptyError("That was too short to hold a word; talk, then press again.")
        if np.abs(whole.astype(np.int32)).max() < SILENCE_PEAK * 32768:
            raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
        return self._keep(whole)

    async def _follow(self, ear: Ear, found: list[Heard]) -> BlockResult:
        """Hands-free: the turns that a block completes, or the end of the microphone."""
        follower, partial = ear.follower, self._partial
        for heard in found:
            if heard.change is Change.PAUSED:
                self._pause = heard
            elif heard.change is Change.WENT_ON:
                self._forget_pause()
        turns = [heard for heard in found if heard.change is Change.ENDED]
        kept = [one for turn in turns if (one := await self._keep_turn(turn, turns))]
        if turns:
            self._pause = self._known = None
            if not kept:
                self._tell_pause(None)
        if partial is not None and (turns or not follower.talking):
            partial.begin()
        elif partial is not None:
            partial.look(follower)
        self._look_at_pause()
        sure, text = True, partial.text if partial is not None else ""
        if partial is not None and follower.interrupts:
            sure = ear.means_it(text, follower.spoken_s, self._saying)
        behind_s = (follower.num_taken - turns[-1].at) / RATE_HZ if turns else 0.0
        return BlockResult(
            follower.talking,
            JOIN.join(heard.utterance for heard in kept),
            sum(heard.seconds for heard in kept) or follower.length_s,
            text,
            sure,
            turns[-1].silent_s + behind_s if turns else 0.0,
            follower.talking and follower.silent_s >= SHOWN_S,
        )

    def _understood(self, num_spoken: int) -> tuple[bool, str | None]:
        partial = self._partial
        return (True, None) if partial is None else (partial.covers(num_spoken), partial.text)

    def _look_at_pause(self) -> None:
        """Whoever talks may pause: what was said is told once it is understood."""
        pause, partial = self._pause, self._partial
        if pause is None or pause.pcm is None or self._paused is None:
            return
        if not self._ingest.by_words:
            wave = pause.pcm.astype(np.float32) / 32768
            task = asyncio.ensure_future(self._ingest.recordings.hear(wave, RATE_HZ))
            self._pause, self._known = None, (pause.num_spoken, task)
            task.add_done_callback(self._heard_codes)
        elif partial is not None and partial.covers(pause.num_spoken):
            self._pause, found = None, partial.transcript
            if found is not None and found.sure and not is_murmur(found.text):
                self._tell_pause(Speech((), found))

    def _heard_codes(self, task: asyncio.Task[Speech]) -> None:
        mine = self._known is not None and self._known[1] is task
        if not task.cancelled() and task.exception() is None and mine:
            self._tell_pause(task.result())

    def _tell_pause(self, said: Speech | None) -> None:
        if self._paused is not None:
            self._paused(said)

    def _forget_pause(self) -> None:
        self._pause = self._known = None
        self._tell_pause(None)

    async def _heard_before(self, turn: Heard) -> Speech | None:
        """What was understood of a turn as it paused, where nothing followed."""
        known = self._known
        if known is None or known[0] != turn.num_spoken:
            return None
        try:
            return await known[1]
        except MossError:
            return None

    async def _keep_turn(self, turn: Heard, turns: list[Heard]) -> BlockResult | None:
        """A turn that is over; None where it held no words, but a cough or a murmur."""
        assert turn.pcm is not None, "a turn that ended has its sound"
        known, by_words = None, self._ingest.by_words
        if self._partial is not None and turn is turns[0]:
            known = await self._partial.settled(turn.num_spoken)
        if known is not None and not by_words and not known.sure:
            known = None  # another language than the recogniser's is none to the checkpoint
        if known is not None and is_murmur(known.text):
            return None
        said, saying = turn.spoken_s, self._saying
        if known is not None and turn.interrupts and not interrupts(known.text, said, saying):
            return None
        if known is not None and known.sure and by_words:
            return self._keep(turn.pcm, Speech((), known))
        # What is not known is heard once more, or refused.
        return self._keep(turn.pcm, await self._heard_before(turn) if turn is turns[0] else None)

    def _keep(self, pcm: np.ndarray, known: Speech | None = None) -> BlockResult:
        recordings = self._ingest.recordings
        recording = recordings.keep(pcm, RATE_HZ, known=known, visitor=self.visitor)
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
