"""POST /v1/audio/transcriptions, and translations: what a recogniser understands of a sound file.
It hears English alone, which is its own translation."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from moss_engine.api.captions import Caption, captions, srt, vtt
from moss_engine.api.errors import MossError
from moss_engine.api.transcript import Transcript
from moss_engine.audio.file import read_audio
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import (
    MAX_SOUND_BYTES,
    Language,
    OpenBody,
    parse_value,
    read_form,
    without_effect,
)
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.replies import (
    EVENT_STREAM,
    server_sent,
    told_ignored,
    unless_gone,
    word_value,
)
from moss_engine.endpoints.server import Server


class TranscriptionBody(OpenBody):
    """`file` is read apart; fields that are not here, `prompt` and `temperature` among them, are
    taken without effect. Texts of a form are read as what they stand for."""

    model_config = ConfigDict(strict=False)

    model: str
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    language: Language | None = None
    stream: bool = False
    timestamp_granularities: Annotated[
        tuple[Literal["word", "segment"], ...], Field(max_length=16)
    ] = ("segment",)


async def transcribe(
    server: Server, request: Request, caller: Caller, task: str = "transcribe"
) -> Response:
    """The response; raises ApiError for what cannot be read or heard."""
    body, file = await _read_form(request)
    server.check_model(body.model)
    timed = body.response_format not in ("json", "text")
    if body.stream and timed:
        raise ApiError(
            400,
            'A stream carries words without their times; send "response_format": "json", or leave '
            "stream out.",
            "invalid_value",
            param="response_format",
        )

    async def understood() -> Transcript:
        wave, rate_hz = await asyncio.to_thread(read_audio, file, server.info.max_speech_s)
        return await server.service.transcribe(wave, rate_hz, timed)

    try:
        with caller.place():
            transcript = await unless_gone(request.receive, understood())
    except MossError as error:
        raise of_moss(error, "file") from None
    if transcript is None:  # nobody waits for it
        return Response(status_code=204)
    response = _answer(body, transcript, task)
    ignored = without_effect(body)
    if not timed and "timestamp_granularities" in body.model_fields_set:
        ignored.append("timestamp_granularities")
    response.headers.update(told_ignored(ignored))
    return response


def _answer(body: TranscriptionBody, transcript: Transcript, task: str) -> Response:
    seconds = round(transcript.seconds, 3)
    text, usage = transcript.text, {"type": "duration", "seconds": seconds}
    if body.stream:
        done = {"type": "transcript.text.done", "text": text}  # whose usage would be tokens
        events = [{"type": "transcript.text.delta", "delta": text}, done]
        return Response(b"".join(map(server_sent, events)), media_type=EVENT_STREAM)
    if body.response_format == "text":
        return PlainTextResponse(f"{text}\n")
    if body.response_format == "json":
        return JSONResponse({"text": text, "usage": usage})
    found = captions(transcript.words) or [Caption(0.0, transcript.seconds, text)]
    if body.response_format == "srt":
        return PlainTextResponse(srt(found))
    if body.response_format == "vtt":
        return Response(vtt(found), media_type="text/vtt")
    whole = {"task": task, "language": "english", "duration": seconds, "text": text}
    if "segment" in body.timestamp_granularities:
        whole["segments"] = [_segment(number, caption) for number, caption in enumerate(found)]
    if "word" in body.timestamp_granularities:
        whole["words"] = list(map(word_value, transcript.words))
    return JSONResponse({**whole, "usage": usage})


def _segment(number: int, caption: Caption) -> dict[str, Any]:
    """With null for what this recogniser does not tell."""
    start, end = round(caption.start_s, 3), round(caption.end_s, 3)
    unknown = dict.fromkeys(("avg_logprob", "compression_ratio", "no_speech_prob"))
    said = {"id": number, "seek": 0, "start": start, "end": end, "text": f" {caption.text}"}
    return {**said, "tokens": [], "temperature": 0.0, **unknown}


async def _read_form(request: Request) -> tuple[TranscriptionBody, bytes]:
    """The fields and the file's bytes."""
    none = "This is no form of one file and its fields; send multipart/form-data of file and model."
    refusal = ApiError(400, none, "invalid_form")
    form = await read_form(request, MAX_SOUND_BYTES, refusal, max_files=1)
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file is missing; send the sound file.", "missing_field", param="file")
    data = await file.read()
    await form.close()
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        name, brackets, _ = name.partition("[]")
        if brackets or name == "timestamp_granularities":  # of a list
            fields.setdefault(name, []).append(value)
        elif name != "file":
            fields[name] = value
    return parse_value(fields, TranscriptionBody), data
