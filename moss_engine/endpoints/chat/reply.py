"""A reply's events as chat completions: whole, or chunk by chunk."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

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
from moss_engine.api.request import Request
from moss_engine.api.tokens import Modality
from moss_engine.endpoints.chat.fields import ChatBody
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.memory import Memory
from moss_engine.endpoints.replies import server_sent
from moss_engine.endpoints.server import Server, num_codes
from moss_engine.endpoints.sound import pcm_bytes, whole_file

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
