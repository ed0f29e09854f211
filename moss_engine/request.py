"""What a client asks for: messages, sampling values and the wanted kind of answer. Frozen values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from moss_engine.tokens import Row


@dataclass(frozen=True)
class Text:
    """Typed text; always encoded as plain text, whatever it spells."""

    text: str


@dataclass(frozen=True)
class Speech:
    """Speech as codec codes."""

    codes: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """An earlier answer exactly as it was sampled, so that its KV blocks are found again."""

    rows: tuple[Row, ...]


Content = Text | Speech | Reply


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; only the first may be the system's."""

    role: Literal["system", "user", "assistant"]
    content: Content


@dataclass(frozen=True)
class ChannelSampling:
    """Sampling of one channel; `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 switch the filters off."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float


@dataclass(frozen=True)
class Sampling:
    """How a reply is sampled.

    `max_rows` bounds the rows of the reply (of each sentence, where the mode splits its text); `min_rows` is the number
    of rows before `eosp` may be sampled. The same `seed` gives the same rows, whoever else is being served.
    """

    text: ChannelSampling
    audio: ChannelSampling
    max_rows: int
    min_rows: int
    seed: int


@dataclass(frozen=True)
class Request:
    """One turn to answer.

    `mode` names one of the checkpoint's modes (`processor.modes`), `voice` one of the codec's voices (None: its
    default). `session_id` groups turns for fairness; `request_id` is unique and secret.
    """

    request_id: str
    session_id: str
    messages: tuple[Message, ...]
    mode: str
    sampling: Sampling
    voice: str | None = field(default=None)
