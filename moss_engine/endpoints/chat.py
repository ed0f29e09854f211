"""POST /v1/chat/completions: a conversation, in text or speech, is answered in text or speech."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, Tag

from moss_engine.api.errors import AudioLongError, MossError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.modes import Mode
from moss_engine.api.request import Content, Message, Request, Sampling, Speech, Text
from moss_engine.api.tokens import Modality
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import Body, Rows, told_by
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, server_sent, told
from moss_engine.endpoints.server import Server, num_codes
from moss_engine.endpoints.sound import from_base64, heard, pcm_bytes, whole_file

MAX_MESSAGES = 512
MAX_PARTS = 16


class TextPart(Body):
    type: Literal["text"]
    text: str


class Recording(Body):
    """`data` is base64 of a sound file, whose kind is told by its first bytes."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aiff"] = "wav"


class AudioPart(Body):
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


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Words


class UserMessage(Body):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[UserParts, Tag("<parts>")], told_by("type")
    ]


class EarlierAudio(Body):
    """As it was sent; only the id is read."""

    id: str
    data: str | None = None
    expires_at: int | None = None
    transcript: str | None = None


class AssistantMessage(Body):
    """An earlier answer: its words, or the id of its sound."""

    role: Literal["assistant"]
    content: Words | None = None
    audio: EarlierAudio | None = None
    refusal: None = None
    annotations: None = None
    tool_calls: None = None
    function_call: None = None


AnyMessage = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")],
    told_by("role"),
]


class AudioOut(Body):
    voice: str | None = None
    format: Literal["wav", "pcm", "pcm16", "flac", "mp3", "opus"] = "wav"


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class ResponseFormat(Body):
    type: Literal["text"]


class ChatBody(Body):
    """`mode` is ours: one of the checkpoint's modes, instead of the one that the modalities say."""

    model: str
    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    modalities: Annotated[tuple[Literal["text", "audio"], ...], Field(min_length=1)] = ("text",)
    audio: AudioOut | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_completion_tokens: Rows | None = None
    max_tokens: Rows | None = None
    mode: str | None = None
    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logprobs: Literal[False] | None = None
    store: Literal[False] | None = None
    stop: None = None
    tools: Annotated[list[None], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None

    @property
    def speaks(self) -> bool:
        return "audio" in self.modalities


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
        self._chunks: list[np.ndarray] = [np.empty(0, np.float32)]
        self._num_prompt_rows = self._num_cached_rows = self._num_audio_rows = 0

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
        elif isinstance(event, AudioChunk):
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
        if self._body.speaks:
            self._memory.keep(self._audio_id, self.over.rows, "".join(self._words).strip())
        usage = self._usage(request)
        if not self._body.stream:
            message = await self._message()
            choice = {"index": 0, "message": message, "logprobs": None}
            choices = [{**choice, "finish_reason": self._why()}]
            whole = {"object": "chat.completion", "choices": choices, "usage": usage}
            return json.dumps({**self._head, **whole}, ensure_ascii=False).encode()
        end = self._spoken(expires_at=self._memory.expires_at()) or {}
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
        if not self._body.speaks:
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
    answer = Answer(server, memory, body)
    media_type = EVENT_STREAM if body.stream else "application/json"
    return Streamed(_parts(server, memory, body, caller, answer), media_type)


async def _parts(
    server: Server, memory: Memory, body: ChatBody, caller: Caller, answer: Answer
) -> AsyncGenerator[bytes, None]:
    """Chunks as server-sent events, or one whole completion."""
    begun = False
    with caller.place():
        try:
            request = await make_request(server, memory, body, caller)
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


async def make_request(server: Server, memory: Memory, body: ChatBody, caller: Caller) -> Request:
    """Raises ApiError or a MossError for what cannot be served."""
    spoken = _is_spoken(body.messages[-1])
    if body.mode is None:
        mode = server.mode_for(spoken, speaks=body.speaks)
    else:
        output = "speech" if body.speaks else None
        mode = server.mode(body.mode, "speech" if spoken else "text", output)
    messages: list[Message] = []
    heard_s = 0.0
    for place, said in enumerate(body.messages):
        messages.append(await _message(server, memory, mode, place, said))
        heard_s += _seconds(server, messages[-1].content)
        if heard_s > MAX_HEARD_S:
            raise AudioLongError(
                f"The conversation's recordings are longer than {MAX_HEARD_S:g} s in all; send "
                "the words of the earlier ones."
            )
    if messages[0].role == "system" and not mode.own_system:
        raise ApiError(
            400,
            f"The mode {mode.name!r} of {server.model!r} has a fixed system turn; leave the "
            "system message out.",
            "fixed_system",
            param="messages[0]",
        )
    voice = body.audio.voice if body.audio else None
    return server.request(caller, tuple(messages), mode, _sampling(server, body), voice=voice)


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


async def _message(server: Server, memory: Memory, mode: Mode, place: int, said: object) -> Message:
    try:
        if isinstance(said, UserMessage):
            return Message("user", await _asked(server, said))
        if isinstance(said, AssistantMessage):
            return Message("assistant", _answered(memory, mode, said))
        return Message("system", Text(_joined(said.content)))  # type: ignore[attr-defined]
    except MossError as error:
        raise of_moss(error, f"messages[{place}]") from None
    except ApiError as error:
        error.param = f"messages[{place}]"
        raise


async def _asked(server: Server, said: UserMessage) -> Content:
    if isinstance(said.content, str):
        return Text(said.content)
    recordings = [part for part in said.content if isinstance(part, AudioPart)]
    if not recordings:
        return Text(_joined(said.content))
    if len(said.content) > 1:
        raise ApiError(
            400,
            "A message is either text or one recording; send them as messages of their own.",
            "mixed_message",
        )
    return await heard(server, from_base64(recordings[0].input_audio.data))


def _answered(memory: Memory, mode: Mode, said: AssistantMessage) -> Content:
    if said.audio is not None:
        return memory.find(said.audio.id).content(mode)
    if said.content is None:
        raise ApiError(400, "An earlier answer needs its content, or its audio.", "missing_field")
    return Text(_joined(said.content))


def _is_spoken(said: object) -> bool:
    parts = said.content if isinstance(said, UserMessage) else ""
    return any(isinstance(part, AudioPart) for part in parts)


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
