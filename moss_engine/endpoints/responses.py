"""POST /v1/responses: a conversation is answered in text, as OpenAI's agents ask by default.

Nothing is kept: who goes on sends the whole conversation again.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from moss_engine.api.events import Accepted, Called, Event, Finished, FinishReason, TextDelta
from moss_engine.api.request import Message, Request, Text, ToolCall
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.bodies import OpenBody, Rows, Words, joined, told_by, without_effect
from moss_engine.endpoints.chat import MAX_MESSAGES, AnswerBody, ResponseFormat, heeded
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.functions import (
    AnyFlatChoice,
    CallItem,
    FlatTools,
    OutputItem,
    add_call,
    offered,
)
from moss_engine.endpoints.replies import EVENT_STREAM, Streamed, Usage, answered
from moss_engine.endpoints.server import Server, with_system

Value = dict[str, Any]


class MessageItem(OpenBody):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Words


class ReasoningItem(OpenBody):
    """Of another model; it is left out."""

    type: Literal["reasoning"]


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[OutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    told_by("type", "message"),
]
Items = Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]


class TextOptions(OpenBody):
    format: ResponseFormat | None = None


class ResponsesBody(AnswerBody):
    input: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[Items, Tag("<parts>")], told_by("type")
    ]
    instructions: str | None = None
    max_output_tokens: Rows | None = None
    tools: FlatTools | None = None
    tool_choice: AnyFlatChoice | None = None
    text: TextOptions | None = None
    previous_response_id: None = None
    conversation: None = None
    background: Literal[False] | None = None


async def respond(server: Server, body: ResponsesBody, caller: Caller) -> Streamed:
    """The response; raises ApiError for what can be refused at once."""
    server.check_model(body.model)
    ignored = without_effect(body)

    async def asked() -> Request:
        mode = server.mode_for(False, speaks=False)
        messages = heeded(body, mode, _conversation(body), ignored, "instructions")
        tools = offered(body.tools or (), body.tool_choice, parallel=body.parallel_tool_calls)
        sampling = server.sampling(None, body.temperature, body.top_p, body.max_output_tokens)
        return server.request(caller, messages, mode, sampling, tools=tools)

    answer, media_type = Answer(server, body), EVENT_STREAM if body.stream else "application/json"
    return Streamed(answered(server, caller, answer, asked, "input"), media_type, ignored)


def _conversation(body: ResponsesBody) -> list[Message]:
    """As messages, those of the system as one."""
    system = [body.instructions] if body.instructions else []
    messages: list[Message] = []
    said = body.input
    for item in [MessageItem(role="user", content=said)] if isinstance(said, str) else said:
        if isinstance(item, OutputItem):
            messages.append(Message("tool", Text(joined(item.output)), call_id=item.call_id))
        elif isinstance(item, CallItem):
            add_call(messages, item.call)
        elif isinstance(item, MessageItem) and item.role in ("user", "assistant"):
            messages.append(Message(item.role, Text(joined(item.content))))
        elif isinstance(item, MessageItem):
            system.append(joined(item.content))
    return with_system(messages, system)


class Answer:
    """Events, or one whole response."""

    def __init__(self, server: Server, body: ResponsesBody):
        self.usage = Usage(server.info.ids)
        self._model = server.model
        self._body = body
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created_s = int(time.time())
        self._message_id = f"msg_{secrets.token_hex(16)}"
        self._words: list[str] = []
        self._output: list[Value] = []
        self._over: Finished | None = None
        self._num_events = 0

    async def take(self, event: Event) -> AsyncIterator[bytes]:
        for value in self._told(event):
            if self._body.stream:
                yield self._sent(value)
        if isinstance(event, Finished) and not self._body.stream:
            yield json.dumps(self._value(), ensure_ascii=False).encode()

    def failed(self, error: ApiError) -> bytes:
        told = error.value()
        return self._sent({"type": "error", **{k: told[k] for k in ("code", "message", "param")}})

    def _value(self) -> Value:
        """The response as it is by now."""
        over = self._over
        cut = over is not None and over.reason is FinishReason.LENGTH
        asked = self._body.model_dump(include={"tools", "tool_choice"}, exclude_none=True)
        usage = {
            "input_tokens": self.usage.prompt,
            "input_tokens_details": {"cached_tokens": self.usage.cached, "cache_write_tokens": 0},
            "output_tokens": self.usage.sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.usage.total,
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_s,
            "status": "in_progress" if over is None else "incomplete" if cut else "completed",
            "model": self._model,
            "output": self._output,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self._body.instructions,
            "metadata": {},
            "parallel_tool_calls": self._body.parallel_tool_calls is not False,
            "temperature": self._body.temperature,
            "top_p": self._body.top_p,
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "usage": usage if over else None,
        }

    def _told(self, event: Event) -> Iterator[Value]:
        if isinstance(event, Accepted):
            yield {"type": "response.created", "response": self._value()}
            yield {"type": "response.in_progress", "response": self._value()}
        elif isinstance(event, TextDelta):
            if not self._words:
                message = {**self._message("in_progress"), "content": []}
                yield {"type": "response.output_item.added", "output_index": 0, "item": message}
                yield {**self._at("response.content_part.added"), "part": _part("")}
            self._words.append(event.text)
            yield {**self._at("response.output_text.delta"), "delta": event.text, "logprobs": []}
        elif isinstance(event, Called):
            yield from self._end_of_words()
            yield from self._called(event.call)
        elif isinstance(event, Finished):
            yield from self._end_of_words()
            self._over = event
            whole = self._value()
            yield {"type": f"response.{whole['status']}", "response": whole}

    def _end_of_words(self) -> Iterator[Value]:
        if not self._words or self._output:
            return
        text = "".join(self._words)
        yield {**self._at("response.output_text.done"), "text": text, "logprobs": []}
        yield {**self._at("response.content_part.done"), "part": _part(text)}
        message = {**self._message("completed"), "content": [_part(text)]}
        self._output.append(message)
        yield {"type": "response.output_item.done", "output_index": 0, "item": message}

    def _called(self, call: ToolCall) -> Iterator[Value]:
        place, item_id = len(self._output), f"fc_{secrets.token_hex(16)}"
        item = {"id": item_id, "type": "function_call", "call_id": call.id, "name": call.name}
        begun = {**item, "arguments": "", "status": "in_progress"}
        done = {**item, "arguments": call.arguments, "status": "completed"}
        at = {"item_id": item_id, "output_index": place}
        kind = "response.function_call_arguments"
        yield {"type": "response.output_item.added", "output_index": place, "item": begun}
        yield {"type": f"{kind}.delta", **at, "delta": call.arguments}
        yield {"type": f"{kind}.done", **at, "name": call.name, "arguments": call.arguments}
        self._output.append(done)
        yield {"type": "response.output_item.done", "output_index": place, "item": done}

    def _message(self, status: str) -> Value:
        return {"id": self._message_id, "type": "message", "role": "assistant", "status": status}

    def _at(self, kind: str) -> Value:
        return {"type": kind, "item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _sent(self, value: Value) -> bytes:
        value = {**value, "sequence_number": self._num_events}
        self._num_events += 1
        return f"event: {value['type']}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _part(text: str) -> Value:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
