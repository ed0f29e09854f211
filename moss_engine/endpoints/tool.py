"""POST /mcp: the one tool, `say`, of the Model Context Protocol: a text becomes a sound file."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

import moss_engine
from moss_engine.api.errors import ConfigError, MissingPackageError, MossError
from moss_engine.api.events import AudioChunk
from moss_engine.api.request import Message, Text
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import Body, OpenBody, parse, parse_value, read_body
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.replies import told, unless_gone
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.sound import MEDIA_TYPES, whole_file
from moss_engine.text.beside import beside
from moss_engine.text.language import check_language

MAX_BYTES = 256 * 1024
NAME = "say"


class Envelope(OpenBody):
    """The least that a message of the protocol has; the package checks the rest."""

    jsonrpc: Literal["2.0"]


class Say(Body):
    """What is to be said, and how."""

    text: Annotated[str, Field(description="What is said, as it stands.")]
    voice: Annotated[str | None, Field(description="Who says it.")] = None
    rate: Annotated[float, Field(description="The speaking rate; 1 is the voice's own.")] = 1.0


def open_tool(server: Server) -> Callable[[Request, Caller], Awaitable[Response]]:
    """The endpoint. Every call stands alone: there are no sessions, and nothing is kept between.

    Raises MissingPackageError without the package mcp, and ConfigError for a model that reads
    nothing aloud.
    """
    try:
        import mcp.server.streamable_http_manager
    except ImportError:
        raise MissingPackageError(
            "--mcp needs the package mcp; run: pip install 'mcp>=1.21,<2'"
        ) from None
    if server.info.reading_mode is None:
        raise ConfigError(
            f"--mcp offers to read texts aloud, which {server.model!r} cannot; omit it."
        )

    class Answer(Response):
        """What the package answers to one message; whoever hangs up stops the reply."""

        def __init__(self, caller: Caller, message: bytes):
            super().__init__()
            self._tool, self._message = make_tool(server, caller), message

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            manager = mcp.server.streamable_http_manager.StreamableHTTPSessionManager(
                self._tool, json_response=True, stateless=True
            )

            async def work() -> None:
                async with manager.run():
                    await manager.handle_request(scope, once(self._message), send)

            await unless_gone(receive, work())

    async def answer(request: Request, caller: Caller) -> Response:
        message = await read_body(request, MAX_BYTES)
        parse(message, Envelope)
        return Answer(caller, bytes(message))

    return answer


def make_tool(server: Server, caller: Caller) -> Any:
    """The package's server, with `say` for one caller."""
    from mcp import types
    from mcp.server.lowlevel import Server as ToolServer

    tools: Any = ToolServer("moss-speech-live", moss_engine.__version__)

    @tools.list_tools()
    async def list_tools() -> list[types.Tool]:
        return [
            types.Tool(
                name=NAME,
                title="Say a text aloud",
                description=f"Reads a text aloud with an artificial voice, {server.model!r}, and "
                "returns the sound as a WAV file.",
                inputSchema=schema(server),
                annotations=types.ToolAnnotations(readOnlyHint=True, openWorldHint=False),
            )
        ]

    @tools.call_tool(validate_input=False)
    async def call_tool(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        try:
            if name != NAME:
                raise ApiError(404, f"There is no tool {name[:40]!r}; call {NAME!r}.", "no_tool")
            about, file = await say(server, caller, parse_value(arguments, Say))
        except (MossError, ApiError) as error:
            server.refused(error)
            text = types.TextContent(type="text", text=str(error))
            return types.CallToolResult(content=[text], isError=True)
        sound = base64.b64encode(file).decode()
        return types.CallToolResult(
            content=[
                types.TextContent(type="text", text=about),
                types.AudioContent(type="audio", data=sound, mimeType=MEDIA_TYPES["wav"]),
            ]
        )

    return tools


async def say(server: Server, caller: Caller, asked: Say) -> tuple[str, bytes]:
    """A sentence about the sound, and its WAV file. Raises a MossError or ApiError."""
    mode = server.info.reading_mode
    assert mode is not None
    await beside(check_language, mode, asked.text, "send English")
    messages = (Message("user", Text(asked.text)),)
    request = server.request(
        caller, messages, mode, server.sampling(None), voice=asked.voice, speed=asked.rate
    )
    chunks = [np.empty(0, np.float32)]
    with caller.place():
        async with aclosing(told(server.service, request)) as events:
            async for event in events:
                if isinstance(event, AudioChunk):
                    chunks.append(event.samples)
    wave, rate_hz = np.concatenate(chunks), server.info.sample_rate_hz
    return f"{len(wave) / rate_hz:.1f} s of speech.", await whole_file(wave, "wav", rate_hz)


def schema(server: Server) -> dict[str, Any]:
    """What the tool takes, as JSON Schema: only what this model can do."""
    info, told = server.info, Say.model_json_schema()
    fields = told["properties"]
    fields["text"] |= {"minLength": 1, "maxLength": info.max_text_chars}
    if info.voices:
        del fields["voice"]["anyOf"]
        fields["voice"] |= {"type": "string", "enum": info.voices, "default": info.voices[0]}
    else:
        del fields["voice"]
    if info.speeds is None:
        del fields["rate"]
    else:
        fields["rate"]["minimum"], fields["rate"]["maximum"] = info.speeds
    return told


def once(body: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    """A `receive` that gives this body once."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop()

    return received
