"""What a realtime client sends of its microphone: a buffer, and the turns in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import AudioLongError
from moss_engine.audio.rate import FROM_HZ, Downsampler
from moss_engine.audio.turn_taking import END_S, FRAME_SAMPLES, LEAD_S, Change, TurnState, follow
from moss_engine.audio.voice_activity import Detector

RATE_HZ = FROM_HZ
FRAME = FRAME_SAMPLES * 3 // 2  # of the client's samples


@dataclass(frozen=True)
class Heard:
    """A turn began, ended or was dropped at `ms` of the session's sound; `pcm` is all of it, int16
    [n] at `RATE_HZ`, when it ended."""

    change: Change
    ms: int
    pcm: np.ndarray | None = None


class Microphone:
    """int16 PCM at `RATE_HZ`, at most `max_s` of it. Without `detector` it is kept until it is
    taken."""

    def __init__(self, max_s: float, detector: Detector | None = None):
        self._max_s = max_s
        self._held = bytearray()  # int16; not a list of blocks, which may be as many as samples
        self._num_seen = 0  # samples that the detector judged
        self._turn = TurnState()
        self._frames = np.empty(0, np.int16)
        self._listener = detector.open() if detector else None
        self._downsampler = Downsampler()
        self._began = 0

    @property
    def held_ms(self) -> int:
        return self._num_held * 1000 // RATE_HZ

    @property
    def _num_held(self) -> int:
        return len(self._held) // 2

    def push(self, pcm: np.ndarray, *, answering: bool) -> list[Heard]:
        """More sound, and what it brought about. Raises AudioLongError where nobody takes it."""
        self._held += pcm.tobytes()
        if self._listener is None:
            if self._num_held > self._max_s * RATE_HZ:
                self.clear()
                raise AudioLongError(
                    f"The buffer holds more than {self._max_s:g} s and was emptied; commit sooner."
                )
            return []
        self._frames = np.concatenate([self._frames, self._downsampler.push(pcm)])
        heard = []
        while len(self._frames) >= FRAME_SAMPLES:
            frame, self._frames = self._frames[:FRAME_SAMPLES], self._frames[FRAME_SAMPLES:]
            heard += self._judge(self._listener.probability(frame), answering)
        if not self._turn.talking:
            self._keep(LEAD_S + END_S)
        return heard

    def take(self) -> np.ndarray:
        """Everything that is held, int16 [n]; the buffer is empty then."""
        pcm = np.frombuffer(bytes(self._held), np.int16)
        self.clear()
        return pcm

    def clear(self) -> None:
        self._held.clear()
        self._turn = TurnState()

    def _judge(self, probability: float, answering: bool) -> list[Heard]:
        self._num_seen += FRAME
        self._turn = follow(self._turn, probability, answering=answering, max_s=self._max_s)
        change, now_ms = self._turn.change, self._num_seen * 1000 // RATE_HZ
        if change is Change.NONE:
            return []
        if change is Change.BEGAN:
            self._keep(self._turn.length_s)
            self._began = max(0, now_ms - round(1000 * self._turn.length_s))
            return [Heard(change, self._began)]
        pcm = self.take()
        return [Heard(change, now_ms, pcm if change is Change.ENDED else None)]

    def _keep(self, seconds: float) -> None:
        """Forget all but the last seconds."""
        surplus = self._num_held - round(seconds * RATE_HZ)
        if surplus > 0:
            del self._held[: 2 * surplus]
