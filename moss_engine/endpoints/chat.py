"""POST /v1/chat/completions: a conversation, in text or speech, is answered in text or speech."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, Tag

from moss_engine.api.errors import AudioLongError, MossError, TextEmptyError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Called,
    Event,
    Finished,
    FinishReason,
    TextDelta,
)
from moss_engine.api.modes import Mode
from moss_engine.api.request import Content, Message, Request, Speech, Text, ToolCall
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import (
    MAX_PARTS,
    OpenBody,
    Rows,
    Seed,
    TextPart,
    Voice,
    Words,
    joined,
    told_by,
    without_effect,
)
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.functions import (
    MAX_CALLS,
    AnyChoice,
    FunctionName,
    FunctionTools,
    Returned,
    offered,
    value_of,
)
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, Usage, answered, server_sent
from moss_engine.endpoints.server import Server, with_system
from moss_engine.endpoints.sound import heard, pcm_bytes, whole_file

MAX_MESSAGES = 512


class Recording(OpenBody):
    """`data` is base64 of a sound file, whose format is found out from its first bytes."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aiff", "m4a", "mp4", "webm"] = "wav"


class AudioPart(OpenBody):
    type: Literal["input_audio"]
    input_audio: Recording


UserPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[AudioPart, Tag("<input_audio>")], told_by("type")
]
UserParts = Annotated[list[UserPart], Field(min_length=1, max_length=MAX_PARTS)]
Asked = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[UserParts, Tag("<parts>")], told_by("type")
]


class SystemMessage(OpenBody):
    role: Literal["system", "developer"]
    content: Words


class UserMessage(OpenBody):
    role: Literal["user"]
    content: Asked


class EarlierAudio(OpenBody):
    """An answer's audio as it was sent; only the id is read."""

    id: str
    data: str | None = None
    expires_at: int | None = None
    transcript: str | None = None


class FunctionCall(OpenBody):
    name: FunctionName
    arguments: str


class EarlierCall(OpenBody):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(OpenBody):
    """An earlier answer: its words, the id of its audio, or the functions that it called."""

    role: Literal["assistant"]
    content: Words | None = None
    audio: EarlierAudio | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MAX_CALLS)] | None = None
    function_call: None = None


class ToolMessage(OpenBody):
    """The result of a function."""

    role: Literal["tool"]
    tool_call_id: Annotated[str, Field(min_length=1)]
    content: Returned


AnyMessage = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    told_by("role"),
]


class AudioOut(OpenBody):
    voice: Voice | None = None
    format: Literal["wav", "pcm", "pcm16", "flac", "mp3", "opus"] | None = None


class StreamOptions(OpenBody):
    include_usage: bool | None = None


class ResponseFormat(OpenBody):
    type: Literal["text"]


class AnswerBody(OpenBody):
    """Fields that chat completions and responses have in common. Those of OpenAI's that are not
    declared are accepted without effect, unless ignoring them would make the answer wrong."""

    model: str
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool | None = None

    @property
    def speaks(self) -> bool:
        """Whether the answer is spoken."""
        return False


def _unless_all(max_tokens: Any) -> Any:
    """LM Studio's examples send -1 for no limit."""
    return None if max_tokens == -1 else max_tokens


class ChatBody(AnswerBody):
    """`mode` is our own: one of the checkpoint's modes, in place of what the modalities ask for."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    modalities: Annotated[tuple[Literal["text", "audio"], ...], Field(min_length=1)] | None = None
    audio: AudioOut | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    max_completion_tokens: Rows | None = None
    max_tokens: Annotated[Rows | None, BeforeValidator(_unless_all)] = None
    tools: FunctionTools | None = None
    tool_choice: AnyChoice | None = None
    mode: str | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    response_format: ResponseFormat | None = None
    functions: None = None

    @property
    def speaks(self) -> bool:
        return "audio" in (self.modalities or ())


SAMPLED = (
    "temperature", "top_p", "seed", "max_completion_tokens", "max_tokens", "max_output_tokens",
)  # fmt: skip
Value = dict[str, Any]


class Answer:
    """Makes chunks, as server-sent events, or one whole completion."""

    def __init__(self, server: Server, memory: Memory, body: ChatBody):
        self.usage = Usage(server.info.ids)
        self._rate_hz = server.info.sample_rate_hz
        self._memory = memory
        self._body = body
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": server.model,
        }
        self._audio_id = memory.new_id()
        self._untold = {"id": self._audio_id}
        self._words: list[str] = []
        self._calls: list[ToolCall] = []
        self._chunks: list[np.ndarray] = [np.empty(0, np.float32)]
        self._sounds = False

    async def take(self, event: Event) -> AsyncIterator[bytes]:
        delta: Value | None = None
        if isinstance(event, Accepted):
            delta = {"role": "assistant", "content": None if self._body.speaks else ""}
        elif isinstance(event, TextDelta):
            self._words.append(event.text)
            delta = self._spoken(transcript=event.text) or {"content": event.text}
        elif isinstance(event, Called):
            delta = {"tool_calls": [{"index": len(self._calls), **value_of(event.call)}]}
            self._calls.append(event.call)
        elif isinstance(event, AudioChunk):
            self._sounds = True
            if not self._body.stream and self._body.speaks:
                self._chunks.append(event.samples)
            delta = self._spoken(data=base64.b64encode(pcm_bytes(event.samples)).decode())
        elif isinstance(event, Finished):
            yield await self._last(event)
        if self._body.stream and delta is not None:
            yield self._chunk(delta)

    def failed(self, error: ApiError) -> bytes:
        return server_sent({"error": error.value()})

    async def _last(self, over: Finished) -> bytes:
        """The end of a stream, or the whole completion."""
        if self._sounds and self._body.speaks:
            self._memory.keep(self._audio_id, over.rows, "".join(self._words).strip())
        why = "length" if over.reason is FinishReason.LENGTH else "stop"
        why = "tool_calls" if self._calls else why
        if not self._body.stream:
            choice = {"index": 0, "message": await self._message(), "logprobs": None}
            choices = [{**choice, "finish_reason": why}]
            whole = {"object": "chat.completion", "choices": choices, "usage": self._usage()}
            return json.dumps({**self._head, **whole}, ensure_ascii=False).encode()
        end = (self._sounds and self._spoken(expires_at=self._memory.expires_at())) or {}
        parts = [self._chunk(end, why)]
        if self._body.stream_options and self._body.stream_options.include_usage:
            chunk = {"object": "chat.completion.chunk", "choices": [], "usage": self._usage()}
            parts.append(server_sent({**self._head, **chunk}))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    def _spoken(self, **audio: Any) -> Value | None:
        """The audio of a delta; its id is sent once, as clients concatenate strings."""
        if not self._body.speaks:
            return None
        untold, self._untold = self._untold, {}
        return {"audio": {**untold, **audio}}

    def _chunk(self, delta: Value, why: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": why}
        chunk = {"object": "chat.completion.chunk", "choices": [choice]}
        return server_sent({**self._head, **chunk})

    async def _message(self) -> Value:
        words = "".join(self._words).strip()
        message: Value = {"role": "assistant", "content": words, "refusal": None}
        if self._calls:
            message["content"] = words or None
            message["tool_calls"] = [value_of(call) for call in self._calls]
        if not self._body.speaks or not (self._sounds or not self._calls):
            return message
        name = (self._body.audio and self._body.audio.format) or "wav"
        samples = np.concatenate(self._chunks)
        data = await whole_file(samples, "pcm" if name == "pcm16" else name, self._rate_hz)
        audio = {
            "id": self._audio_id,
            "data": base64.b64encode(data).decode(),
            "expires_at": self._memory.expires_at(),
            "transcript": words,
        }
        return {**message, "content": None, "audio": audio}

    def _usage(self) -> Value:
        """Rows by channel, as OpenAI counts tokens."""
        usage = self.usage
        return {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.sampled,
            "total_tokens": usage.total,
            "prompt_tokens_details": usage.asked,
            "completion_tokens_details": {**usage.answered, "reasoning_tokens": 0},
        }


MAX_HEARD_S = 600.0
"""Sound of all recordings in one call: small files may hold hours of silence, all of it
processed."""


async def complete(server: Server, memory: Memory, body: ChatBody, caller: Caller) -> Streamed:
    """The response; raises ApiError for what can be refused at once."""
    server.check_model(body.model)
    _check_audio(server, body)
    answer, ignored = Answer(server, memory, body), without_effect(body)

    async def asked() -> Request:
        spoken = _is_spoken(body.messages[-1])
        if body.mode is None:
            mode = server.mode_for(spoken, speaks=body.speaks)
        else:
            output = "speech" if body.speaks else None
            mode = server.mode(body.mode, "speech" if spoken else "text", output)
        messages = heeded(
            body, mode, await _conversation(server, memory, mode, body), ignored, "system"
        )
        functions = [tool.function for tool in body.tools or ()]
        tools = offered(functions, body.tool_choice, parallel=body.parallel_tool_calls)
        max_rows = body.max_completion_tokens or body.max_tokens
        sampling = server.sampling(body.seed, body.temperature, body.top_p, max_rows)
        voice = body.audio.voice if body.audio else None
        return server.request(caller, messages, mode, sampling, voice=voice, tools=tools)

    media_type = EVENT_STREAM if body.stream else "application/json"
    return Streamed(answered(server, caller, answer, asked, "messages"), media_type, ignored)


def heeded(
    body: AnswerBody, mode: Mode, messages: list[Message], ignored: list[str], system: str
) -> tuple[Message, ...]:
    """The messages that the mode can use. Fields without effect in it are added to `ignored`, and a
    system turn by the name `system`. Raises TextEmptyError where nothing is left to answer."""
    if mode.through_text and not body.speaks:  # nothing is sampled here
        given = (name for name in SAMPLED if name in type(body).model_fields)
        ignored += [name for name in given if getattr(body, name) is not None]
    if messages and messages[0].role == "system" and not mode.own_system:  # the mode has its own
        ignored.append(system)
        messages = messages[1:]
    if not messages:
        raise TextEmptyError("There is no message to be answered; send one of the user.")
    return tuple(messages)


async def _conversation(
    server: Server, memory: Memory, mode: Mode, body: ChatBody
) -> list[Message]:
    """The messages, with those of the system joined into one. Raises ApiError or a MossError."""
    system: list[str] = []
    messages: list[Message] = []
    heard_s = 0.0
    for place, said in enumerate(body.messages):
        if isinstance(said, SystemMessage):
            system.append(joined(said.content))
            continue
        try:
            found = await _messages(server, memory, mode, said)
        except MossError as error:
            raise of_moss(error, f"messages[{place}]") from None
        except ApiError as error:
            error.param = f"messages[{place}]"
            raise
        messages += found
        heard_s += sum(_seconds(server, message.content) for message in found)
        if heard_s > MAX_HEARD_S:
            raise AudioLongError(
                f"The conversation's recordings are longer than {MAX_HEARD_S:g} s in all; send "
                "the words of the earlier ones."
            )
    return with_system(messages, system)


def _check_audio(server: Server, body: ChatBody) -> None:
    if body.audio is not None and body.audio.voice is not None:
        server.check_voice(body.audio.voice, "audio.voice")
    param = sentence = ""
    if body.audio is not None and not body.speaks:
        param = "audio"
        sentence = 'audio is for spoken answers; send "modalities": ["text", "audio"] with it.'
    elif body.stream and body.audio and body.audio.format not in (None, "pcm16", "pcm"):
        param = "audio.format"
        sentence = 'A stream carries samples; send "format": "pcm16", or leave "stream" out.'
    elif body.stream_options and not body.stream:
        param = "stream_options"
        sentence = 'stream_options is for streams; send "stream": true with it.'
    if sentence:
        raise ApiError(400, sentence, "invalid_value", param=param)


async def _messages(server: Server, memory: Memory, mode: Mode, said: object) -> list[Message]:
    """The messages for one of the body: each recording, and text beside it, is one of its own."""
    if isinstance(said, UserMessage):
        return [Message("user", content) for content in await _asked(server, said)]
    if isinstance(said, AssistantMessage):
        return [_answered(memory, mode, said)]
    assert isinstance(said, ToolMessage)
    return [Message("tool", Text(joined(said.content)), call_id=said.tool_call_id)]


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
            found.append(Text(joined(texts)))
        texts = []
        found.append(await heard(server, part.input_audio.data))
    return [*found, Text(joined(texts))] if texts else found


def _answered(memory: Memory, mode: Mode, said: AssistantMessage) -> Message:
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in said.tool_calls or ()
    )
    if said.audio is not None:
        return Message("assistant", memory.find(said.audio.id).content(mode), calls)
    if said.content is None and not calls:
        raise ApiError(400, "An earlier answer needs its content, or its audio.", "missing_field")
    return Message("assistant", Text(joined(said.content or "")), calls)


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
