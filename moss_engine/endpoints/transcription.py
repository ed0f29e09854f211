"""POST /v1/audio/transcriptions: what a recogniser understands of a sound file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from moss_engine.api.errors import MossError
from moss_engine.api.transcript import Transcript
from moss_engine.audio.file import read_audio
from moss_engine.endpoints.bodies import MAX_SOUND_BYTES, Body, read_body
from moss_engine.endpoints.errors import ApiError, of_moss, of_validation
from moss_engine.endpoints.replies import unless_gone
from moss_engine.endpoints.server import Server

MAX_FIELDS = 16
MAX_FIELD_BYTES = 64 * 1024


class TranscriptionBody(Body):
    """`file` is read apart; a field that would change what the recogniser does is refused, and so
    is a language that it does not hear."""

    model: str
    response_format: Literal["json", "text"] = "json"
    language: Literal["en"] | None = None
    temperature: Literal["0", "0.0"] | None = None
    stream: Literal["false"] | None = None


async def transcribe(server: Server, request: Request) -> Response:
    """The response; raises ApiError for what cannot be read or heard."""
    body, file = await _read_form(request)
    server.check_model(body.model)

    async def understood() -> Transcript:
        wave, rate_hz = await asyncio.to_thread(read_audio, file, server.info.max_speech_s)
        return await server.service.transcribe(wave, rate_hz)

    try:
        transcript = await unless_gone(request.receive, understood())
    except MossError as error:
        raise of_moss(error, "file") from None
    if transcript is None:  # nobody waits for it
        return Response(status_code=204)
    if body.response_format == "text":
        return PlainTextResponse(f"{transcript.text}\n")
    usage = {"type": "duration", "seconds": round(transcript.seconds, 3)}
    return JSONResponse({"text": transcript.text, "usage": usage})


async def _read_form(request: Request) -> tuple[TranscriptionBody, bytes]:
    """The fields and the file's bytes."""
    said = request.headers.get("content-type", "")
    if not said.lower().startswith("multipart/form-data"):
        raise ApiError(
            400,
            "The recording comes as a form; send multipart/form-data with file and model.",
            "content_type",
        )
    body = await read_body(request, MAX_SOUND_BYTES)

    async def once() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(
            request.headers,
            once(),
            max_files=1,
            max_fields=MAX_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        ).parse()
    except (MultiPartException, KeyError, ValueError):
        raise ApiError(
            400, "The form cannot be read; send one file and its fields.", "invalid_form"
        ) from None
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file is missing; send the sound file.", "missing_field", param="file")
    data = await file.read()
    await form.close()
    fields = {name: value for name, value in form.multi_items() if name != "file"}
    try:
        return TranscriptionBody.model_validate(fields), data
    except ValidationError as error:
        raise of_validation(error) from None
