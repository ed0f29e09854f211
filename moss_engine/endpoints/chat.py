"""POST /v1/chat/completions: a conversation, in text or speech, is answered in text or speech."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, Tag

from moss_engine.api.errors import AudioLongError, MossError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Called,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.modes import Mode
from moss_engine.api.request import (
    MAX_SEED,
    Content,
    Message,
    Request,
    Sampling,
    Speech,
    Text,
    Tool,
    ToolCall,
    Tools,
)
from moss_engine.api.tokens import Modality
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import OpenBody, Rows, told_by, without_effect
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, server_sent, told
from moss_engine.endpoints.server import Server, num_codes
from moss_engine.endpoints.sound import from_base64, heard, pcm_bytes, whole_file

MAX_MESSAGES = 512
MAX_PARTS = 16
MAX_TOOLS = 128
MAX_CALLS = 64
MAX_TOOL_CHARS = 256 * 1024
"""Of all functions that are offered, and of what comes back from one."""


class TextPart(OpenBody):
    type: Literal["text"]
    text: str


class Recording(OpenBody):
    """`data` is base64 of a sound file, whose kind is told by its first bytes."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aiff"] = "wav"


class AudioPart(OpenBody):
    type: Literal["input_audio"]
    input_audio: Recording


TextParts = Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)]
UserPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[AudioPart, Tag("<input_audio>")], told_by("type")
]
UserParts = Annotated[list[UserPart], Field(min_length=1, max_length=MAX_PARTS)]
Words = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextParts, Tag("<parts>")], told_by("type")
]


class SystemMessage(OpenBody):
    role: Literal["system", "developer"]
    content: Words


class UserMessage(OpenBody):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[UserParts, Tag("<parts>")], told_by("type")
    ]


class EarlierAudio(OpenBody):
    """As it was sent; only the id is read."""

    id: str
    data: str | None = None
    expires_at: int | None = None
    transcript: str | None = None


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class FunctionCall(OpenBody):
    name: FunctionName
    arguments: str


class EarlierCall(OpenBody):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(OpenBody):
    """An earlier answer: its words, the id of its sound, or the functions that it called."""

    role: Literal["assistant"]
    content: Words | None = None
    audio: EarlierAudio | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MAX_CALLS)] | None = None
    function_call: None = None


class ToolMessage(OpenBody):
    """What came back from a function."""

    role: Literal["tool"]
    tool_call_id: Annotated[str, Field(min_length=1)]
    content: Words


AnyMessage = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    told_by("role"),
]


class AudioOut(OpenBody):
    voice: str | None = None
    format: Literal["wav", "pcm", "pcm16", "flac", "mp3", "opus"] = "wav"


class StreamOptions(OpenBody):
    include_usage: bool = False


class ResponseFormat(OpenBody):
    type: Literal["text"]


class Function(OpenBody):
    """`parameters` is a JSON Schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionTool(OpenBody):
    type: Literal["function"]
    function: Function


class ChosenFunction(OpenBody):
    name: FunctionName


class ChosenTool(OpenBody):
    type: Literal["function"]
    function: ChosenFunction


class ChatBody(OpenBody):
    """OpenAI's fields, of which those that are not here are taken without effect, except where the
    answer would be none to what was asked. `mode` is ours: one of the checkpoint's modes, instead
    of the one that the modalities say."""

    model: str
    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    modalities: Annotated[tuple[Literal["text", "audio"], ...], Field(min_length=1)] = ("text",)
    audio: AudioOut | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_completion_tokens: Rows | None = None
    max_tokens: Rows | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("<text>")]
            | Annotated[ChosenTool, Tag("<function>")],
            told_by("type"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    mode: str | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    response_format: ResponseFormat | None = None
    functions: None = None

    @property
    def speaks(self) -> bool:
        return "audio" in self.modalities


SAMPLED = ("temperature", "top_p", "seed", "max_completion_tokens", "max_tokens")
Value = dict[str, Any]


class Answer:
    """Folds the events of one reply. `over`: the terminal event was taken."""

    def __init__(self, server: Server, memory: Memory, body: ChatBody):
        self.over: Finished | None = None
        self._server = server
        self._memory = memory
        self._body = body
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": server.model,
        }
        self._audio_id = memory.new_id()
        self._words: list[str] = []
        self._calls: list[ToolCall] = []
        self._chunks: list[np.ndarray] = [np.empty(0, np.float32)]
        self._num_prompt_rows = self._num_cached_rows = self._num_audio_rows = 0
        self._sounds = False

    def take(self, event: Event) -> Iterator[bytes]:
        """What a stream says of an event; nothing, where the answer is wanted whole."""
        delta: Value | None = None
        if isinstance(event, Accepted):
            self._num_prompt_rows = event.num_prompt_rows
            delta = {"role": "assistant", "content": None if self._body.speaks else ""}
        elif isinstance(event, Started):
            self._num_cached_rows = event.num_cached_rows
        elif isinstance(event, Sampled):
            self._num_audio_rows += event.modality is Modality.AUDIO
        elif isinstance(event, TextDelta):
            self._words.append(event.text)
            delta = self._spoken(transcript=event.text) or {"content": event.text}
        elif isinstance(event, Called):
            call = {"index": len(self._calls), **_value_of(event.call)}
            delta = {"tool_calls": [call]}
            self._calls.append(event.call)
        elif isinstance(event, AudioChunk):
            self._sounds = True
            if not self._body.stream and self._body.speaks:
                self._chunks.append(event.samples)
            data = base64.b64encode(pcm_bytes(event.samples)).decode()
            delta = self._spoken(data=data)
        elif isinstance(event, Finished):
            self.over = event
        if self._body.stream and delta is not None:
            yield self._chunk(delta)

    async def last(self, request: Request) -> bytes:
        """The end of a stream, or the whole completion."""
        assert self.over is not None
        if self._sounds and self._body.speaks:
            self._memory.keep(self._audio_id, self.over.rows, "".join(self._words).strip())
        usage = self._usage(request)
        if not self._body.stream:
            message = await self._message()
            choice = {"index": 0, "message": message, "logprobs": None}
            choices = [{**choice, "finish_reason": self._why()}]
            whole = {"object": "chat.completion", "choices": choices, "usage": usage}
            return json.dumps({**self._head, **whole}, ensure_ascii=False).encode()
        end = (self._sounds and self._spoken(expires_at=self._memory.expires_at())) or {}
        parts = [self._chunk(end, self._why())]
        if self._body.stream_options and self._body.stream_options.include_usage:
            chunk = {"object": "chat.completion.chunk", "choices": [], "usage": usage}
            parts.append(server_sent({**self._head, **chunk}))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    @staticmethod
    def failed(error: ApiError) -> bytes:
        """The last event of a stream that breaks off."""
        return server_sent({"error": error.value()})

    def _spoken(self, **audio: Any) -> Value | None:
        return {"audio": {"id": self._audio_id, **audio}} if self._body.speaks else None

    def _chunk(self, delta: Value, why: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": why}
        chunk = {"object": "chat.completion.chunk", "choices": [choice]}
        return server_sent({**self._head, **chunk})

    async def _message(self) -> Value:
        words = "".join(self._words).strip()
        message: Value = {"role": "assistant", "content": words, "refusal": None}
        if self._calls:
            message["content"] = words or None
            message["tool_calls"] = [_value_of(call) for call in self._calls]
        if not self._body.speaks or not (self._sounds or not self._calls):
            return message
        name = self._body.audio.format if self._body.audio else "wav"
        rate_hz = self._server.info.sample_rate_hz
        samples = np.concatenate(self._chunks)
        data = await whole_file(samples, "pcm" if name == "pcm16" else name, rate_hz)
        audio = {
            "id": self._audio_id,
            "data": base64.b64encode(data).decode(),
            "expires_at": self._memory.expires_at(),
            "transcript": words,
        }
        return {**message, "content": None, "audio": audio}

    def _why(self) -> str:
        assert self.over is not None
        if self._calls:
            return "tool_calls"
        return "length" if self.over.reason is FinishReason.LENGTH else "stop"

    def _usage(self, request: Request) -> Value:
        """Rows by their channel."""
        assert self.over is not None
        heard = sum(
            num_codes(message.content, self._server.info.ids) for message in request.messages
        )
        num_rows = self.over.num_rows
        return {
            "prompt_tokens": self._num_prompt_rows,
            "completion_tokens": num_rows,
            "total_tokens": self._num_prompt_rows + num_rows,
            "prompt_tokens_details": {
                "audio_tokens": heard,
                "text_tokens": max(0, self._num_prompt_rows - heard),
                "cached_tokens": self._num_cached_rows,
            },
            "completion_tokens_details": {
                "audio_tokens": self._num_audio_rows,
                "text_tokens": num_rows - self._num_audio_rows,
                "reasoning_tokens": 0,
            },
        }


MAX_HEARD_S = 600.0
"""Of recordings in one call: small files hold hours of silence, and every second is listened to."""


def complete(server: Server, memory: Memory, body: ChatBody, caller: Caller) -> Streamed:
    """The response; raises ApiError for what can be refused at once."""
    server.check_model(body.model)
    _check_audio(body)
    answer, ignored = Answer(server, memory, body), without_effect(body)
    media_type = EVENT_STREAM if body.stream else "application/json"
    return Streamed(_parts(server, memory, body, caller, answer, ignored), media_type, ignored)


async def _parts(
    server: Server,
    memory: Memory,
    body: ChatBody,
    caller: Caller,
    answer: Answer,
    ignored: list[str],
) -> AsyncGenerator[bytes, None]:
    """Chunks as server-sent events, or one whole completion."""
    begun = False
    with caller.place():
        try:
            request = await make_request(server, memory, body, caller, ignored)
            async with aclosing(told(server.service, request)) as events:
                async for event in events:
                    for part in answer.take(event):
                        begun = True
                        yield part
                    if answer.over and (last := await answer.last(request)):
                        yield last
        except (MossError, ApiError) as error:
            refusal = of_moss(error, "messages") if isinstance(error, MossError) else error
            if not begun:
                raise refusal from None
            yield answer.failed(refusal)


async def make_request(
    server: Server, memory: Memory, body: ChatBody, caller: Caller, ignored: list[str]
) -> Request:
    """Raises ApiError or a MossError for what cannot be served; adds to `ignored` what has no
    effect."""
    spoken = _is_spoken(body.messages[-1])
    if body.mode is None:
        mode = server.mode_for(spoken, speaks=body.speaks)
    else:
        output = "speech" if body.speaks else None
        mode = server.mode(body.mode, "speech" if spoken else "text", output)
    system: list[str] = []
    messages: list[Message] = []
    heard_s = 0.0
    for place, said in enumerate(body.messages):
        if isinstance(said, SystemMessage):
            system.append(_joined(said.content))
            continue
        for message in await _messages(server, memory, mode, place, said):
            messages.append(message)
            heard_s += _seconds(server, message.content)
        if heard_s > MAX_HEARD_S:
            raise AudioLongError(
                f"The conversation's recordings are longer than {MAX_HEARD_S:g} s in all; send "
                "the words of the earlier ones."
            )
    if system and mode.own_system:
        messages.insert(0, Message("system", Text("\n\n".join(system))))
    elif system:  # the mode has its own
        ignored.append("system")
    if mode.through_text and not body.speaks:  # nothing is sampled here
        ignored += [name for name in SAMPLED if getattr(body, name) is not None]
    tools = _tools(body)
    server.check_tools(mode, tuple(messages), tools)
    voice = body.audio.voice if body.audio else None
    sampling = _sampling(server, body)
    return server.request(caller, tuple(messages), mode, sampling, voice=voice, tools=tools)


def _tools(body: ChatBody) -> Tools | None:
    """What may be called; None where nothing may."""
    choice = body.tool_choice or "auto"
    functions = [tool.function for tool in body.tools or ()]
    chosen = choice.function.name if isinstance(choice, ChosenTool) else ""
    wanted = "required" if isinstance(choice, ChosenTool) else choice
    return offered(functions, wanted, chosen, parallel=body.parallel_tool_calls is not False)


def offered(
    functions: Sequence[Function],
    choice: Literal["none", "auto", "required"],
    chosen: str,
    *,
    parallel: bool = True,
) -> Tools | None:
    """The functions of a body, of which one is `chosen` or ""; raises ApiError."""
    if not functions or choice == "none":
        return None
    tools = []
    for said in functions:
        try:
            schema = json.dumps(said.parameters, allow_nan=False) if said.parameters else ""
        except ValueError:
            raise ApiError(
                400, "tools hold a number that JSON has not; send numbers.", "invalid_value",
                param="tools",
            ) from None  # fmt: skip
        tools.append(Tool(said.name, said.description or "", schema))
    if sum(len(tool.description) + len(tool.parameters) for tool in tools) > MAX_TOOL_CHARS:
        raise ApiError(
            400,
            f"tools have more than {MAX_TOOL_CHARS:,} characters; offer fewer.",
            "invalid_value",
            param="tools",
        )
    return Tools(tuple(tools), choice, chosen, parallel)


def _value_of(call: ToolCall) -> Value:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _check_audio(body: ChatBody) -> None:
    if body.audio is not None and not body.speaks:
        raise ApiError(
            400,
            'audio is for spoken answers; send "modalities": ["text", "audio"] with it.',
            "invalid_value",
            param="audio",
        )
    if body.stream and body.audio and body.audio.format not in ("pcm16", "pcm"):
        raise ApiError(
            400,
            'A stream carries samples; send "format": "pcm16", or leave "stream" out.',
            "invalid_value",
            param="audio.format",
        )
    if body.stream_options and not body.stream:
        raise ApiError(
            400,
            'stream_options is for streams; send "stream": true with it.',
            "invalid_value",
            param="stream_options",
        )


def _sampling(server: Server, body: ChatBody) -> Sampling:
    """The checkpoint's own, with what the body says of it for both channels."""
    sampling = server.sampling(body.seed)
    said = {"temperature": body.temperature, "top_p": body.top_p}
    said = {name: value for name, value in said.items() if value is not None}
    limits = (body.max_completion_tokens, body.max_tokens, sampling.max_rows)
    return dataclasses.replace(
        sampling,
        text=dataclasses.replace(sampling.text, **said),
        audio=dataclasses.replace(sampling.audio, **said),
        max_rows=next(limit for limit in limits if limit is not None),
    )


async def _messages(
    server: Server, memory: Memory, mode: Mode, place: int, said: object
) -> list[Message]:
    """A message of the body; one of several recordings, or of text beside them, is several."""
    try:
        if isinstance(said, UserMessage):
            return [Message("user", content) for content in await _asked(server, said)]
        if isinstance(said, AssistantMessage):
            return [_answered(memory, mode, said)]
        assert isinstance(said, ToolMessage)
        text = _joined(said.content)
        if len(text) > MAX_TOOL_CHARS:
            raise ApiError(
                400, f"It has more than {MAX_TOOL_CHARS:,} characters; send less.", "invalid_value"
            )
        return [Message("tool", Text(text), call_id=said.tool_call_id)]
    except MossError as error:
        raise of_moss(error, f"messages[{place}]") from None
    except ApiError as error:
        error.param = f"messages[{place}]"
        raise


async def _asked(server: Server, said: UserMessage) -> list[Content]:
    if isinstance(said.content, str):
        return [Text(said.content)]
    found: list[Content] = []
    texts: list[TextPart] = []
    for part in said.content:
        if isinstance(part, TextPart):
            texts.append(part)
            continue
        if texts:
            found.append(Text(_joined(texts)))
        texts = []
        found.append(await heard(server, from_base64(part.input_audio.data)))
    return [*found, Text(_joined(texts))] if texts else found


def _answered(memory: Memory, mode: Mode, said: AssistantMessage) -> Message:
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in said.tool_calls or ()
    )
    if said.audio is not None:
        return Message("assistant", memory.find(said.audio.id).content(mode), calls)
    if said.content is None and not calls:
        raise ApiError(400, "An earlier answer needs its content, or its audio.", "missing_field")
    return Message("assistant", Text(_joined(said.content or "")), calls)


def _is_spoken(said: object) -> bool:
    """Whether a message ends with a recording."""
    return (
        isinstance(said, UserMessage)
        and isinstance(said.content[-1:], list)
        and isinstance(said.content[-1], AudioPart)
    )


def _seconds(server: Server, content: Content) -> float:
    """The length of a recording; 0 for all else."""
    if not isinstance(content, Speech):
        return 0.0
    known_s = content.transcript.seconds if content.transcript else 0.0
    samples = len(content.codes) * server.info.samples_per_code
    return max(known_s, samples / server.info.sample_rate_hz)


def _joined(content: object) -> str:
    """Text, or text parts, as one text."""
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    return "\n".join(part.text for part in content)
