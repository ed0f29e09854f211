"""Functions that the chat server may call: as programs offer them, in both of OpenAI's shapes,
their calls and results, and as a request takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag

from moss_engine.api.request import Message, Text, Tool, ToolCall, Tools
from moss_engine.endpoints.bodies import OpenBody, TextPart, Words, joined, told_by
from moss_engine.endpoints.errors import ApiError

MAX_TOOLS = 128
MAX_CALLS = 64
MAX_TOOL_CHARS = 256 * 1024
"""Longest description of all functions together, and longest result of one."""
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


ItemName = Annotated[str, Field(min_length=1, max_length=512)]
"""A program's name for an item of a conversation."""


class Function(OpenBody):
    """`parameters` is a JSON Schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfFunctions(OpenBody):
    """The only kind of tool. As a base class its field is checked first, before others that a
    different kind of tool lacks."""

    type: Literal["function"]


class FlatTool(Function, OfFunctions):
    """As responses and realtime sessions offer it."""


class FunctionTool(OfFunctions):
    """As a chat completion offers it."""

    function: Function


class Chosen(OpenBody):
    name: FunctionName


class FlatChoice(Chosen, OfFunctions):
    """As responses and realtime sessions name it."""


class FunctionChoice(OfFunctions):
    function: Chosen


FlatTools = Annotated[list[FlatTool], Field(max_length=MAX_TOOLS)]
FunctionTools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)]
How = Annotated[Literal["none", "auto", "required"], Tag("<text>")]
AnyFlatChoice = Annotated[How | Annotated[FlatChoice, Tag("<function>")], told_by("type")]
AnyChoice = Annotated[How | Annotated[FunctionChoice, Tag("<function>")], told_by("type")]


def _within_limit(words: str | list[TextPart]) -> str | list[TextPart]:
    if len(joined(words)) > MAX_TOOL_CHARS:
        raise ValueError(f"{MAX_TOOL_CHARS:,} characters at most")
    return words


Returned = Annotated[Words, AfterValidator(_within_limit)]


class CallItem(OpenBody):
    """A call of a function, as in responses and realtime sessions."""

    id: ItemName | None = None
    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    arguments: Annotated[str, Field(max_length=MAX_TOOL_CHARS)]

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.name, self.arguments)


class OutputItem(OpenBody):
    """The result of a function."""

    id: ItemName | None = None
    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Returned


def add_call(messages: list[Message], call: ToolCall) -> None:
    """Add a call to the answer before it, or to a new one without words."""
    if not messages or messages[-1].role != "assistant":
        messages.append(Message("assistant", Text("")))
    messages[-1] = replace(messages[-1], calls=(*messages[-1].calls, call))


def offered(
    functions: Sequence[Function],
    choice: str | FlatChoice | FunctionChoice | None,
    *,
    parallel: bool | None = None,
) -> Tools | None:
    """What may be called, several at once unless `parallel` is False; None where nothing may.
    Raises ApiError."""
    if not functions or choice == "none":
        return None
    parallel = parallel is not False
    tools = []
    for said in functions:
        try:
            schema = json.dumps(said.parameters, allow_nan=False) if said.parameters else ""
        except ValueError:
            raise _wrong("tools hold a number that JSON has not; send numbers.") from None
        tools.append(Tool(said.name, said.description or "", schema))
    if sum(len(tool.description) + len(tool.parameters) for tool in tools) > MAX_TOOL_CHARS:
        raise _wrong(f"tools have more than {MAX_TOOL_CHARS:,} characters; offer fewer.")
    chosen = choice.function if isinstance(choice, FunctionChoice) else choice
    if isinstance(chosen, Chosen):
        return Tools(tuple(tools), "required", chosen.name, parallel)
    return Tools(tuple(tools), "required" if choice == "required" else "auto", "", parallel)


def _wrong(sentence: str) -> ApiError:
    return ApiError(400, sentence, "invalid_value", param="tools")


def value_of(call: ToolCall) -> dict[str, Any]:
    """A call as chat completions tell it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
