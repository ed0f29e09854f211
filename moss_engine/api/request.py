"""What a client asks for: messages, sampling values and the wanted kind of answer. Frozen values
only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from moss_engine.api.tokens import Row
from moss_engine.api.transcript import Transcript


@dataclass(frozen=True)
class Text:
    """Typed text; always encoded as plain text, whatever it spells."""

    text: str


@dataclass(frozen=True)
class Speech:
    """Speech as codec codes, or as the words that a recogniser heard, or both (`service.hear`)."""

    codes: tuple[int, ...] = ()
    transcript: Transcript | None = None


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
    """Sampling of one channel; `temperature` 0 is greedy. The defaults change no probability, so
    that files and programs of before a field was there mean what they meant."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Sampling:
    """How a reply is sampled.

    `max_rows` bounds the rows of the reply (of each sentence, where the mode splits its text);
    `min_rows` is the number of rows before `eosp` may be sampled. The same `seed` gives the same
    rows in any batch.
    """

    text: ChannelSampling
    audio: ChannelSampling
    max_rows: int
    min_rows: int
    seed: int


@dataclass(frozen=True)
class Progress:
    """How far a reply came elsewhere, to be continued: the `rows` that its listener received, the
    `codes` to be heard of them, pauses among them, and the number of samples and of characters of
    text; the listener has taken `num_taken` of these samples."""

    rows: tuple[Row, ...] = ()
    codes: tuple[int, ...] = ()
    num_samples: int = 0
    num_chars: int = 0
    num_taken: int = 0


@dataclass(frozen=True)
class Recorded:
    """A stretch of a reply that was made before, in one stream of the codec: the rows that were
    sampled, its text with the samples from which on it is spoken, and the codes of the pauses with
    the numbers of the rows after which they are heard; both in order."""

    rows: tuple[Row, ...]
    text: tuple[tuple[int, str], ...] = ()
    pauses: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Request:
    """One turn to answer.

    `mode` names one of `ServiceInfo.modes`, `voice` one of its voices (None: the default).
    `session_id` groups turns of which one is answered at a time; `visitor`, an address for example,
    groups those that count as one in the queue (empty: the session); `request_id` is unique and
    secret. With `truncate_history` earlier turns are left out, the older half first, where all of
    them are too long for the KV cache; `Accepted.num_left_out` counts these messages. `speed` is
    the speaking rate, from 0.7 to 1.5, where `ServiceInfo.speeds` offers one. With `progress` the
    reply is continued: its events are those behind it, and `Finished` holds all rows.
    With `recorded` nothing is asked: the stretches of an earlier reply are spoken again, without
    running the network.
    """

    request_id: str
    session_id: str
    messages: tuple[Message, ...]
    mode: str
    sampling: Sampling
    voice: str | None = field(default=None)
    truncate_history: bool = False
    speed: float = 1.0
    visitor: str = ""
    progress: Progress | None = None
    recorded: tuple[Recorded, ...] = ()


def without_older_half(request: Request) -> tuple[Request, int]:
    """The request without the older half of its earlier turns, and how many messages were left out:
    0 where the request does not allow it, or has no earlier turn. A turn begins with a message of
    the user; the last one, and the system's message, stay.

    Half, so that the turns after this one begin alike and are found in the prefix cache.
    """
    messages = request.messages
    first = int(messages[0].role == "system")
    later = [i for i in range(first + 1, len(messages)) if messages[i].role == "user"]
    if not later or not request.truncate_history:
        return request, 0
    begin = later[(len(later) - 1) // 2]
    return replace(request, messages=messages[:first] + messages[begin:]), begin - first
