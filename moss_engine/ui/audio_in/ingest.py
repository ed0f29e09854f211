"""What visitors say: microphones streamed block by block, files, and their codes.

A visitor opens a *session*, whose random key is the right to use it. Blocks of 16-bit PCM or whole
files go in; out come *recordings*, which the service understands from the moment they are
complete. A request names an *utterance*: one recording or several, joined. Nothing is written to
disk, and all of it is bounded: sessions, bytes, seconds and waiting work.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from moss_engine.api.errors import AudioEmptyError, AudioLongError, BusyError, ParameterError
from moss_engine.audio.file import MIN_S, SILENCE_PEAK, read_audio
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.turn_taking import (
    FRAME_S,
    FRAME_SAMPLES,
    LEAD_S,
    RATE_HZ,
    Change,
    TurnState,
    follow,
)
from moss_engine.audio.voice_activity import Detector, Listener
from moss_engine.ui.audio_in.recordings import JOIN, Hear, Recordings, Utterance

MAX_SESSIONS = 64
SESSION_IDLE_S = 120.0
MAX_READING = 4  # files decoded at a time
TAIL_S = 0.2  # silence kept after the last word of a turn


@dataclass(frozen=True)
class BlockResult:
    """What a block brought about: whether somebody is talking, and the utterance of the recordings
    that it completed."""

    talking: bool = False
    utterance: str = ""
    seconds: float = 0.0


@dataclass(eq=False)
class MicSession:
    """One microphone. `frames` [FRAME_SAMPLES] are those of the recording, or of the moment before
    it may begin."""

    used_s: float
    listener: Listener | None = None
    seq: int = -1
    frames: list[np.ndarray] = field(default_factory=list)
    rest: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int16))
    turn: TurnState = TurnState()
    last: BlockResult = BlockResult()
    busy: bool = False

    def begin(self, listener: Listener | None) -> None:
        self.listener, self.frames, self.rest, self.turn = (
            listener,
            [],
            np.zeros(0, np.int16),
            TurnState(),
        )


class AudioIngest:
    """`hear` is `api.service.hear` of the service; `detector` is None where hands-free talking is
    not installed. Used on one event loop."""

    def __init__(
        self,
        hear: Hear,
        detector: Detector | None,
        *,
        max_s: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.max_s = max_s
        self._recordings = Recordings(hear, clock)
        self._detector = detector
        self._clock = clock
        self._sessions: dict[str, MicSession] = {}
        self._num_reading = 0

    def open(self) -> str:
        """A new session; raises BusyError while too many are in use."""
        now_s = self._clock()
        self._sessions = {
            key: session
            for key, session in self._sessions.items()
            if now_s - session.used_s < SESSION_IDLE_S
        }
        if len(self._sessions) >= MAX_SESSIONS:
            raise BusyError("All microphones of this page are in use; try again in a moment.")
        key = secrets.token_urlsafe(16)
        self._sessions[key] = MicSession(now_s)
        return key

    def knows(self, session: str) -> bool:
        return session in self._sessions

    async def hear(
        self, key: str, seq: int, body: bytes, *, hands_free: bool, answering: bool, end: bool
    ) -> BlockResult:
        """Take the next block of int16 PCM at 16 kHz; the one with `seq` 0 begins a recording,
        `end` completes it.

        A block that is sent again gets the same answer. Hands-free, turns are found and completed
        by themselves; `answering` says that the page is talking meanwhile. Raises an InputError
        where nothing was said.
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
            session.begin(self._detector.open() if hands_free and self._detector else None)
        session.seq, session.busy = seq, True
        try:
            pcm = np.frombuffer(body, "<i2").astype(np.int16)
            if session.listener is None:
                session.last = self._record(session, pcm, end)
            else:
                session.last = self._collect(
                    await asyncio.to_thread(self._follow, session, pcm, answering), session
                )
        finally:
            session.busy = False
        return session.last

    async def read_file(self, key: str, data: bytes) -> BlockResult:
        """Take a whole audio file; raises the errors of `read_audio`, or BusyError."""
        self._use(key)
        if self._num_reading >= MAX_READING:
            raise BusyError("Several files are being read already; send it again in a moment.")
        self._num_reading += 1
        try:
            return self._keep(*await asyncio.to_thread(_read, data, self.max_s))
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
            return BlockResult(True, seconds=num_samples / RATE_HZ)
        whole = np.concatenate(session.frames)
        session.begin(None)
        if len(whole) < MIN_S * RATE_HZ:
            raise AudioEmptyError("That was too short to hold a word; talk, then press again.")
        if np.abs(whole.astype(np.int32)).max() < SILENCE_PEAK * 32768:
            raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
        return self._keep(whole, RATE_HZ)

    def _follow(self, session: MicSession, pcm: np.ndarray, answering: bool) -> list[np.ndarray]:
        """Hands-free: the turns that a block completes. Runs in a thread."""
        assert session.listener is not None
        samples = np.concatenate([session.rest, pcm])
        count = len(samples) // FRAME_SAMPLES
        session.rest = samples[count * FRAME_SAMPLES :]
        complete = []
        for frame in samples[: count * FRAME_SAMPLES].reshape(count, FRAME_SAMPLES):
            before = session.turn
            session.turn = follow(
                before, session.listener.probability(frame), answering=answering, max_s=self.max_s
            )
            session.frames.append(frame)
            if session.turn.change is Change.ENDED:
                silent = round(max(0.0, before.silent_s - TAIL_S) / FRAME_S)
                complete.append(np.concatenate(session.frames[: len(session.frames) - silent]))
            if not session.turn.talking:
                lead = round((LEAD_S + session.turn.run_s) / FRAME_S)
                session.frames = session.frames[-lead:]
        return complete

    def _collect(self, complete: list[np.ndarray], session: MicSession) -> BlockResult:
        kept = [self._keep(pcm, RATE_HZ) for pcm in complete]
        return BlockResult(
            session.turn.talking,
            JOIN.join(heard.utterance for heard in kept),
            sum(heard.seconds for heard in kept) or session.turn.length_s,
        )

    def _keep(self, pcm: np.ndarray, rate_hz: int, wave: np.ndarray | None = None) -> BlockResult:
        recording = self._recordings.keep(pcm, rate_hz, wave)
        return BlockResult(False, recording.key, recording.seconds)


def _read(data: bytes, max_s: float) -> tuple[np.ndarray, int, np.ndarray]:
    """An audio file as int16 [n], its sample rate, and float32 [n]."""
    wave, rate_hz = read_audio(data, max_s)
    return to_pcm16(np.clip(wave, -1.0, 1.0)), rate_hz, wave
