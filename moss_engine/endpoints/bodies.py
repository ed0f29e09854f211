"""Bodies of calls: bounded in size and time, JSON of exactly the fields that are served."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from moss_engine.api.controls import BY_NAME
from moss_engine.api.request import MAX_SEED
from moss_engine.endpoints.errors import ApiError, of_validation

MAX_JSON_BYTES = 256 * 1024
MAX_SOUND_BYTES = 16 * 1024 * 1024
"""Largest body that may hold recordings."""
MAX_FIELD_BYTES = 512 * 1024
"""Largest field of a form."""
BODY_S = 30.0
MAX_VALUES = 20_000
"""Objects, lists and their values in a body: each costs far more time and memory than its bytes."""
PIECE_BYTES = 16 * 1024
AT_ONCE_BYTES = 16 * 1024
FORM_PIECE_BYTES = 64 * 1024
"""Bytes of a form that are parsed in one round of the event loop."""
_READING = ThreadPoolExecutor(1, "bodies")
_ROUNDS = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()


class Body(BaseModel):
    """Fields and their types exactly as declared; anything else is refused by its name."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class OpenBody(Body):
    """As `Body`, but undeclared fields are accepted; `without_effect` names them."""

    model_config = ConfigDict(extra="allow")


MAX_NAMED, MAX_NAME_CHARS = 16, 60


def without_effect(body: Any) -> list[str]:
    """Fields of a body, nested ones included, that were accepted but change nothing; printable."""
    found = dict.fromkeys(_undeclared(body, ""))
    return [
        re.sub(r"[^\w.\[\]-]", "?", name, flags=re.ASCII) or "?" for name in list(found)[:MAX_NAMED]
    ]


def _undeclared(value: Any, place: str) -> Iterator[str]:
    """Names of fields with a value, as `audio.quality` or `messages[].name`."""
    if isinstance(value, BaseModel):
        dot = f"{place}." if place else ""
        for name, given in (value.model_extra or {}).items():
            if given is not None:
                yield f"{dot}{name[:MAX_NAME_CHARS]}"
        for name in type(value).model_fields:
            yield from _undeclared(getattr(value, name), f"{dot}{name}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _undeclared(inner, f"{place}[]")


def _understood(language: str) -> str:
    if not re.fullmatch(r"en|english|en[-_][a-z]{2,4}", language, re.ASCII | re.IGNORECASE):
        raise ValueError("en, the only language that is understood here")
    return language


Language = Annotated[str, AfterValidator(_understood)]
"""The language spoken in a recording."""


MOST_ROWS = int(BY_NAME["max_rows"].high)
Rows = Annotated[int, Field(ge=1), AfterValidator(lambda rows: min(rows, MOST_ROWS))]
"""The longest answer; what programs ask of OpenAI's largest models is taken as our limit."""


def _seed(seed: int) -> int | None:
    return None if seed == -1 else seed % (MAX_SEED + 1)


Seed = Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED), AfterValidator(_seed)]
"""OpenAI's seeds may be negative; -1 asks llama.cpp and vLLM for a new one."""
Voice = Annotated[
    str, BeforeValidator(lambda said: said.get("id") if isinstance(said, dict) else said)
]
"""A voice's name, or the object by which OpenAI names a voice that was made."""
Kind = TypeVar("Kind", bound=BaseModel)
Result = TypeVar("Result")


def told_by(key: str, usual: str | None = None) -> Discriminator:
    """Discriminator of a union whose members are tagged `<NAME>`, where NAME is the value of the
    field `key`, or `usual` where that is missing. A string is tagged `<text>`, a list `<parts>`,
    and an object without the field `<no KEY>`."""

    def kind_of(value: Any) -> str | None:
        if isinstance(value, str | list):
            return "<text>" if isinstance(value, str) else "<parts>"
        if isinstance(value, dict) and not value.get(key) and usual is None:
            return f"<no {key}>"
        found = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return f"<{found}>" if isinstance(found := found or usual, str) else None

    return Discriminator(kind_of)


MAX_PARTS = 16
"""Parts of a message."""


class TextPart(OpenBody):
    """Text, under the type names of chat completions and of responses."""

    type: Literal["text", "input_text", "output_text"]
    text: str


Words = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS), Tag("<parts>")],
    told_by("type"),
]


def joined(words: str | list[TextPart]) -> str:
    """A text, or the texts of parts, as one text."""
    return words if isinstance(words, str) else "\n".join(part.text for part in words)


async def read_body(request: Request, limit: int, *, is_json: bool = False) -> bytearray:
    """All of it. Raises ApiError if it is too large (413) or comes too slowly (408), and for JSON
    whose beginning already holds too many values, without reading the rest."""
    too_large = ApiError(
        413, f"The body is larger than {limit // 1024:,} kB; send less at a time.", "body_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large

    async def read() -> bytearray:
        body, unchecked = bytearray(), is_json
        turns = _ROUNDS.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_large
            if len(body) >= MAX_JSON_BYTES:
                # The event loop takes a part of one large body in each of its rounds, however many
                # are being sent, so that everybody else has a turn between two.
                async with turns:
                    await asyncio.sleep(0)
                if unchecked:
                    unchecked = False
                    await beside_if_large(check_size, bytes(body[:MAX_JSON_BYTES]))
        return body

    try:
        return await asyncio.wait_for(read(), BODY_S)
    except asyncio.TimeoutError:
        raise ApiError(
            408, f"The body did not arrive within {BODY_S:g} s; send it again.", "slow_body"
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "The body was cut off; send it again.", "body_cut_off") from None


async def read_json(request: Request, kind: type[Kind], limit: int = MAX_JSON_BYTES) -> Kind:
    """The body as a value of `kind`; raises ApiError that names what is wrong with it."""
    said = request.headers.get("content-type", "")
    if said.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            400, "The body must be JSON; send the header Content-Type: application/json.",
            "content_type",
        )  # fmt: skip
    body = await read_body(request, limit, is_json=True)
    return await beside_if_large(parse, body, kind)


async def read_form(request: Request, limit: int, refusal: ApiError, *, max_files: int) -> FormData:
    """The fields and files of a form; raises `refusal` if it is none. They stay in memory, like the
    body, as a disk may be full."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise refusal
    body = await read_body(request, limit)

    async def pieces() -> AsyncGenerator[bytes, None]:
        for begin in range(0, len(body), FORM_PIECE_BYTES):
            yield bytes(body[begin : begin + FORM_PIECE_BYTES])
            await asyncio.sleep(0)

    try:
        parser = MultiPartParser(
            request.headers, pieces(), max_files=max_files, max_fields=16,
            max_part_size=MAX_FIELD_BYTES,
        )  # fmt: skip
        parser.spool_max_size = limit
        return await parser.parse()
    except (MultiPartException, KeyError, ValueError):
        raise refusal from None


async def beside_if_large(work: Callable[..., Result], said: Any, *given: Any) -> Result:
    """`work(said, *given)`. Large input, which takes milliseconds, is handled in a thread, one at a
    time, as several would only wait for Python's lock."""
    if len(said) <= AT_ONCE_BYTES:
        return work(said, *given)
    return await asyncio.get_running_loop().run_in_executor(_READING, work, said, *given)


def parse(body: bytes | bytearray | str, kind: type[Kind]) -> Kind:
    """JSON -> a value of `kind`; raises ApiError that names what is wrong with it."""
    check_size(body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from None


def check_size(body: bytes | bytearray | str) -> None:
    """Raise ApiError (413) for JSON of more than MAX_VALUES values, before it is parsed: counts the
    characters that begin or separate values, wherever they stand. It goes piece by piece, as
    Python's other threads wait meanwhile."""
    signs = ",[{" if isinstance(body, str) else (b",", b"[", b"{")
    num_values = 0
    for begin in range(0, len(body), PIECE_BYTES):
        piece: Any = body[begin : begin + PIECE_BYTES]
        num_values += sum(map(piece.count, signs))
        if num_values > MAX_VALUES:
            raise ApiError(
                413, f"The JSON holds more than {MAX_VALUES:,} values; send less at a time.",
                "body_too_large",
            )  # fmt: skip


def parse_value(value: Any, kind: type[Kind]) -> Kind:
    """The same for JSON that is parsed already."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise of_validation(error) from None
