"""What a request may hold. Nothing is clamped or repaired: a request is right, or refused with a
sentence."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from moss_engine.api.controls import BY_NAME, CONTROLS, LOWEST_TEMPERATURE, Control
from moss_engine.api.errors import InputError, ParameterError, TextEmptyError, TextTooLongError
from moss_engine.api.request import ChannelSampling, Sampling

MAX_ID_CHARS = 200
_ALLOWED_CONTROLS = "\n\r\t"


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
        value: object = sampling
        for field in control.path:
            value = getattr(value, field)
        high = MAX_SEED if control.name == "seed" else control.high
        _check_number(".".join(control.path), value, control, high)
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
    for index, char in enumerate(text):
        if (char < " " and char not in _ALLOWED_CONTROLS) or "\x7f" <= char < "\xa0":
            raise InputError(
                f"The text holds the control character U+{ord(char):04X} at position {index + 1}; "
                "remove it."
            )
        if "\ud800" <= char <= "\udfff":
            raise InputError(
                f"The text holds half a character (U+{ord(char):04X}) at position {index + 1}; "
                "type it again."
            )
    if not text.strip():
        raise TextEmptyError("There is nothing to say; type a sentence.")


def check_speed(speed: float) -> None:
    """Raise ParameterError unless a speaking rate is a number within its range."""
    _check_number("speed", speed, SPEED, FASTEST)


def check_id(field: str, value: object) -> None:
    """Raise ParameterError, naming the field, unless an id is a text of a sensible length."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        raise ParameterError(f"{field} must be a text of 1 to {MAX_ID_CHARS} characters.")
