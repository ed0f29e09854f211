"""Conversations by voice: recordings, mixed modes, and a history of what was heard, without a
browser between."""

from __future__ import annotations

import asyncio
import wave
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from moss_engine.api.errors import MossError, ParameterError
from moss_engine.api.request import Reply, Speech, Text
from moss_engine.api.service import hear
from moss_engine.api.tokens import Row, code_of, rows_until_code
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui import form
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.conversation import Conversation, Turn
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.handlers import Handlers
from tests.ui.page_support import CODE_SAMPLES, IDS, INFO, FakeService, Script, soon


@pytest.fixture
def service() -> FakeService:
    return FakeService(Script(seconds=1.0, first_s=0.01, rtf=0.02))


@pytest.fixture
def handlers(service, tmp_path) -> Handlers:
    ingest = AudioIngest(partial(hear, service), None, max_s=60.0)
    return Handlers(service, PageInfo.of(INFO), wav_folder=tmp_path, ingest=ingest)


async def say(handlers: Handlers, seconds: float = 0.5, level: float = 0.5) -> str:
    """The name of a recording."""
    pcm = np.full(round(seconds * RATE_HZ), round(level * 32767), "<i2").tobytes()
    microphone = handlers.ingest.open()
    microphone.begin(hands_free=False)
    return (await microphone.hear(pcm, answering=False, end=True)).utterance


def reply(handlers: Handlers, conversation: Conversation, **changes):
    values = {**form.defaults(handlers.facts), "new_seed": False, "seed": 7, **changes}
    return handlers.answer(values, form.run_name(values["run"]), conversation)


async def collect(stream) -> list[dict]:
    return [message async for message in stream]


async def listen(handlers: Handlers, conversation: Conversation, **changes) -> list[dict]:
    """A spoken question and its whole answer."""
    return await collect(
        reply(handlers, conversation, mode="listen", utterance=await say(handlers), **changes)
    )


async def test_a_recording_is_asked_as_its_codes_and_can_be_heard_again(handlers, service):
    conversation = Conversation(session_id="tab")
    await listen(handlers, conversation)
    assert service.requests[0].messages[-1].content == Speech((50,) * 7)
    chat = await handlers.entries(conversation)
    assert [entry["role"] for entry in chat] == ["user", "assistant"]
    assert chat[0]["text"] == "" and chat[1]["text"] == "7 codes were heard."
    with wave.open(chat[0]["clip"]["file"]["path"]) as file:
        assert (file.getframerate(), file.getnframes()) == (RATE_HZ, RATE_HZ // 2)


async def test_modes_mix_in_one_conversation_and_nothing_is_encoded_twice(handlers, service):
    conversation = Conversation(session_id="tab")
    await listen(handlers, conversation)
    await collect(reply(handlers, conversation, mode="chat", text="And typed?"))
    await collect(reply(handlers, conversation, mode="read", text="Read aloud has no history."))
    await listen(handlers, conversation)
    kinds = [
        [type(message.content) for message in request.messages] for request in service.requests
    ]
    assert kinds == [[Speech], [Speech, Reply, Text], [Text], [Speech, Reply, Text, Reply, Speech]]
    first, second = service.requests[1].messages, service.requests[3].messages
    assert second[:2] == first[:2] and second[2] == first[2]
    assert len(service.encoded) == 2, "a recording was encoded again"


async def test_the_history_holds_the_rows_as_they_were_sampled(handlers, service):
    conversation = Conversation(session_id="tab")
    shown = await listen(handlers, conversation)
    await listen(handlers, conversation)
    rows = service.requests[1].messages[1].content.rows
    assert [row.text if code_of(row, IDS) is None else ~row.audio for row in rows] == [
        shown_id for message in shown for shown_id in message["ids"]
    ]


async def test_a_conversation_may_bring_its_own_system_turn(handlers, service):
    await listen(handlers, Conversation(session_id="tab"), system=" Answer in one word. ")
    system, question = service.requests[0].messages
    assert (system.role, system.content) == (
        "system",
        Text(" Answer in one word. "),
    ) and question.role == "user"
    values = {**form.defaults(handlers.facts), "text": "Hello."}
    with pytest.raises(ParameterError, match="fixed system turn"):
        form.check({**values, "mode": "read", "system": "Answer."}, handlers.facts)
    with pytest.raises(MossError):
        form.check({**values, "mode": "chat", "system": "x" * 100_000}, handlers.facts)


@pytest.mark.parametrize("utterance", ["", "unknown", "a+b"])
async def test_a_recording_that_is_not_there_is_a_sentence(handlers, service, utterance):
    conversation = Conversation(session_id="tab")
    shown = await collect(reply(handlers, conversation, mode="listen", utterance=utterance))
    told = shown[-1]
    assert told["state"] == "failed" and told["note"].endswith(".") and service.requests == []


async def test_without_ears_no_recording_is_taken(handlers):
    handlers.ingest = None
    conversation = Conversation(session_id="tab")
    shown = await collect(reply(handlers, conversation, mode="listen", utterance="any"))
    assert "takes no recordings" in shown[-1]["note"]


async def stop_at(
    handlers: Handlers, service: FakeService, samples: int
) -> tuple[Conversation, list]:
    """A conversation whose only reply was stopped when so many samples had been heard."""
    service.script = Script(seconds=30.0, rtf=0.05, first_s=0.01)
    conversation = Conversation(session_id="tab")
    task = asyncio.ensure_future(listen(handlers, conversation))
    assert await soon(
        lambda: (
            conversation.turns and conversation.turns[0].num_samples > samples + 2 * CODE_SAMPLES
        )
    )
    await handlers.stop(f"{conversation.turns[0].run}:{samples}", conversation)
    await task
    return conversation, await handlers.entries(conversation)


async def test_a_stopped_reply_is_remembered_as_far_as_it_was_heard(handlers, service):
    heard = 10 * CODE_SAMPLES + 1
    conversation, chat = await stop_at(handlers, service, heard)
    with wave.open(chat[-1]["clip"]["file"]["path"]) as file:
        assert file.getnframes() == heard
    assert chat[1]["note"] == "Stopped."
    service.script = Script(seconds=0.5, rtf=0.01, first_s=0.01)
    await listen(handlers, conversation)
    _, answer, _ = service.requests[-1].messages
    codes = [row for row in answer.content.rows if code_of(row, IDS) is not None]
    assert len(codes) == 11, "a code that had begun to sound was heard"
    assert len(answer.content.rows) < len(conversation.turns[0].rows)


def test_the_silence_that_nobody_was_sent_belongs_to_the_first_code():
    cut = replace(INFO, lead_samples=CODE_SAMPLES)
    assert [INFO.num_codes(count) for count in (0, 1, CODE_SAMPLES)] == [0, 1, 1]
    assert [cut.num_codes(count) for count in (0, 1, CODE_SAMPLES)] == [0, 2, 2]
    rows = tuple(Row(IDS.modality_pad, code) for code in range(5))
    turn = Turn("Hello", True, rows=rows, heard=CODE_SAMPLES)
    assert (turn.heard_rows(INFO), turn.heard_rows(cut)) == (rows[:1], rows[:2])


async def test_a_reply_that_was_over_is_cut_too(handlers, service):
    conversation = Conversation(session_id="tab")
    shown = await listen(handlers, conversation)
    await handlers.entries(conversation)
    assert conversation.turns[0].over
    await handlers.stop(f"{shown[-1]['run']}:4800", conversation)
    chat = await handlers.entries(conversation)
    with wave.open(chat[-1]["clip"]["file"]["path"]) as file:
        assert file.getnframes() == 4800
    assert len(conversation.history(INFO)[1].content.rows) < len(conversation.turns[0].rows)


async def test_the_next_question_tells_what_was_heard(handlers, service):
    conversation = Conversation(session_id="tab")
    shown = await listen(handlers, conversation)
    await listen(handlers, conversation, heard=f"{shown[-1]['run']}:4800")
    codes = [
        row for row in service.requests[1].messages[1].content.rows if code_of(row, IDS) is not None
    ]
    assert len(codes) == 5


@pytest.mark.parametrize("heard", ["", "00000000:5", "deadbeef:99999999999999"])
async def test_what_is_said_about_another_reply_changes_nothing(handlers, heard):
    conversation = Conversation(session_id="tab")
    await listen(handlers, conversation)
    rows = conversation.history(INFO)[1].content.rows
    await handlers.stop(heard, conversation)
    assert conversation.history(INFO)[1].content.rows == rows


async def test_a_reply_of_which_nothing_was_heard_was_never_said(handlers, service):
    conversation, chat = await stop_at(handlers, service, 0)
    assert conversation.history(INFO) == ()
    assert [entry["role"] for entry in chat] == ["user", "assistant"]


async def test_who_goes_on_talking_asks_one_question(handlers, service):
    conversation, _ = await stop_at(handlers, service, 0)
    first = conversation.turns[0].asked.keys[0]
    service.script = Script(seconds=0.5, rtf=0.01, first_s=0.01)
    second = await say(handlers, 0.25, level=0.25)
    await collect(reply(handlers, conversation, mode="listen", utterance=f"{first}+{second}"))
    assert service.requests[-1].messages[-1].content == Speech((*(50,) * 7, *(25,) * 4))
    assert len(conversation.turns) == 1 and len(service.encoded) == 2


async def test_turns_that_do_not_fit_are_left_out_and_that_is_said(handlers, service):
    conversation = Conversation(session_id="tab")
    for _ in range(5):
        await listen(handlers, conversation)
    service.most_messages = 5
    await listen(handlers, conversation)
    assert len(service.requests[-1].messages) == 5
    assert "first 3 turns no longer fit" in (await handlers.entries(conversation))[-1]["note"]
    await listen(handlers, conversation)
    assert len(service.requests[-1].messages) == 3
    assert "first 5 turns no longer fit" in (await handlers.entries(conversation))[-1]["note"]

    service.most_messages = 0
    assert "shorter" in (await listen(handlers, conversation))[-1]["note"]


async def test_a_question_that_failed_can_be_sent_again(handlers, service):
    conversation, utterance = Conversation(session_id="tab"), await say(handlers)
    service.script = Script(error=MossError("All places are taken; try again in a moment."))
    shown = await collect(reply(handlers, conversation, mode="listen", utterance=utterance))
    assert shown[-1]["note"] == "All places are taken; try again in a moment."
    service.script = Script(seconds=0.2, rtf=0.01, first_s=0.01)
    assert (await collect(reply(handlers, conversation, mode="listen", utterance=utterance)))[-1][
        "state"
    ] == "done"
    assert len(conversation.turns) == 1 and len(service.encoded) == 1


def test_rows_end_with_the_code_that_was_heard():
    rows = (Row(9, 0), Row(2, 5), Row(2, 6), Row(8, 0), Row(2, 7), Row(2, 4096), Row(3, 0))
    assert [len(rows_until_code(rows, count, IDS)) for count in range(5)] == [0, 2, 3, 5, 7]
