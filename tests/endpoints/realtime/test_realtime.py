"""The realtime WebSocket, as OpenAI's own client for Python uses it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus

from moss_engine.api.errors import AudioEmptyError, EngineFaultError
from moss_engine.api.request import Speech, Text
from moss_engine.audio.pcm import to_pcm16
from moss_engine.endpoints import access, server
from moss_engine.endpoints.access import Access
from moss_engine.endpoints.realtime import conversation, listening
from moss_engine.endpoints.realtime.connection import Connection, converse
from moss_engine.endpoints.server import Server
from tests.endpoints.endpoint_support import MODEL
from tests.endpoints.realtime.realtime_support import (
    MANUAL,
    QUESTION,
    ask,
    base64_of,
    pcm_of,
    respond,
    send,
    until,
    write,
)
from tests.ui.page_support import INFO, PATIENCE_S, RATE_HZ, FakeReply, Script, signal, soon

SPOKEN = [
    "response.created", "response.output_item.added", "conversation.item.added",
    "response.content_part.added", "response.output_audio.done",
    "response.output_audio_transcript.done", "response.content_part.done",
    "response.output_item.done", "conversation.item.done", "response.done",
]  # fmt: skip
RECORDED = {
    "id": "mine", "type": "message", "role": "user",
    "content": [{"type": "input_audio", "audio": base64_of(QUESTION)}],
}  # fmt: skip
NUM_FLOOD = 2000
TABLES = Path(__file__).parents[1] / "bodies.json"
WRONG = json.loads(TABLES.read_text(encoding="utf-8"))["wrong events"]
"""Events, which field is wrong, and a pattern of the sentence that says so."""


@pytest.mark.parametrize(
    ("melody", "vad"), [(Path("melody.onnx"), "semantic_vad"), (None, "server_vad")]
)
async def test_a_session_tells_what_holds(connect, monkeypatch, melody, vad):
    monkeypatch.setattr(server, "find_melody", lambda: melody)
    async with connect(waits=False) as connection:
        session = (await until(connection, "session.created"))[-1].session
        assert session.model == MODEL and session.output_modalities == ["audio"]
        assert session.audio.output.voice == "default"
        assert session.audio.input.turn_detection.type == vad
        await connection.session.update(session=MANUAL)
        session = (await until(connection, "session.updated"))[-1].session
        assert session.audio.input.turn_detection is None


async def test_a_written_question_is_answered_by_sound(connect, service):
    async with connect(MANUAL) as connection:
        asked = await write(connection)
        events = await respond(connection)
    deltas = {"response.output_audio.delta", "response.output_audio_transcript.delta"}
    assert [event.type for event in events if event.type not in deltas] == SPOKEN
    sent = to_pcm16(signal(1.2, seed=service.requests[-1].sampling.seed % 50))
    assert np.array_equal(pcm_of(events), sent)
    response, item = events[-1].response, events[-2].item
    assert response.status == "completed" and events[-2].previous_item_id == asked
    assert item.content[0].transcript.strip() == "How are you?"
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_token_details.audio_tokens > 0 and usage.input_token_details.cached_tokens
    assert service.requests[-1].mode == "chat"


async def test_a_question_is_answered_by_text(connect, service):
    async with connect({**MANUAL, "output_modalities": ["text"]}) as connection:
        events = await ask(connection, response={"metadata": {"mine": "1"}})
    assert events[-1].response.metadata == {"mine": "1"}
    words = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(words) == "How are you?" and service.requests[-1].mode == "write"
    assert events[-1].response.output[0].content[0].text == "How are you?"


async def test_audio_is_committed_by_hand(connect, service):
    async with connect(MANUAL) as connection:
        await send(connection, QUESTION)
        await connection.input_audio_buffer.commit()
        events = await until(connection, "conversation.item.done")
        assert [event.type for event in events] == [
            "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
        ]  # fmt: skip
        assert events[0].item_id == events[-1].item.id
        await respond(connection)
    wave, rate_hz = service.encoded[-1]
    assert rate_hz == RATE_HZ and np.array_equal(wave * 32768, QUESTION)
    request = service.requests[-1]
    assert request.mode == "listen" and isinstance(request.messages[-1].content, Speech)


async def test_a_response_is_cancelled(connect, service):
    service.script = Script(seconds=20.0, rtf=0.5)
    async with connect(MANUAL) as connection:
        await write(connection)
        await connection.response.create()
        await until(connection, "response.output_audio.delta")
        await connection.response.cancel()
        events = await until(connection, "response.done")
        response = events[-1].response
        assert response.status == "cancelled"
        assert response.status_details.reason == "client_cancelled"
        assert response.output[0].status == "incomplete"
        assert await soon(lambda: not service.open)
        await connection.response.cancel()
        error = (await until(connection, "error"))[-1].error
        assert error.code == "response_cancel_not_active"


async def test_what_was_not_heard_is_cut(connect, service):
    async with connect(MANUAL) as connection:
        item = (await ask(connection))[-1].response.output[0]

        async def cut(ms: int):
            await connection.conversation.item.truncate(
                item_id=item.id, content_index=0, audio_end_ms=ms
            )
            return (await until(connection, "conversation.item.truncated", "error"))[-1]

        assert (await cut(90)).audio_end_ms == 90
        assert "has 90 ms of answered sound" in (await cut(5000)).error.message
        assert (await cut(1)).audio_end_ms == 1
        await connection.conversation.item.retrieve(item_id=item.id)
        item = (await until(connection, "conversation.item.retrieved"))[-1].item
        assert item.content[0].transcript == ""


async def test_items_are_put_read_and_deleted(connect, service):
    async with connect(MANUAL) as connection:
        first = await write(connection, "One.")
        content = [{"type": "output_text", "text": "Two."}]
        item = {"id": "mine", "type": "message", "role": "assistant", "content": content}
        await connection.conversation.item.create(item=item, previous_item_id=first)
        assert (await until(connection, "conversation.item.done"))[-1].item.id == "mine"
        await write(connection, "Three.")
        await connection.conversation.item.retrieve(item_id="mine")
        item = (await until(connection, "conversation.item.retrieved"))[-1].item
        assert item.content[0].text == "Two."
        await respond(connection, response={"output_modalities": ["text"]})
        contents = [message.content for message in service.requests[-1].messages]
        assert contents == [Text("One."), Text("Two."), Text("Three.")]
        await connection.conversation.item.delete(item_id="mine")
        await until(connection, "conversation.item.deleted")
        await connection.conversation.item.delete(item_id="mine")
        assert (await until(connection, "error"))[-1].error.code == "item_not_found"


async def test_a_failure_is_the_response_s_status(connect, service):
    service.script = Script(error=EngineFaultError("It failed; start again."))
    async with connect(MANUAL) as connection:
        response = (await ask(connection))[-1].response
    assert response.status == "failed" and response.status_details.error.code == "E_ENGINE"


async def test_what_nobody_foresaw_ends_the_response_too(connect, service, monkeypatch):
    async def broken(*_: object) -> None:
        raise RuntimeError("a pipe burst")

    monkeypatch.setattr(service, "submit", broken)
    async with connect(MANUAL) as connection:
        response = (await ask(connection))[-1].response
        assert response.status == "failed" and "ask again" in response.status_details.error.message
        monkeypatch.undo()
        assert (await ask(connection))[-1].response.status == "completed"


async def test_noise_behind_an_answer_does_not_ask_again(connect, service, monkeypatch):
    async def not_understood(*_: object) -> tuple[int, ...]:
        raise AudioEmptyError("Nothing was heard; speak louder.")

    async with connect(MANUAL) as connection:
        await ask(connection)
        monkeypatch.setattr(service, "encode", not_understood)
        await send(connection, np.ones(9600, np.int16))
        await connection.input_audio_buffer.commit()
        await until(connection, "conversation.item.input_audio_transcription.failed")
        for _ in range(2):
            response = (await respond(connection))[-1].response
            assert response.status == "failed"
            assert response.status_details.error.code == "nothing_said"
            assert "speak louder" in response.status_details.error.message
        assert (await ask(connection))[-1].response.status == "completed"
    assert len(service.requests) == 2


def lingering_behind(told: str):
    """What tells a client of events, and is slow to go on behind those of one kind."""
    emit = Connection._emit

    async def lingering(self: Connection, kind: str, **fields: object) -> None:
        await emit(self, kind, **fields)
        if kind == told:
            await asyncio.sleep(0.3)

    return lingering


async def test_the_next_response_may_be_asked_for_as_soon_as_one_is_done(connect, monkeypatch):
    monkeypatch.setattr(Connection, "_emit", lingering_behind("response.done"))
    async with connect(MANUAL) as connection:
        await write(connection)
        for _ in range(2):
            await connection.response.create()
            over = (await until(connection, "response.done", "error"))[-1]
            assert over.type == "response.done" and over.response.status == "completed"


async def test_a_response_may_be_without_the_session_s_limits(connect, service):
    limits = {**MANUAL, "max_output_tokens": 20, "instructions": "Be brief."}
    async with connect(limits) as connection:
        events = await ask(connection, response={"max_output_tokens": "inf", "instructions": ""})
        assert events[-1].response.max_output_tokens == "inf"
        assert (await respond(connection))[-1].response.max_output_tokens == 20
    free, limited = service.requests
    assert free.sampling.max_rows > limited.sampling.max_rows == 20
    assert [message.role for message in free.messages] == ["user"]
    assert limited.messages[0].content == Text("Be brief.")


async def test_an_answer_without_room_for_its_item_is_stopped(connect, monkeypatch):
    stopped: list[str] = []
    monkeypatch.setattr(FakeReply, "cancel", lambda reply: stopped.append(reply.request_id))
    monkeypatch.setattr(conversation, "MAX_ITEMS", 1)
    async with connect(MANUAL) as connection:
        response = (await ask(connection))[-1].response
        assert response.status == "failed"
        assert response.status_details.error.code == "too_many_items"
        assert len(stopped) == 1


async def test_recordings_before_what_is_asked_are_waited_for(connect, service, monkeypatch):
    """Not those that come behind it."""
    waits = [threading.Event(), threading.Event()]
    asked = iter(waits)

    async def encode(wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        assert await soon(next(asked).is_set)
        return (1, 2)

    monkeypatch.setattr(service, "encode", encode)
    async with connect(MANUAL) as connection:
        await connection.conversation.item.create(item=RECORDED)
        await write(connection)
        await connection.response.create()
        await connection.conversation.item.create(item={**RECORDED, "id": "later"})
        await until(connection, "conversation.item.done")
        waits[0].set()
        assert (await until(connection, "response.done"))[-1].response.status == "completed"
        waits[1].set()
    recorded, written = [message.content for message in service.requests[0].messages]
    assert isinstance(recorded, Speech) and written == Text("How are you?")


async def test_no_more_recordings_wait_than_are_held(connect, slow_ears, monkeypatch):
    """Whoever deletes their items has room for others, whose sound is held all the same."""
    asked, may = slow_ears
    monkeypatch.setattr(listening, "MAX_WAITING", 2)
    async with connect(MANUAL) as connection:
        for _ in range(2):
            await connection.conversation.item.create(item=RECORDED)
            await connection.conversation.item.delete(item_id="mine")
        await connection.conversation.item.create(item=RECORDED)
        error = (await until(connection, "error"))[-1].error
        assert error.code == "E_BUSY" and len(asked) == 2
        may.set()
        assert (await ask(connection))[-1].response.status == "completed"


async def test_hanging_up_stops_the_reply_and_those_apart(connect, service):
    service.script = Script(seconds=20.0, rtf=0.5)
    async with connect(MANUAL) as connection:
        await write(connection)
        await connection.response.create()
        await until(connection, "response.output_audio.delta")
        await connection.response.create(response={"conversation": "none"})
        assert await soon(lambda: len(service.open) == 2)
    assert await soon(lambda: not service.open)
    assert len(service.cancelled) == 2


@pytest.mark.parametrize(("event", "param", "sentence"), WRONG)
async def test_what_is_wrong_is_named_and_the_session_goes_on(connect, event, param, sentence):
    async with connect(MANUAL) as connection:
        await connection.send({**event, "event_id": "mine"})
        error = (await until(connection, "error"))[-1].error
        assert error.param == param and error.event_id == "mine"
        assert re.search(sentence, error.message), error.message
        await write(connection)


async def test_who_leaves_at_once_leaves_nothing_behind(connect, caplog):
    for _ in range(10):
        async with connect(waits=False):
            pass
    async with connect(MANUAL):
        pass
    assert not [record for record in caplog.records if record.exc_info]


async def test_connections_are_counted_while_they_are_open(connect, monkeypatch):
    monkeypatch.setattr(access, "MAX_CONNECTIONS", 1)

    async def one() -> bool:
        try:
            async with connect():
                with pytest.raises(InvalidStatus) as refused:
                    async with connect():
                        pass
                assert refused.value.response.status_code == 429
                assert b"connections_exceeded" in refused.value.response.body
        except InvalidStatus:
            return False
        return True

    assert await one()
    for _ in range(100):  # the service hears a moment later that the first one is closed
        if await one():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("a place was never given back")


async def conversed(service, receive, send) -> None:
    """A session over a WebSocket of these two."""
    scope = {"type": "websocket", "headers": [], "query_string": b"", "subprotocols": []}
    server = Server(service, INFO, MODEL, Access(open_to_all=True))
    await asyncio.wait_for(converse(server, WebSocket(scope, receive, send)), PATIENCE_S)


async def test_who_vanishes_while_it_is_told_something_ends_the_session(service, monkeypatch):
    """The first word that does not arrive is one about a recording; then comes another event."""
    vanished = asyncio.Event()
    told: list[str] = []

    async def deaf(*_: object) -> tuple[int, ...]:
        raise AudioEmptyError("Nothing was heard; speak louder.")

    async def receive() -> dict[str, Any]:
        said = next(events)
        if said is None:
            await vanished.wait()
            said = clear
        return said

    async def send(message: dict[str, Any]) -> None:
        kind = json.loads(message["text"])["type"] if "text" in message else message["type"]
        if kind.endswith(".failed"):
            vanished.set()
        if vanished.is_set():
            raise OSError("the client is gone")
        told.append(kind)

    def event(**fields: Any) -> dict[str, Any]:
        return {"type": "websocket.receive", "text": json.dumps(fields)}

    clear = event(type="input_audio_buffer.clear")
    create = event(type="conversation.item.create", item=RECORDED)
    leave = {"type": "websocket.disconnect", "code": 1006}
    events = iter([{"type": "websocket.connect"}, create, None, clear, leave])
    monkeypatch.setattr(service, "encode", deaf)
    await conversed(service, receive, send)
    assert told[-1] == "conversation.item.done" and next(events, None) is None


async def test_who_vanishes_while_nothing_is_read_stops_the_reply(service, monkeypatch):
    """As its caller's other connections hold all that may be held."""
    monkeypatch.setattr("moss_engine.endpoints.realtime.connection.MAX_HELD", 1000)
    service.script = Script(seconds=20.0, rtf=0.5)
    append = {"type": "input_audio_buffer.append", "audio": "A" * 1000}
    create = {"type": "response.create"}
    texts = [{"type": "websocket.receive", "text": json.dumps(event)} for event in (create, append)]
    events = iter([{"type": "websocket.connect"}, *texts])

    async def receive() -> dict[str, Any]:
        return next(events)

    async def send(message: dict[str, Any]) -> None:
        if "response.output_audio.delta" in message.get("text", ""):
            raise OSError("the client is gone")

    await conversed(service, receive, send)
    assert len(service.cancelled) == 1 and next(events, None) is None


async def test_thousands_of_small_events_leave_everybody_else_their_turn(service):
    append = {"type": "input_audio_buffer.append", "audio": ""}
    flood = itertools.repeat({"type": "websocket.receive", "text": json.dumps(append)}, NUM_FLOOD)
    leave = {"type": "websocket.disconnect", "code": 1000}
    events = itertools.chain([{"type": "websocket.connect"}], flood, [leave])
    turns = itertools.count()

    async def receive() -> dict[str, Any]:
        return next(events)

    async def send(_: dict[str, Any]) -> None:
        """To nobody."""

    async def others() -> None:
        while next(turns) < NUM_FLOOD:
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    await conversed(service, receive, send)
    assert next(turns) > NUM_FLOOD / 2
    waiting.cancel()


async def test_many_talk_at_once_and_hear_their_events_in_order(connect, service):
    """As the tests of one connection do it."""
    service.script = Script(seconds=1.0, rtf=0.5)

    async def talk() -> list[str]:
        async with connect(MANUAL) as connection:
            return [event.type for event in await ask(connection)]

    deltas = {"response.output_audio.delta", "response.output_audio_transcript.delta"}
    for kinds in await asyncio.gather(*(talk() for _ in range(16))):
        assert [kind for kind in kinds if kind not in deltas] == SPOKEN
        assert kinds.count("response.output_audio.delta") == 5
    assert await soon(lambda: not service.open)
