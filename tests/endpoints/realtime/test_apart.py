"""Responses apart from the conversation, and those to an `input` of their own, as OpenAI's own
client for Python asks for them."""

from __future__ import annotations

import pytest

from moss_engine.api.request import Speech, Text
from tests.endpoints.realtime.realtime_support import (
    MANUAL,
    QUESTION,
    ask,
    base64_of,
    pcm_of,
    respond,
    until,
    write,
)
from tests.ui.page_support import Script, soon

TOPIC = {
    "conversation": "none", "metadata": {"topic": "classification"},
    "output_modalities": ["text"], "instructions": "Say what this is about.",
}  # fmt: skip


def message(text: str, role: str = "user") -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def contents(request) -> list:
    return [message.content for message in request.messages]


async def test_the_conversation_stays_as_it_was(connect, service):
    async with connect(MANUAL) as connection:
        await ask(connection, "How are you?", response={"output_modalities": ["text"]})
        events = await respond(connection, response=TOPIC)
        kinds = [event.type for event in events]
        assert kinds[0] == "response.created" and "response.output_text.done" in kinds
        assert not [kind for kind in kinds if kind.startswith("conversation.")]
        for told in (events[0].response, events[-1].response):
            assert (told.conversation_id, told.metadata) == (None, TOPIC["metadata"])
        assert events[-1].response.output[0].content[0].text == TOPIC["instructions"]
        user, answer, asked = contents(service.requests[-1])
        assert (user, asked) == (Text("How are you?"), Text(TOPIC["instructions"]))
        await connection.conversation.item.retrieve(item_id=events[-1].response.output[0].id)
        assert (await until(connection, "error"))[-1].error.code == "item_not_found"
        done = (await ask(connection, "And now?"))[-1].response
        assert done.conversation_id and done.metadata is None
        assert contents(service.requests[-1]) == [user, answer, Text("And now?")]


async def test_an_input_is_answered_instead_of_the_conversation(connect, service):
    async with connect(MANUAL) as connection:
        name = await write(connection, "It is sunny.")
        await write(connection, "Tell me a joke.")
        reference = {"type": "item_reference", "id": name}
        said = [reference, message("So it is.", "assistant"), message("Will it rain?")]
        for apart in ({"conversation": "none"}, {}):
            asked = {"input": said, "instructions": "Be brief.", **apart}
            done = (await respond(connection, response=asked))[-1].response
            assert done.status == "completed" and (done.conversation_id is None) == bool(apart)
            assert contents(service.requests[-1]) == [
                Text("Be brief."), Text("It is sunny."), Text("So it is."), Text("Will it rain?")
            ]  # fmt: skip
        await respond(connection, response={"input": [], "instructions": "Say hello."})
        assert contents(service.requests[-1]) == [Text("Say hello.")]
        sound = {"type": "input_audio", "audio": base64_of(QUESTION)}
        recording = {"type": "message", "role": "user", "content": [sound]}
        events = await respond(connection, response={"input": [recording], "conversation": "none"})
        assert not [event.type for event in events if "transcription" in event.type]
        (heard,) = contents(service.requests[-1])
        assert isinstance(heard, Speech) and len(pcm_of(events)) > 0


@pytest.mark.parametrize(
    ("said", "code", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_not_found", "response.input[0]"),
        ({"input": [message("")]}, "E_TEXT_EMPTY", "response.input[0]"),
    ],
)
async def test_what_is_wrong_with_one_is_named(connect, said, code, param):
    async with connect(MANUAL) as connection:
        await connection.send({"type": "response.create", "event_id": "e", "response": said})
        error = (await until(connection, "error"))[-1].error
        assert (error.code, error.param, error.event_id) == (code, param, "e")


async def test_some_are_made_beside_the_conversations_own(connect, service):
    service.script = Script(seconds=30.0, first_s=0.02, rtf=1.0)
    async with connect(MANUAL) as connection:
        await write(connection)
        await connection.response.create()
        first = (await until(connection, "response.created"))[-1].response.id
        names = []
        for _ in range(9):
            await connection.response.create(response={**TOPIC, "output_modalities": ["audio"]})
            told = (await until(connection, "response.created", "error"))[-1]
            names.append(told.response.id if told.type == "response.created" else told.error.code)
        assert names.pop() == "too_many_responses" and len({first, *names}) == 9
        assert await soon(lambda: len(service.open) == 9)
        for name in (*names, None):
            await connection.response.cancel(**({"response_id": name} if name else {}))
            done = (await until(connection, "response.done"))[-1].response
            assert (done.id, done.status) == (name or first, "cancelled")
    assert await soon(lambda: not service.open)
