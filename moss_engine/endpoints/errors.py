"""Refusals in the shape that OpenAI's clients read: a status, a sentence with the remedy, a code,
and the field that is meant."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from moss_engine.api.errors import BusyError, MossError

RETRY_S = 2
"""When all places are taken, programs are told to ask again after so long."""
MAX_NAME_CHARS = 120
"""Longest field name that is repeated; an undeclared one may be as long as the body."""
FIELDS = {
    "voice": "voice",
    "speed": "speed",
    "seed": "seed",
    "text.temperature": "temperature",
    "text.top_p": "top_p",
}
"""The first word of a ParameterError -> the field that a program sent."""


@dataclass(eq=False)
class ApiError(Exception):
    """What a program is told instead of an answer."""

    status: int
    message: str
    code: str
    param: str | None = field(default=None, kw_only=True)
    retry_after_s: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        """`error.type` in OpenAI's shape."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def value(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}

    def response(self) -> JSONResponse:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return JSONResponse({"error": self.value()}, self.status, headers)


def of_moss(error: MossError | ApiError, param: str | None = None) -> ApiError:
    """A refusal of the service as programs get it; `param` is the field that the input came in.
    OpenAI's clients expect 400 for wrong input."""
    if isinstance(error, ApiError):
        return error
    status = 400 if error.http_status == 422 else error.http_status
    first, space, rest = str(error).partition(" ")
    field = FIELDS.get(first)
    return ApiError(
        status,
        f"{field or first}{space}{rest}",
        error.code,
        param=field or param,
        retry_after_s=RETRY_S if isinstance(error, BusyError) else None,
    )


SENTENCES = {
    "missing": ("{param} is missing; send it.", "missing_field"),
    "json_invalid": ("The body is not JSON; send one JSON object.", "invalid_json"),
    "too_short": ("{param} holds too few; send {min_length} or more.", "invalid_value"),
    "too_long": ("{param} holds too many; send {max_length} at most.", "invalid_value"),
    "string_too_short": (
        "{param} has too few characters; send {min_length} or more.",
        "invalid_value",
    ),
    "string_too_long": (
        "{param} has too many characters; send {max_length} at most.",
        "invalid_value",
    ),
    "string_pattern_mismatch": ("{param} must match {pattern}; change it.", "invalid_value"),
    "literal_error": ("{param} is {given}; send {expected}.", "invalid_value"),
}
"""By pydantic's error type: a sentence, into which its limits are put, and a code."""
KINDS = {
    "model_type": "an object",
    "dict_type": "an object",
    "list_type": "an array",
    "tuple_type": "an array",
}
"""By pydantic's error type: what the JSON must have there."""


def of_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body, by the name of its field."""
    return of_detail(error.errors(include_url=False)[0])


def of_detail(found: Any) -> ApiError:
    """One of the `errors` that pydantic found."""
    param = _name(found["loc"])[:MAX_NAME_CHARS]
    kind, limits = found["type"], found.get("ctx") or {}
    if kind in ("extra_forbidden", "none_required") or limits.get("max_length") == 0:
        sentence, code = f"{param} is not served here; leave it out.", "unknown_field"
    elif kind == "union_tag_not_found" and not param:
        param, sentence, code = "type", "type is missing; send it.", "missing_field"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = limits.get("expected_tags", "")
        missing = re.fullmatch("<no (.+)>", limits.get("tag", ""))
        if missing and "<parts>" not in tags:
            param, code = f"{param}.{missing[1]}".lstrip("."), "missing_field"
            sentence = f"{param} is missing{_alternatives(tags)}."
        else:
            param, code = param or "type", "invalid_value"
            sentence = f"{param} is of a kind that is not served here{_alternatives(tags)}."
    elif kind in SENTENCES:
        form, code = SENTENCES[kind]
        if limits.get("expected") == "False":
            limits["expected"] = "false"  # as JSON has it
        sentence = form.format(**limits, param=param, given=_given(found["input"]))
    else:
        said = found["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        said = KINDS.get(kind, said)
        sentence, code = f"{param or 'The body'} must be {said}; change it.", "invalid_value"
    return ApiError(400, sentence, code, param=param or None)


def _given(value: Any) -> str:
    """The value that was sent, shortened."""
    return repr(value[:40]) if isinstance(value, str) else json.dumps(value, default=str)[:40]


def _alternatives(tags: str) -> str:
    """pydantic's list of tags, "'<text>', '<parts>'" -> "; send text or parts"."""
    names = re.sub("['<>]", "", tags).replace(", ", " or ")
    return f"; send {names}" if names else ""


def _name(place: tuple[int | str, ...]) -> str:
    """("messages", 0, "<user>", "content") -> "messages[0].content", without tags of unions."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not part.startswith("<"):
            name += f".{part}" if name else part
    return name
