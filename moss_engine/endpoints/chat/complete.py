"""POST /v1/chat/completions: a conversation, in text or speech, is answered in text or speech."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing

from moss_engine.api.errors import AudioLongError, MossError
from moss_engine.api.modes import Mode
from moss_engine.api.request import Content, Message, Request, Sampling, Speech, Text
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.chat.fields import AssistantMessage, AudioPart, ChatBody, UserMessage
from moss_engine.endpoints.chat.reply import Answer
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.hearing import from_base64, heard
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, told
from moss_engine.endpoints.server import Server

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
