"""POST /v1/audio/speech: a text becomes a sound file, or a stream of events, while it is made."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from pydantic import Field

from moss_engine.api.errors import MossError, UnsupportedModeError
from moss_engine.api.events import AudioChunk, Event, Finished
from moss_engine.api.modes import Mode
from moss_engine.api.request import Message, Request, Text
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import OpenBody, Seed, Voice, without_effect
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, Usage, answered, server_sent
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.sound import MEDIA_TYPES, Format, open_encoder
from moss_engine.text.beside import beside
from moss_engine.text.language import check_language

SLOWEST, FASTEST = 0.25, 4.0
"""OpenAI's range of speeds; a voice speaks at its own nearest one."""


class SpeechBody(OpenBody):
    """OpenAI's fields, of which those that are not here are taken without effect; `seed`, `mode`
    and `anyway` (read what looks like another language) are ours."""

    model: str
    input: str
    voice: Voice | None = None
    speed: Annotated[float, Field(ge=SLOWEST, le=FASTEST)] | None = None
    response_format: Format | None = None
    stream_format: Literal["audio", "sse"] | None = None
    seed: Seed | None = None
    mode: str | None = None
    anyway: bool | None = None


async def speak(server: Server, body: SpeechBody, caller: Caller) -> Streamed:
    """The response; raises ApiError for what can be refused at once."""
    server.check_model(body.model)
    try:
        mode = _mode(server, body.mode)
    except MossError as error:
        raise of_moss(error, "mode") from None
    wanted = 1.0 if body.speed is None else body.speed
    speed, ignored = server.nearest_speed(wanted), without_effect(body)
    if speed != wanted:
        ignored.append(f"speed;used={speed:g}")

    async def asked() -> Request:
        if not body.anyway:
            remedy = 'send "anyway": true to hear it nevertheless'
            await beside(check_language, mode, body.input, remedy)
        messages = (Message("user", Text(body.input)),)
        sampling = server.sampling(body.seed)
        return server.request(caller, messages, mode, sampling, voice=body.voice, speed=speed)

    as_events, name = body.stream_format == "sse", body.response_format or "mp3"
    answer = Sound(server, name, as_events=as_events)
    media_type = EVENT_STREAM if as_events else MEDIA_TYPES[name]
    return Streamed(answered(server, caller, answer, asked, "input"), media_type, ignored)


def _mode(server: Server, name: str | None) -> Mode:
    if name is not None:
        return server.mode(name, "text", "speech")
    if server.info.reading_mode is None:
        raise UnsupportedModeError(
            f"The model {server.model!r} answers texts and reads none aloud; to hear an answer, "
            "name a mode, or ask /v1/chat/completions."
        )
    return server.info.reading_mode


class Sound:
    """The bytes of a sound file, or events that carry them: `speech.audio.delta` with base64 of the
    next ones, then `speech.audio.done`. A reply without any sound is no file."""

    def __init__(self, server: Server, name: Format, *, as_events: bool):
        self.usage = Usage(server.info.ids)
        self._encoder = open_encoder(name, server.info.sample_rate_hz)
        self._as_events = as_events
        self._spoken = False

    async def take(self, event: Event) -> AsyncIterator[bytes]:
        part = b""
        if isinstance(event, AudioChunk):
            self._spoken = True
            part = await self._encoder.push(event.samples)
        elif isinstance(event, Finished):
            if not self._spoken and not self._as_events:
                raise MossError("The reply has no sound; ask again.")
            part = await self._encoder.flush()
        if part and self._as_events:
            delta = base64.b64encode(part).decode()
            yield server_sent({"type": "speech.audio.delta", "audio": delta})
        elif part:
            yield part
        if isinstance(event, Finished) and self._as_events:
            usage = {
                "input_tokens": self.usage.prompt,
                "output_tokens": self.usage.sampled,
                "total_tokens": self.usage.total,
            }
            yield server_sent({"type": "speech.audio.done", "usage": usage})

    def failed(self, error: ApiError) -> bytes | None:
        return server_sent({"type": "error", "error": error.value()}) if self._as_events else None
