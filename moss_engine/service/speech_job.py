"""What the codec thread has to do for one reply: codes that wait, and the stream they go to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moss_engine.api.events import AudioChunk, Finished
from moss_engine.codec.base import SpeechStream
from moss_engine.service.reply_stream import LocalReplyStream

if TYPE_CHECKING:
    import numpy as np

GUARD_S = 0.2  # a voice with less sound left than this goes before a first sound


class SpeechJob:
    """The engine thread adds codes and sets `ending`, the codec thread does all else.

    `codes` and `stream` are due when there are `missing_codes`; `ending` is the engine's last word
    while sound is still being made before it; `cancelled`: no more sound is wanted.
    """

    def __init__(self, reply: LocalReplyStream, voice: str | None, sample_rate_hz: int):
        self.reply = reply
        self.voice = voice
        self.codes: deque[int] = deque()
        self.num_codes = 0
        self.stream: SpeechStream | None = None
        self.missing_codes = 1
        self.ending: Finished | None = None
        self.cancelled = False
        self.num_rows = 0
        self._first_pcm_s: float | None = None
        self._made_samples = 0
        self._sample_rate_hz = sample_rate_hz

    @property
    def request_id(self) -> str:
        return self.reply.request_id

    @property
    def is_due(self) -> bool:
        """Whether there is something to do: sound that can be made now, or the reply's end."""
        return self.ending is not None or (
            len(self.codes) >= self.missing_codes and not self.cancelled
        )

    def urgency(self, now_s: float) -> tuple[int, float]:
        """Sort key, least first: voices about to run dry, then first sounds by their wait, then
        voices by when they run dry. A listener plays from the first chunk on."""
        if self._first_pcm_s is None:
            return 1, self.reply.accepted_s
        dry_s = self._first_pcm_s + self._made_samples / self._sample_rate_hz
        return (0 if dry_s < now_s + GUARD_S else 2), dry_s

    def add_code(self, code: int) -> None:
        self.num_codes += 1
        self.codes.append(code)

    def take_codes(self, most: int) -> list[int]:
        return [self.codes.popleft() for _ in range(min(most, len(self.codes)))]

    def deliver(self, samples: np.ndarray) -> None:
        """Send float32 samples [n] to the listener."""
        elapsed_s = self.reply.elapsed_s()
        if self._first_pcm_s is None:
            self._first_pcm_s = self.reply.accepted_s + elapsed_s
        self.reply.note_work()
        chunk = AudioChunk(
            self.request_id,
            elapsed_s,
            self.num_rows,
            samples,
            self._made_samples,
            self._sample_rate_hz,
            self.reply.held_s,
        )
        self._made_samples += len(samples)
        self.reply.put(chunk)
