"""What the service says while it answers a request.

Exactly one terminal event, `Finished` or `Failed`, ends a stream. Metrics, page and commands fold
these; nothing else is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from moss_engine.api.request import SpeechState, ToolCall
from moss_engine.api.tokens import Modality, Row

if TYPE_CHECKING:
    import numpy as np


class FinishReason(Enum):
    """Why a reply ended."""

    STOP = "stop"  # the model ended its reply
    LENGTH = "length"  # max_rows, or the cap by expected duration
    CANCELLED = "cancelled"  # Stop, a closed tab, a lost lease or a shutdown


@dataclass(frozen=True, slots=True)
class Event:
    """What all of them say: the request's id, the seconds from its being accepted to the event's
    becoming true, and the number of reply rows sampled so far."""

    request_id: str
    time_s: float
    num_rows: int


@dataclass(frozen=True)
class Accepted(Event):
    """The request was validated and queued; the zero of every duration.

    `num_left_out` messages did not fit beside it (`Request.truncate_history`).
    """

    num_prompt_rows: int
    num_left_out: int = 0


@dataclass(frozen=True)
class Placed(Event):
    """From here on, `replica` of a cluster makes the reply: the one that knows its conversation
    (`is_preferred`), or another. It went on at another one `num_resumes` times before."""

    replica: str
    is_preferred: bool
    num_resumes: int


@dataclass(frozen=True)
class Waiting(Event):
    """The replica that made the reply is gone and the others are full. The reply waits, and gets
    the first place that becomes free, before new requests."""


@dataclass(frozen=True)
class Thought(Event):
    """The chat server that answers (`ServiceInfo.brain`) has sent its first token, or its first
    whole sentence."""

    stage: Literal["first_token", "first_sentence"]


@dataclass(frozen=True)
class Called(Event):
    """The chat server that answers calls one of the request's tools. The client runs it and asks
    again with its result."""

    call: ToolCall


@dataclass(frozen=True)
class Started(Event):
    """Its first prefill step is about to run: the wait in the queue is over. `num_prompt_rows`
    where they were not known yet when it was accepted."""

    num_cached_rows: int
    num_prompt_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled(Event):
    """One reply row was sampled. `modality` is the mode it was sampled in; the first one ends
    prefill. `held_s`: how long the reply was paused so far because its listener was far behind.
    `silence`: codes of a pause that is played after this row."""

    row: Row
    modality: Modality
    held_s: float = 0.0
    silence: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickled in half the time that the default for dataclasses with slots takes: ten thousand
        of these a second go from a replica to a page."""
        return Sampled, (
            self.request_id, self.time_s, self.num_rows, self.row, self.modality, self.held_s,
            self.silence,
        )  # fmt: skip


@dataclass(frozen=True)
class TextDelta(Event):
    """More text of the reply; it is spoken from `start_sample` of the audio on."""

    text: str
    start_sample: int


@dataclass(frozen=True)
class CodecRun:
    """One run of the codec for `num_replies` at a time, which took `ran_s` without the wait for its
    turn."""

    ran_s: float
    num_replies: int


@dataclass(frozen=True)
class AudioChunk(Event):
    """The next samples of the reply: float32 [n] in [-1, 1], gapless, starting at `start_sample`.
    `held_s` as in `Sampled`. `codec` is the run that made it, where known. With `state` another
    replica can go on from here (`Request.moves`)."""

    samples: np.ndarray
    start_sample: int
    sample_rate_hz: int
    held_s: float = 0.0
    codec: CodecRun | None = None
    state: SpeechState | None = None


@dataclass(frozen=True)
class Finished(Event):
    """The request is over and its reply complete; `rows` are all that were sampled, over all its
    segments."""

    reason: FinishReason
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Failed(Event):
    """The request is over; `message` may be shown as it stands, `code` is that of the MossError."""

    code: str
    message: str
