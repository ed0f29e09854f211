"""POST /v1/audio/speech: a text becomes a sound file, or a stream of events, while it is made."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

from pydantic import Field

from moss_engine.api.errors import MossError, UnsupportedModeError
from moss_engine.api.events import Accepted, AudioChunk, Finished
from moss_engine.api.modes import Mode
from moss_engine.api.request import MAX_SEED, Message, Request, Text
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import OpenBody, without_effect
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, server_sent, told
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.sound import MEDIA_TYPES, Format, open_encoder
from moss_engine.text.language import check_language

SLOWEST, FASTEST = 0.25, 4.0
"""OpenAI's speeds; a voice takes the nearest of its own."""


class SpeechBody(OpenBody):
    """OpenAI's fields, of which those that are not here are taken without effect; `seed`, `mode`
    and `anyway` (read what looks like another language) are ours."""

    model: str
    input: str
    voice: str | None = None
    speed: Annotated[float, Field(ge=SLOWEST, le=FASTEST)] = 1.0
    response_format: Format = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    mode: str | None = None
    anyway: bool = False


def speak(server: Server, body: SpeechBody, caller: Caller) -> Streamed:
    """The response; raises ApiError for what can be refused at once."""
    server.check_model(body.model)
    try:
        mode = _mode(server, body.mode)
    except MossError as error:
        raise of_moss(error, "mode") from None
    try:
        if not body.anyway:
            check_language(mode, body.input, 'send "anyway": true to hear it nevertheless')
    except MossError as error:
        raise of_moss(error, "input") from None
    messages = (Message("user", Text(body.input)),)
    speed, ignored = server.nearest_speed(body.speed), without_effect(body)
    if speed != body.speed:
        ignored.append(f"speed;used={speed:g}")
    request = server.request(
        caller, messages, mode, server.sampling(body.seed), voice=body.voice, speed=speed
    )
    if body.stream_format == "sse":
        events = _events(server, request, caller, body.response_format)
        return Streamed(events, EVENT_STREAM, ignored)
    parts = _parts(server, request, caller, body.response_format)
    return Streamed(parts, MEDIA_TYPES[body.response_format], ignored)


def _mode(server: Server, name: str | None) -> Mode:
    if name is not None:
        return server.mode(name, "text", "speech")
    if server.reading_mode is None:
        raise UnsupportedModeError(
            f"The model {server.model!r} answers texts and reads none aloud; to hear an answer, "
            "name a mode, or ask /v1/chat/completions."
        )
    return server.reading_mode


async def _parts(
    server: Server, request: Request, caller: Caller, name: Format
) -> AsyncGenerator[bytes, None]:
    """The bytes of a sound file; raises a MossError for a reply without any sound."""
    encoder, spoken = open_encoder(name, server.info.sample_rate_hz), False
    with caller.place():
        try:
            async with aclosing(told(server.service, request)) as events:
                async for event in events:
                    if isinstance(event, AudioChunk):
                        spoken = True
                        if part := await encoder.push(event.samples):
                            yield part
        except MossError as error:
            raise of_moss(error, "input") from None
    if not spoken:
        raise MossError("The reply has no sound; ask again.")
    if last := await encoder.flush():
        yield last


async def _events(
    server: Server, request: Request, caller: Caller, name: Format
) -> AsyncGenerator[bytes, None]:
    """`speech.audio.delta` with base64 of the file's next bytes, then `speech.audio.done`."""
    encoder = open_encoder(name, server.info.sample_rate_hz)
    num_prompt_rows, begun = 0, False
    with caller.place():
        try:
            async with aclosing(told(server.service, request)) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        num_prompt_rows = event.num_prompt_rows
                    if isinstance(event, AudioChunk) and (
                        part := await encoder.push(event.samples)
                    ):
                        begun = True
                        yield _delta(part)
                    if isinstance(event, Finished):
                        if last := await encoder.flush():
                            yield _delta(last)
                        yield _done(num_prompt_rows, event.num_rows)
        except (MossError, ApiError) as error:
            refusal = of_moss(error, "input") if isinstance(error, MossError) else error
            if not begun:
                raise refusal from None
            yield server_sent({"type": "error", "error": refusal.value()})


def _delta(part: bytes) -> bytes:
    return server_sent({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})


def _done(num_prompt_rows: int, num_rows: int) -> bytes:
    usage = {
        "input_tokens": num_prompt_rows,
        "output_tokens": num_rows,
        "total_tokens": num_prompt_rows + num_rows,
    }
    return server_sent({"type": "speech.audio.done", "usage": usage})
