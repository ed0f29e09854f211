"""What visitors say: microphones streamed block by block, files, and their codes.

A visitor opens a *session*, whose random key is the right to use it. Blocks of 16-bit PCM or whole
files go in; out come *recordings*, which the service understands from the moment they are
complete. A request names an *utterance*: one recording or several, joined. Nothing is written to
disk, and all of it is bounded: sessions, bytes, seconds and waiting work.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.turn_judge import Judge
from moss_engine.audio.turn_taking import (
    END_S,
    LOOK_S,
    PAUSE_MURMUR_S,
    RATE_HZ,
    interrupts,
    is_echo,
    is_murmur,
)
from moss_engine.audio.voice_activity import Detector, has_voice, load_detector
from moss_engine.ui.audio_in.follower import Follower, SpokenTurn
from moss_engine.ui.audio_in.partial import Partial, TranscribePartial
from moss_engine.ui.audio_in.recordings import JOIN, Hear, Recordings, Utterance

MAX_SESSIONS = 64
MAX_OF_VISITOR = 16  # whole offices are one address
SESSION_IDLE_S = 120.0
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


@dataclass(eq=False)
class Pause:
    """Of a turn, behind so many samples of speech; `melody` is how the judge finds they ended."""

    num_spoken: int
    melody: asyncio.Task[float | None]


@dataclass(eq=False)
class MicSession:
    """One microphone. `frames` [FRAME_SAMPLES] are those of the recording, or of the moment before
    it may begin; `follower` finds the turns where that is asked for; `visitor` speaks. `saying`
    are the words of the answer that were last said."""

    used_s: float
    visitor: str = ""
    partial: Partial | None = None
    follower: Follower | None = None
    seq: int = -1
    saying: str = ""
    frames: list[np.ndarray] = field(default_factory=list)
    last: BlockResult = BlockResult()
    busy: bool = False
    pause: Pause | None = None

    def begin(self, follower: Follower | None) -> None:
        self.follower, self.frames, self.pause = follower, [], None
        if self.partial is not None:
            self.partial.begin()


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
        self._transcribe_partial = transcribe_partial
        self._by_words = by_words
        self._recordings = Recordings(hear, clock)
        self._detector = detector
        self._judge = Judge()
        self._clock = clock
        self._sessions: dict[str, MicSession] = {}
        self._num_reading = 0
        self._receiving: Counter[str] = Counter()  # files, by visitor

    def open(self, visitor: str = "") -> str:
        """A new session, which is closed when it was not used for SESSION_IDLE_S. Where there are
        too many, the visitor who has most loses one that is not in use. Raises BusyError where all
        are."""
        self._close_unused()
        self._make_room(visitor)
        key = secrets.token_urlsafe(16)
        partial = Partial(self._transcribe_partial) if self._transcribe_partial else None
        self._sessions[key] = MicSession(self._clock(), visitor, partial)
        asyncio.get_running_loop().call_later(SESSION_IDLE_S + 1.0, self._close_unused)
        return key

    def _close_unused(self) -> None:
        now_s = self._clock()
        for key, session in list(self._sessions.items()):
            if now_s - session.used_s >= SESSION_IDLE_S:
                del self._sessions[key]

    def _make_room(self, visitor: str) -> None:
        """For one more session of a visitor; raises BusyError where there is none."""
        count = Counter(session.visitor for session in self._sessions.values())
        most = max(count, key=lambda name: (count[name], name == visitor), default=visitor)
        if count[visitor] >= MAX_OF_VISITOR:
            most = visitor
        elif len(self._sessions) < MAX_SESSIONS:
            return
        unused_s = self._clock() - IN_USE_S
        unused = [
            (session.used_s, key)
            for key, session in self._sessions.items()
            if session.visitor == most and session.used_s <= unused_s
        ]
        if not unused:
            raise BusyError("All microphones of this page are in use; try again in a moment.")
        del self._sessions[min(unused)[1]]

    def knows(self, session: str) -> bool:
        return session in self._sessions

    async def hear(
        self,
        key: str,
        seq: int,
        body: bytes,
        *,
        hands_free: bool,
        answering: bool,
        end: bool,
        saying: str = "",
    ) -> BlockResult:
        """Take the next block of int16 PCM at 16 kHz; the one with `seq` 0 begins a recording,
        `end` completes it.

        A block that is sent again gets the same answer. Hands-free, turns are found and completed
        by themselves, and `end` ends the one that goes on; `answering` says that the page is
        talking meanwhile, and `saying` its last words. Raises an InputError where nothing was
        said.
        """
        session = self._use(key)
        if seq == session.seq and seq > 0:
            return session.last
        if session.busy or seq not in (0, session.seq + 1) or len(body) % 2:
            raise ParameterError("A block of the recording was lost; record it again.")
        if hands_free and self._detector is None:
            raise ParameterError(
                "Hands-free talking is not installed here; press the button to talk."
            )
        if seq == 0:
            detector = self._detector if hands_free else None
            session.begin(Follower(detector.open(), self.max_s) if detector else None)
        session.seq, session.busy = seq, True
        session.saying = saying or session.saying
        try:
            pcm = np.frombuffer(body, "<i2").astype(np.int16)
            if session.follower is None:
                session.last = self._record(session, pcm, end)
            else:
                session.last = await self._follow(session, session.follower, pcm, answering, end)
        finally:
            session.busy = False
        return session.last

    @contextmanager
    def receiving(self, key: str) -> Iterator[None]:
        """While a file is being sent, which may take its time and much memory; raises BusyError
        where many are."""
        visitor = self._use(key).visitor
        many = self._receiving.total() >= MAX_RECEIVING
        if many or self._receiving[visitor] >= MAX_RECEIVING_OF_VISITOR:
            raise BusyError(READING)
        self._receiving[visitor] += 1
        try:
            yield
        finally:
            self._receiving[visitor] -= 1
            self._receiving += Counter()  # forget those who send nothing

    async def read_file(self, key: str, data: bytes) -> BlockResult:
        """Take a whole audio file; raises the errors of `read_audio`, or BusyError."""
        session = self._use(key)
        if self._num_reading >= MAX_READING:
            raise BusyError(READING)
        self._num_reading += 1
        try:
            read = await asyncio.to_thread(_read, data, self.max_s)
            return self._keep(session, *read)
        finally:
            self._num_reading -= 1

    async def said(self, value: str) -> Utterance:
        """As `Recordings.said`."""
        return await self._recordings.said(value)

    def _use(self, key: str) -> MicSession:
        session = self._sessions.get(key)
        if session is None:
            raise ParameterError("This microphone was closed; start it again.")
        session.used_s = self._clock()
        return session

    def _record(self, session: MicSession, pcm: np.ndarray, end: bool) -> BlockResult:
        """Push to talk: everything counts, from the first block to the last."""
        session.frames.append(pcm)
        num_samples = sum(map(len, session.frames))
        if num_samples > self.max_s * RATE_HZ:
            session.begin(None)
            raise AudioLongError(f"The recording is longer than {self.max_s:g} s; say it in parts.")
        if not end:
            if session.partial is not None:
                session.partial.look(session.frames, num_samples, 0.0)
            text = session.partial.text if session.partial else ""
            return BlockResult(True, seconds=num_samples / RATE_HZ, text=text)
        whole = np.concatenate(session.frames)
        session.begin(None)
        if len(whole) < MIN_S * RATE_HZ:
            raise AudioEmptyError("That was too short to hold a word; talk, then press again.")
        if np.abs(whole.astype(np.int32)).max() < SILENCE_PEAK * 32768:
            raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
        return self._keep(session, whole, RATE_HZ)

    async def _follow(
        self, session: MicSession, follower: Follower, pcm: np.ndarray, answering: bool, end: bool
    ) -> BlockResult:
        """Hands-free: the turns that a block completes, or the end of the microphone."""
        partial = session.partial
        follower.end_s = self._end_s(session, follower)
        turns = await asyncio.to_thread(follower.take, pcm, answering)
        turns += follower.finish() if end else []
        kept = [found for turn in turns if (found := await self._keep_turn(session, turn, turns))]
        if partial is not None and (turns or not follower.talking):
            partial.begin()
        elif partial is not None:
            partial.look(follower.frames, follower.num_spoken, follower.silent_s)
        self._listen_to_the_melody(session, follower)
        sure, text = True, partial.text if partial is not None else ""
        if partial is not None and follower.interrupts:
            sure = interrupts(text, follower.spoken_s, session.saying)
            if is_echo(text, session.saying):
                follower.was_echo()
        return BlockResult(
            follower.talking,
            JOIN.join(heard.utterance for heard in kept),
            sum(heard.seconds for heard in kept) or follower.length_s,
            text,
            sure,
            turns[-1].silent_s if turns else 0.0,
            follower.talking and follower.silent_s >= LOOK_S,
        )

    def _end_s(self, session: MicSession, follower: Follower) -> float:
        """The silence that ends the turn that goes on: the usual one until its words are known and
        its melody was judged."""
        partial, pause = session.partial, session.pause
        if pause is None or pause.num_spoken != follower.num_spoken or not pause.melody.done():
            return END_S
        if partial is not None and not partial.covers(follower.num_spoken):
            return END_S
        if partial is not None and follower.interrupts and is_murmur(partial.text):
            return PAUSE_MURMUR_S
        return self._judge.wait_s(partial.text if partial else None, pause.melody.result())

    def _listen_to_the_melody(self, session: MicSession, follower: Follower) -> None:
        """Once in a pause."""
        pause, num_spoken = session.pause, follower.num_spoken
        if not follower.talking or follower.silent_s < LOOK_S:
            return
        if pause is None or pause.num_spoken != num_spoken:
            pcm = np.concatenate(follower.frames)
            melody = asyncio.ensure_future(self._judge.melody(pcm, RATE_HZ))
            session.pause = Pause(num_spoken, melody)

    async def _keep_turn(
        self, session: MicSession, turn: SpokenTurn, turns: list[SpokenTurn]
    ) -> BlockResult | None:
        """A turn that is over; None where it held no words, but a cough or a murmur."""
        known, partial = None, session.partial
        if partial is not None and turn is turns[0]:
            known = await partial.settled(turn.num_spoken)
        if known is not None and not self._by_words and not known.sure:
            known = None  # another language than the recogniser's is none to the checkpoint
        if known is not None and is_murmur(known.text):
            return None
        said, saying = turn.spoken_s, session.saying
        if known is not None and turn.interrupts and not interrupts(known.text, said, saying):
            return None
        heard = known is not None and known.sure and self._by_words
        speech = Speech((), known) if heard else None  # else it is heard once more, or refused
        recording = self._recordings.keep(turn.pcm, RATE_HZ, known=speech, visitor=session.visitor)
        return BlockResult(False, recording.key, recording.seconds)

    def _keep(
        self, session: MicSession, pcm: np.ndarray, rate_hz: int, wave: np.ndarray | None = None
    ) -> BlockResult:
        recording = self._recordings.keep(pcm, rate_hz, wave, visitor=session.visitor)
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
