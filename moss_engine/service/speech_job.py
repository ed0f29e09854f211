"""What the codec thread has to do for one reply: codes that wait, and the stream they go to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moss_engine.api.events import AudioChunk, CodecRun, Finished
from moss_engine.codec.base import SpeechStream
from moss_engine.service.reply_stream import LocalReplyStream

if TYPE_CHECKING:
    import numpy as np

FIRST_SOUND_S = 0.2  # a newcomer's sound is due so long after the request was accepted


class SpeechJob:
    """The engine thread adds codes and sets `ending`, the codec thread does all else.

    `codes` and `stream` are due when there are `missing_codes`; `ending` is the engine's last word
    while sound is still being made before it; `cancelled`: no more sound is wanted. The first
    `lead_samples` are not sent, nor the `sent_samples` behind them: those that the listener of a
    continued reply received from elsewhere, as part of the sound of its first `codes`.
    """

    def __init__(
        self,
        reply: LocalReplyStream,
        voice: str | None,
        sample_rate_hz: int,
        lead_samples: int = 0,
        sent_samples: int = 0,
        codes: Sequence[int] = (),
    ):
        self.reply = reply
        self.voice = voice
        self.codes: deque[int] = deque(codes)
        self.num_codes = len(codes)
        self.stream: SpeechStream | None = None
        self.missing_codes = 1
        self.ending: Finished | None = None
        self.cancelled = False
        self.num_rows = 0
        unplayed_s = max(0, sent_samples - reply.taken_samples) / sample_rate_hz
        self._due_s = reply.accepted_s + (unplayed_s if sent_samples else FIRST_SOUND_S)
        self._made_samples = sent_samples
        self.lead_samples = lead_samples
        self._unsent_lead = lead_samples + sent_samples
        self.first_sound_s: float | None = None
        self._sample_rate_hz = sample_rate_hz

    @property
    def request_id(self) -> str:
        return self.reply.request_id

    @property
    def made_s(self) -> float:
        """Seconds of sound so far."""
        return self._made_samples / self._sample_rate_hz

    @property
    def is_due(self) -> bool:
        """Whether there is something to do: sound that can be made now, or the reply's end."""
        return self.ending is not None or (
            len(self.codes) >= self.missing_codes and not self.cancelled
        )

    @property
    def due_s(self) -> float:
        """When its next sound is due, in seconds of the reply's clock: the earliest is made first.

        That is FIRST_SOUND_S after the request was accepted, and after the first chunk when the
        listener, who plays from it on, runs out of sound. Who has run out goes on playing where the
        next chunk begins, so lateness does not add up: a voice that cannot be kept up has pauses,
        and others, newcomers among them, wait for one chunk of it at most.
        """
        return self._due_s

    def add_code(self, code: int) -> None:
        self.num_codes += 1
        self.codes.append(code)

    def take_codes(self, most: int) -> list[int]:
        return [self.codes.popleft() for _ in range(min(most, len(self.codes)))]

    def deliver(self, samples: np.ndarray, codec: CodecRun | None = None) -> None:
        """Send float32 samples [n], which a run made, to the listener, but for those of the
        lead."""
        samples, lead = samples[self._unsent_lead :], min(self._unsent_lead, len(samples))
        self._unsent_lead -= lead
        if not len(samples):
            return
        elapsed_s = self.reply.elapsed_s()
        if self.first_sound_s is None:
            self.first_sound_s = round(elapsed_s, 3)
        now_s = self.reply.accepted_s + elapsed_s
        played_from_s = max(self._due_s, now_s) if self._made_samples else now_s
        self._due_s = played_from_s + len(samples) / self._sample_rate_hz
        self.reply.note_work()
        chunk = AudioChunk(
            self.request_id,
            elapsed_s,
            self.num_rows,
            samples,
            self._made_samples,
            self._sample_rate_hz,
            self.reply.held_s,
            codec,
        )
        self._made_samples += len(samples)
        self.reply.put(chunk)
