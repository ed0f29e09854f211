"""The calls of the page's functions, checked before Gradio sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moss_engine.ui.entrance.asgi import Refused

MAX_DEPTH = 20
SESSION_HASH = re.compile(
    r"[A-Za-z0-9_-]{1,64}"
)  # Gradio's: the digits of a random number, however few
HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")
ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "number": lambda value: (
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    ),
    "flag": lambda value: isinstance(value, bool),
    "state": lambda value: value is None,  # the server's copy is the only one
    "any": lambda value: True,
}


@dataclass(frozen=True)
class Calls:
    """The page's functions: kinds of their inputs by index, names open to programs, those that
    bypass the queue, and what the last inputs are that a program leaves out."""

    kinds: Mapping[int, tuple[str, ...]]
    names: Mapping[str, int]
    unqueued: frozenset[int]
    defaults: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def completed(calls: Calls, name: str | None, message: Any) -> Any:
    """A program's call with the arguments that it left out at the end, where they have defaults."""
    data = message.get("data") if isinstance(message, dict) else None
    index = calls.names.get(name or "")
    if not isinstance(data, list) or index is None:
        return message
    num_open = sum(kind != "state" for kind in calls.kinds[index])
    defaults = calls.defaults.get(name or "", ())
    num_missing = num_open - len(data)
    if not 0 < num_missing <= len(defaults):
        return message
    return {**message, "data": [*data, *defaults[-num_missing:]]}


def check_call(calls: Calls, how: str, name: str | None, message: Any) -> None:
    """A call by `how` (queue/join, run, call), of a function by its name in the address or its
    index in the message. Raises Refused."""
    if not isinstance(message, dict):
        raise Refused(400, "The body is not a JSON object.")
    session = message.get("session_hash")
    if session is not None and not (isinstance(session, str) and SESSION_HASH.fullmatch(session)):
        raise Refused(400, "session_hash must be 1 to 64 letters, digits, - or _.")
    index = message.get("fn_index") if how != "call" else None
    if index is None and how != "queue/join":
        index = calls.names.get(name or "")
    if isinstance(index, bool) or not isinstance(index, int) or index not in calls.kinds:
        raise Refused(404, "There is no such function.")
    if how == "run" and index not in calls.unqueued:
        raise Refused(404, "This function is not called this way.")
    kinds = calls.kinds[index]
    data = message.get("data")
    if how != "call" and isinstance(data, list) and len(data) != len(kinds):
        raise Refused(422, f"This function takes {len(kinds)} arguments here, states as null.")
    check_data(data, kinds)


def parse_json(body: bytes) -> Any:
    """Strict JSON: UTF-8, finite numbers, nesting of at most MAX_DEPTH. Raises Refused."""

    def number(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise Refused(400, f"The number {text[:20]} is too large.")
        return value

    def constant(text: str) -> float:
        raise Refused(400, f"{text} is not a number that can be used here.")

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=constant, parse_float=number)
    except RecursionError:
        raise Refused(400, "The JSON is nested too deeply.") from None
    except ValueError:
        raise Refused(400, "The body is not JSON.") from None
    if ESCAPED_HALF.search(body) and HALF_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        raise Refused(400, "A text holds half a character; type it again.")
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise Refused(400, "The JSON is nested too deeply.")
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return value


def check_data(data: Any, kinds: tuple[str, ...]) -> None:
    """Arguments must be as many and of the kinds that the function takes; states may be left out.
    Raises Refused."""
    open_kinds = tuple(kind for kind in kinds if kind != "state")
    if not isinstance(data, list) or len(data) not in (len(kinds), len(open_kinds)):
        raise Refused(422, f"This function takes {len(open_kinds)} arguments.")
    expected = kinds if len(data) == len(kinds) else open_kinds
    for place, (value, kind) in enumerate(zip(data, expected, strict=True), 1):
        if not KINDS[kind](value):
            raise Refused(422, f"Argument {place} must be a {kind}.")
