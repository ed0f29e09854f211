"""The items of a realtime conversation, in order, and how they become messages of a request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

from moss_engine.api.errors import InputError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.modes import Mode
from moss_engine.api.request import Content, Message, Speech, Text, ToolCall, check_text
from moss_engine.audio.playback import Answered
from moss_engine.endpoints.errors import ApiError, of_moss
from moss_engine.endpoints.functions import add_call

MAX_ITEMS = 512
Role = Literal["system", "user", "assistant", "tool"]


def new_item_id() -> str:
    return f"item_{secrets.token_hex(12)}"


@dataclass(eq=False)
class Item(Answered):
    """Something typed, said or answered. `speech` is a recording that was understood. `call` is a
    function that was called; with the role `tool` the item is its result."""

    id: str
    role: Role
    spoken: bool
    status: str = "completed"
    text: str = ""
    speech: Speech | None = None
    not_understood: str = ""
    call: ToolCall | None = None

    @property
    def pending(self) -> bool:
        """Whether it is a recording that is not understood yet."""
        heard = self.speech is not None or self.not_understood
        return self.role == "user" and self.spoken and not heard

    def value(self) -> dict[str, Any]:
        """The item as clients are told of it."""
        value = {"id": self.id, "object": "realtime.item", "status": self.status}
        if self.call is not None:
            value["call_id"] = self.call.id
            if self.role == "tool":
                return {**value, "type": "function_call_output", "output": self.text}
            call = {"name": self.call.name, "arguments": self.call.arguments}
            if self.status == "in_progress":
                call["arguments"] = ""
            return {**value, "type": "function_call", **call}
        if self.role == "assistant":
            part: dict[str, Any] = {"type": "output_text", "text": self.text}
            if self.spoken:
                part = {"type": "output_audio", "transcript": self.transcript}
        elif self.spoken:
            heard = self.speech.transcript if self.speech else None
            part = {"type": "input_audio", "transcript": heard.text if heard else None}
        else:
            part = {"type": "input_text", "text": self.text}
        content = [] if self.status == "in_progress" else [part]
        return {**value, "type": "message", "role": self.role, "content": content}

    def content(self, mode: Mode) -> Content | None:
        """As a mode takes it; None where nothing of it was heard."""
        if self.role != "assistant":
            return self.speech if self.spoken else Text(self.text)
        return self.as_history(None if self.spoken else self.text, through_text=mode.through_text)


def typed(item_id: str, role: Role, text: str, info: ServiceInfo) -> Item:
    """An item of text; raises ApiError if every later answer would be refused because of it. An
    answer of white space becomes an empty one."""
    text = text if role != "assistant" or text.strip() else ""
    if role != "assistant" or text:
        try:
            check_text(text, info.max_text_chars)
        except InputError as error:
            raise of_moss(error, "item.content") from None
    return Item(item_id, role, False, text=text)


@dataclass
class Conversation:
    """Items in their order. All methods raise ApiError for an unknown id."""

    items: list[Item] = field(default_factory=list)

    def find(self, item_id: str, param: str = "item_id") -> Item:
        for item in self.items:
            if item.id == item_id:
                return item
        raise ApiError(
            400, f"No item has the id {item_id[:64]!r}; name one of this conversation.",
            "item_not_found", param=param,
        )  # fmt: skip

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Put an item behind another one (None: the last; "root": at the beginning); returns the id
        of the item before it."""
        if len(self.items) >= MAX_ITEMS:
            raise ApiError(
                400, f"The conversation has {MAX_ITEMS} items; delete some, or begin a new one.",
                "too_many_items",
            )  # fmt: skip
        if any(other.id == item.id for other in self.items):
            raise ApiError(
                400, f"An item has the id {item.id[:64]!r} already; give every item its own.",
                "item_exists", param="item.id",
            )  # fmt: skip
        place = len(self.items)
        if after is not None:
            known = None if after == "root" else self.find(after, "previous_item_id")
            place = 0 if known is None else self.items.index(known) + 1
        self.items.insert(place, item)
        return self.items[place - 1].id if place else None

    def before(self, item: Item) -> str | None:
        place = self.items.index(item)
        return self.items[place - 1].id if place else None

    def delete(self, item_id: str) -> None:
        self.items.remove(self.find(item_id))

    def last_of_user(self) -> Item | None:
        """The last thing that was said, or given as a function's result."""
        asked = (item for item in reversed(self.items) if item.role in ("user", "tool"))
        return next(asked, None)

    @property
    def is_asked(self) -> bool:
        """Whether something was said since the last answer."""
        said = [item.role for item in self.items if item.role != "system"]
        return bool(said) and said[-1] != "assistant"

    def last_said(self) -> Item:
        """The item to be answered; recordings that are not understood yet do not count. Raises
        ApiError if there is none, or if nothing since the last answer could be understood."""
        said = [item for item in self.items if item.role in ("user", "tool") and not item.pending]
        if not said:
            raise ApiError(
                400, "Nothing was said yet; create a user item, or commit audio, first.",
                "nothing_said",
            )  # fmt: skip
        last = said[-1]
        asked = [item for item in said if not item.not_understood]
        answers = [place for place, item in enumerate(self.items) if item.role == "assistant"]
        behind = self.items[answers[-1] + 1 if answers else 0 :]
        if not asked or (last.not_understood and asked[-1] not in behind):
            raise ApiError(400, last.not_understood, "nothing_said")
        return asked[-1]

    def messages(self, mode: Mode, instructions: str, instead: str = "") -> tuple[Message, ...]:
        """Everything up to the last thing that the user said; or everything, and then `instead` as
        the user's words. A system turn only where the mode takes one."""
        upto = len(self.items) if instead else self.items.index(self.last_said()) + 1
        systems = [item.text for item in self.items[:upto] if item.role == "system"]
        system = "\n".join(text for text in (instructions, *systems) if text)
        found: list[Message] = []
        for item in self.items[:upto]:
            if item.role == "system" or item.not_understood:
                continue
            if item.call is None:
                content = item.content(mode)
                if content and (found or item.role == "user"):  # who asks begins
                    found.append(Message(item.role, content))
            elif item.role == "tool":
                found.append(Message("tool", Text(item.text), call_id=item.call.id))
            else:
                add_call(found, item.call)
        if instead:
            found.append(Message("user", Text(instead)))
        if system and mode.own_system:
            found.insert(0, Message("system", Text(system)))
        return tuple(found)
