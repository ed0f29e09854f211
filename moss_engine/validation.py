"""What a request may hold. Nothing is clamped or repaired: a request is right, or refused with a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moss_engine.errors import InputError, ParameterError, TextEmptyError, TextTooLongError
from moss_engine.request import ChannelSampling, Sampling

MAX_ID_CHARS = 200
_ALLOWED_CONTROLS = "\n\r\t"


@dataclass(frozen=True)
class Range:
    """Allowed values of one sampling field, ends included."""

    low: float
    high: float
    integer: bool = False


CHANNEL_RANGES = {
    "temperature": Range(0.0, 2.0),
    "top_k": Range(0, 1000, integer=True),
    "top_p": Range(0.01, 1.0),
    "repetition_penalty": Range(0.5, 2.0),
}
LOWEST_TEMPERATURE = 0.01  # but for 0, which is greedy: below, scores overflow when they are divided by it
SAMPLING_RANGES = {
    "max_rows": Range(1, 40_960, integer=True),
    "min_rows": Range(0, 40_960, integer=True),
    "seed": Range(0, 2**63 - 1, integer=True),
}


def check_sampling(sampling: Sampling) -> None:
    """Raise ParameterError, naming the field, unless every value is of its type, finite and within its range."""
    for name, channel in (("text", sampling.text), ("audio", sampling.audio)):
        if not isinstance(channel, ChannelSampling):
            raise ParameterError(f"sampling.{name} is missing; give temperature, top_k, top_p and repetition_penalty.")
        for field, allowed in CHANNEL_RANGES.items():
            _check_number(f"{name}.{field}", getattr(channel, field), allowed)
        if 0 < channel.temperature < LOWEST_TEMPERATURE:
            raise ParameterError(f"{name}.temperature is {channel.temperature:g}; give 0 (always the likeliest) or a "
                                 f"value from {LOWEST_TEMPERATURE} on.")
    for field, allowed in SAMPLING_RANGES.items():
        _check_number(field, getattr(sampling, field), allowed)
    if sampling.min_rows > sampling.max_rows:
        raise ParameterError(f"min_rows is {sampling.min_rows}, more than max_rows ({sampling.max_rows}); lower it.")


def _check_number(field: str, value: object, allowed: Range) -> None:
    kind, types = ("a whole number", int) if allowed.integer else ("a number", (int, float))
    if isinstance(value, bool) or not isinstance(value, types):
        raise ParameterError(f"{field} is {str(value)[:40]!r}; give {kind} from {allowed.low:g} to {allowed.high:g}.")
    if not math.isfinite(value) or not allowed.low <= value <= allowed.high:
        raise ParameterError(f"{field} is {value:.6g}; give {kind} from {allowed.low:g} to {allowed.high:g}.")


def check_text(text: str, max_chars: int) -> None:
    """Raise an InputError unless a typed text can be encoded: not empty, not too long, Unicode without controls."""
    if not isinstance(text, str):
        raise InputError("The message is not a text; send it as a string.")
    if len(text) > max_chars:
        raise TextTooLongError(f"The text has {len(text):,} characters, the limit is {max_chars:,}; send it in parts.")
    for index, char in enumerate(text):
        if (char < " " and char not in _ALLOWED_CONTROLS) or "\x7f" <= char < "\xa0":
            raise InputError(f"The text holds the control character U+{ord(char):04X} at position {index + 1}; "
                             "remove it.")
        if "\ud800" <= char <= "\udfff":
            raise InputError(f"The text holds half a character (U+{ord(char):04X}) at position {index + 1}; "
                             "type it again.")
    if not text.strip():
        raise TextEmptyError("There is nothing to say; type a sentence.")


def check_id(field: str, value: object) -> None:
    """Raise ParameterError, naming the field, unless an id is a text of a sensible length."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        raise ParameterError(f"{field} must be a text of 1 to {MAX_ID_CHARS} characters.")
