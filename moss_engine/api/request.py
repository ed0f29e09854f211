"""What a client asks for, as frozen values: messages, sampling values and the wanted kind of
answer; and the checks that all of them pass."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from moss_engine.api.controls import BY_NAME, CONTROLS, LOWEST_TEMPERATURE, Control
from moss_engine.api.errors import InputError, ParameterError, TextEmptyError, TextTooLongError
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
class Tool:
    """A function that the chat server may call. `parameters` is its JSON Schema, as JSON; empty for
    none."""

    name: str
    description: str = ""
    parameters: str = ""


@dataclass(frozen=True)
class Tools:
    """`choice`: whether one must be called; `chosen` names the one that must."""

    functions: tuple[Tool, ...]
    choice: Literal["auto", "none", "required"] = "auto"
    chosen: str = ""
    parallel: bool = True


@dataclass(frozen=True)
class ToolCall:
    """A call of a function; `arguments` are JSON as the chat server wrote them."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; only the first may be the system's. `calls` of an assistant are
    the functions that it called, and each `tool` message is what came back from the call named
    `call_id`: only chat servers know of them."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Content
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


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
class SpeechState:
    """A codec's state after the first `num_codes` codes of a reply, as numbers and numpy arrays,
    with which another process can continue the sound."""

    num_codes: int
    values: tuple[Any, ...]

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self.values)


def _num_bytes(value: Any) -> int:
    return sum(map(_num_bytes, value)) if isinstance(value, tuple) else getattr(value, "nbytes", 0)


@dataclass(frozen=True)
class Progress:
    """How far a reply came at another replica, which this one continues: the `rows` that the
    listener received, the `codes` to be played of them (pauses included), and how many samples and
    characters of text were sent. The listener has played `num_taken` of these samples. Without a
    `state` at the end of the samples, the codec decodes all codes again."""

    rows: tuple[Row, ...] = ()
    codes: tuple[int, ...] = ()
    num_samples: int = 0
    num_chars: int = 0
    num_taken: int = 0
    state: SpeechState | None = None


@dataclass(frozen=True)
class Request:
    """One turn to answer.

    `mode` names one of `ServiceInfo.modes`, `voice` one of its voices (None: the default).
    `session_id` groups turns of which only one is answered at a time; `visitor`, such as an
    address, groups those that share a place in the queue (empty: the session); `request_id` is
    unique and secret. `truncate_history`: if the conversation is too long for the KV cache, leave
    out its older half, again and again; `Accepted.num_left_out` counts the messages left out.
    `speed` is the speaking rate, from 0.7 to 1.5, where `ServiceInfo.speeds` offers one. `progress`
    continues a reply: only the events after it are sent, and `Finished` holds all rows. The chat
    server that answers may call `tools`. With `moves` every chunk of sound carries the codec's
    state, if that can be moved.
    """

    request_id: str
    session_id: str
    messages: tuple[Message, ...]
    mode: str
    sampling: Sampling
    voice: str | None = None
    truncate_history: bool = False
    speed: float = 1.0
    visitor: str = ""
    progress: Progress | None = None
    tools: Tools | None = None
    moves: bool = False


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


MAX_ID_CHARS = 200
_UNSAYABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters other than line breaks and tabs, and lone surrogates."""


SAMPLED = tuple(control for control in CONTROLS if control.path)
SPEED = BY_NAME["speed"]
SLOWEST, FASTEST = SPEED.low, SPEED.high
CHANNEL = tuple(field.name for field in fields(ChannelSampling))
MAX_SEED = 2**63 - 1  # of programs; the page's are smaller
MIN_ROWS = replace(BY_NAME["max_rows"], name="min_rows", path=("min_rows",), low=0)


def check_sampling(sampling: Sampling) -> None:
    """Raise ParameterError, naming the field, unless every value is of its type, finite and within
    its range."""
    for name, channel in (("text", sampling.text), ("audio", sampling.audio)):
        if not isinstance(channel, ChannelSampling):
            raise ParameterError(f"sampling.{name} is missing; give {', '.join(CHANNEL)}.")
    for control in (*SAMPLED, MIN_ROWS):
        high = MAX_SEED if control.name == "seed" else control.high
        _check_number(".".join(control.path), control.of(sampling), control, high)
    for name, channel in (("text", sampling.text), ("audio", sampling.audio)):
        if 0 < channel.temperature < LOWEST_TEMPERATURE:
            raise ParameterError(
                f"{name}.temperature is {channel.temperature:g}; give 0 (always the likeliest) or "
                f"a value from {LOWEST_TEMPERATURE} on."
            )
    if sampling.min_rows > sampling.max_rows:
        raise ParameterError(
            f"min_rows is {sampling.min_rows}, more than max_rows ({sampling.max_rows}); lower it."
        )


def _check_number(field: str, value: object, allowed: Control, high: float) -> None:
    kind, types = ("a whole number", int) if allowed.integer else ("a number", (int, float))
    limit = str(int(high)) if allowed.integer else f"{high:g}"
    remedy = f"give {kind} from {allowed.low:g} to {limit}."
    if isinstance(value, bool) or not isinstance(value, types):
        raise ParameterError(f"{field} is {str(value)[:40]!r}; {remedy}")
    if not math.isfinite(value) or not allowed.low <= value <= high:
        given = str(value)[:40] if isinstance(value, int) else f"{value:.6g}"
        raise ParameterError(f"{field} is {given}; {remedy}")


def check_text(text: str, max_chars: int) -> None:
    """Raise an InputError unless a typed text can be encoded: not empty, not too long, Unicode
    without controls."""
    if not isinstance(text, str):
        raise InputError("The message is not a text; send it as a string.")
    if len(text) > max_chars:
        raise TextTooLongError(
            f"The text has {len(text):,} characters, the limit is {max_chars:,}; send it in parts."
        )
    if found := _UNSAYABLE.search(text):
        code, place = f"{ord(found[0]):04X}", found.start() + 1
        if found[0] >= "\ud800":
            raise InputError(
                f"The text holds half a character (U+{code}) at position {place}; type it again."
            )
        raise InputError(
            f"The text holds the control character U+{code} at position {place}; remove it."
        )
    if not text.strip():
        raise TextEmptyError("There is nothing to say; type a sentence.")


def check_speed(speed: float) -> None:
    """Raise ParameterError unless a speaking rate is a number within its range."""
    _check_number("speed", speed, SPEED, FASTEST)


def check_values(request: Request) -> None:
    """Raise ParameterError, naming the field, unless the ids are texts of a sensible length, and
    sampling and speed are in order."""
    for name in ("request_id", "session_id"):
        value: object = getattr(request, name)
        if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
            raise ParameterError(f"{name} must be a text of 1 to {MAX_ID_CHARS} characters.")
    check_sampling(request.sampling)
    check_speed(request.speed)
