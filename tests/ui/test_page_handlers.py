"""Pace, cancelling and bookkeeping of replies, without a network between."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import ParameterError
from moss_engine.api.request import Reply, Speech, Text
from moss_engine.api.service import ClonedVoice, hear
from moss_engine.api.tokens import code_of
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui import form
from moss_engine.ui.audio_in.ingest import AudioIngest
from moss_engine.ui.audio_in.microphone import Microphone
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.door import Tab
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.stream import messages
from moss_engine.ui.turn import Turn
from tests.ui.page_support import CODE_SAMPLES, IDS, INFO, READ, FakeService, Script, no_room, soon

TYPED = Turn(mode=READ)
VALUES = {**form.defaults(INFO), "text": "Hello there.", "seed": 7, "new_seed": False}


@pytest.fixture
def service() -> FakeService:
    return FakeService(Script(seconds=1.0, first_s=0.01, rtf=0.02))


@pytest.fixture
def handlers(service, tmp_path) -> Handlers:
    ingest = AudioIngest(partial(hear, service), None, max_s=60.0)
    return Handlers(service, INFO, wav_folder=tmp_path, ingest=ingest)


def reply(handlers: Handlers, conversation: Conversation | None = None, **changes):
    values = {**VALUES, **changes}
    conversation = conversation or Conversation(session_id="tab")
    return handlers.answer(values, form.run_name(values["run"]), conversation)


async def collect(stream) -> list[dict]:
    return [message async for message in stream]


async def say(handlers: Handlers, seconds: float = 0.5, level: float = 0.5) -> str:
    """The name of a recording."""
    pcm = np.full(round(seconds * RATE_HZ), round(level * 32767), "<i2").tobytes()
    microphone = Microphone(handlers.ingest)
    microphone.use(hands_free=False)
    return (await microphone.hear(pcm, end=True)).utterance


async def listen(handlers: Handlers, conversation: Conversation, **changes) -> list[dict]:
    """A spoken question and its whole answer."""
    return await collect(
        reply(handlers, conversation, mode="listen", utterance=await say(handlers), **changes)
    )


async def test_closing_the_handler_anywhere_stops_the_reply(handlers, service):
    service.script = Script(seconds=30.0, rtf=0.5)
    for steps in range(1, 9):
        stream = reply(handlers)
        for _ in range(steps):
            await anext(stream)
        await stream.aclose()
        assert service.open == {}


async def test_stop_ends_the_reply_of_its_own_session_only(handlers, service):
    service.script = Script(seconds=30.0, rtf=0.5)
    conversation, another = Conversation(session_id="tab"), Conversation(session_id="another")
    mine = asyncio.ensure_future(collect(reply(handlers, conversation)))
    others = asyncio.ensure_future(collect(reply(handlers, another)))
    assert await soon(
        lambda: len(service.open) == 2 and conversation.turns and any(conversation.turns[0].pcm)
    )
    await handlers.stop("", conversation)
    chat = await handlers.entries(conversation)
    assert chat[1]["note"] == "Stopped." and len(service.open) == 1
    assert (await mine)[-1]["state"] == "stopped"
    await handlers.sessions.leave("another")
    assert (await others)[-1]["state"] == "stopped" and service.open == {}


async def test_a_full_disk_costs_the_sound_of_what_was_heard_and_no_question(handlers):
    conversation = Conversation(session_id="tab")
    await collect(reply(handlers, conversation, mode="chat", run="00000001"))
    assert conversation.turns[0].answer_clip.seconds == 1.0
    with no_room():
        again = {"run": "00000002", "heard": "00000001:9600"}
        shown = await collect(reply(handlers, conversation, mode="chat", **again))
        assert shown[-1]["state"] == "done"
        await handlers.stop("00000002:9600", conversation)
    assert len(list(handlers.wav_folder.iterdir())) == 1, "what there is no room for leaves nothing"
    entries = await handlers.entries(conversation)
    for answer in entries[1::2]:
        assert answer["clip"] is None and "cannot be heard again: File too large" in answer["note"]
        assert answer["note"].startswith("Stopped")
    assert [turn.num_samples for turn in conversation.turns] == [9600, 9600]


async def test_a_fault_of_the_program_ends_what_is_waited_for_in_a_sentence(
    handlers, service, monkeypatch, caplog
):
    async def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(service, "submit", fail)
    last = (await collect(reply(handlers)))[-1]
    assert last["end"] and last["note"] == "The program failed at this answer; ask again."
    told = []
    microphone = Microphone(handlers.ingest, tell=lambda kind, **fields: told.append(fields))
    monkeypatch.setattr(microphone, "hear", fail)
    microphone.begin(1, hands_free=False)
    microphone.push(bytes(320))
    assert await soon(lambda: told)
    assert told[0]["message"] == "The program failed at what was said; say it again."
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2


async def no_pool():
    return {}


async def test_sound_is_acknowledged_as_a_listener_hears_it(service):
    service.script = Script(seconds=5.0, first_s=0.0, rtf=0.0)
    service.info = replace(INFO, run_ahead_s=1.0)
    now, heard = [0.0], service.acknowledged
    asked = form.request_of(VALUES, INFO, 7, (), Text("Hello there."), "tab")
    reply, turn = await service.submit(asked), Turn(mode=READ, clock=lambda: now[0])
    task = asyncio.ensure_future(collect(messages(reply, turn, no_pool)))
    assert await soon(lambda: turn.num_made >= INFO.sample_rate_hz)
    assert heard[asked.request_id] <= 0, "nothing was heard yet"
    now[0] = 1.5
    assert await soon(lambda: heard[asked.request_id] > 1.4 * INFO.sample_rate_hz)
    assert heard[asked.request_id] <= 1.5 * INFO.sample_rate_hz
    now[0] = 9.0
    told = await task
    assert told[-1]["end"] and turn.num_made == 5 * INFO.sample_rate_hz
    first = next(message["pcm"] for message in told if message["pcm"])
    chunk = round(service.script.chunk_s * INFO.sample_rate_hz)
    assert len(first) == 2 * chunk, "the first sound waits for no other"


@pytest.mark.parametrize(
    "change",
    [
        {"text": " \n\t"},
        {"mode": "none"},
        {"voice": "somebody"},
        {"mode": "read", "system": "Answer."},
        {"mode": "chat", "system": "x" * 100_000},
        {"speed": math.nan},
        {"text_top_k": 1.5},
        {"seed": None},
        {"seed": -1},
        {"mode": "listen"},
        {"mode": "listen", "utterance": "unknown"},
    ],
)
async def test_what_cannot_be_asked_is_told_in_a_sentence(handlers, service, change):
    conversation = Conversation(session_id="tab")
    last = (await collect(reply(handlers, conversation, **change)))[-1]
    assert last["state"] == "failed" and last["note"].endswith(".")
    assert service.requests == [] and conversation.turns == []


@pytest.mark.parametrize(
    "given",
    [None, [], {"text": 5}, {"text": None}, {"mode": 1}, {"speed": "1"}, {"speed": True},
     {"new_seed": 1}, {"utterance": ["x"]}, {"heard": {}}],
)  # fmt: skip
def test_values_of_another_kind_are_no_values(handlers, given):
    with pytest.raises(ParameterError, match="must be"):
        form.read(given, handlers.facts)
    assert form.read({"text": "Hi."}, handlers.facts)["voice"] == "default"


def test_good_values_pass_and_whole_floats_are_whole_numbers(handlers):
    values = {**VALUES, "text_top_k": 20.0, "max_rows": 64.0}
    sampling = form.sampling_of(values, handlers.facts, seed=1)
    assert (sampling.text.top_k, sampling.max_rows) == (20, 64)
    assert isinstance(sampling.max_rows, int)


async def test_a_text_that_the_voice_cannot_read_is_refused_once(handlers):
    tab, another = Conversation(session_id="tab"), Conversation(session_id="another")

    async def answer(text: str, conversation: Conversation = tab, **values: str) -> str:
        shown = await collect(reply(handlers, conversation, text=text, **values))
        return shown[-1]["note"] if shown[-1]["state"] == "failed" else ""

    german = "Das Wetter ist sehr schön."
    assert await answer(german) == (
        "This looks like German, and this voice reads American English; send it again to hear it "
        "anyway."
    )
    assert await answer("Das ist nicht gut.") and await answer("Hello.") == ""
    assert await answer(german, another) and await answer(german) == ""
    refused = await answer("Wie geht es dir?", mode="chat")
    assert refused.endswith("send it again to ask it anyway.")


async def test_a_voice_needs_consent_and_is_forgotten_where_its_visitor_leaves_as_it_is_made(
    handlers, service, monkeypatch
):
    made, voices = asyncio.Event(), set()

    async def add(session_id: str, *_) -> ClonedVoice:
        await made.wait()
        voices.add(session_id)
        return ClonedVoice("own", "")

    async def remove(session_id: str) -> None:
        voices.discard(session_id)

    monkeypatch.setattr(service, "add_voice", add)
    monkeypatch.setattr(service, "remove_voice", remove)
    handlers.facts = replace(handlers.facts, clones_voices=True)
    tab, sample = Tab(handlers, "0" * 32, "1" * 32, "visitor"), await say(handlers)
    with pytest.raises(ParameterError, match="Tick the box first"):
        await handlers.make_voice(tab.conversation, False, sample)
    tab.take({"type": "voice.create", "consent": True, "utterance": sample})
    await asyncio.sleep(0.05)
    leaving = asyncio.ensure_future(tab.close())
    await asyncio.sleep(0.05)
    made.set()
    await leaving
    assert voices == set()


# Conversations by voice: recordings, mixed modes, and a history of what was heard.


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
    assert soundfile.info(chat[-1]["clip"]["file"]["path"]).frames == heard
    assert chat[1]["note"] == "Stopped."
    service.script = Script(seconds=0.5, rtf=0.01, first_s=0.01)
    await listen(handlers, conversation)
    _, answer, _ = service.requests[-1].messages
    codes = [row for row in answer.content.rows if code_of(row, IDS) is not None]
    assert len(codes) == 11, "a code that had begun to sound was heard"


async def test_a_reply_that_was_over_is_cut_too_but_not_by_what_is_said_about_another(handlers):
    conversation = Conversation(session_id="tab")
    shown = await listen(handlers, conversation)
    await handlers.entries(conversation)
    rows = conversation.history(TYPED)[1].content.rows
    for heard in ("", "00000000:5", "deadbeef:99999999999999"):
        await handlers.stop(heard, conversation)
        assert conversation.history(TYPED)[1].content.rows == rows
    await handlers.stop(f"{shown[-1]['run']}:4800", conversation)
    chat = await handlers.entries(conversation)
    assert soundfile.info(chat[-1]["clip"]["file"]["path"]).frames == 4800
    assert 0 < len(conversation.history(TYPED)[1].content.rows) < len(rows)


async def test_an_unheard_reply_was_never_said_and_who_goes_on_asks_one_question(handlers, service):
    conversation, chat = await stop_at(handlers, service, 0)
    assert conversation.history(TYPED) == ()
    assert [entry["role"] for entry in chat] == ["user", "assistant"]
    first = conversation.turns[0].asked.keys
    service.script = Script(seconds=0.5, rtf=0.01, first_s=0.01)
    whole = handlers.ingest.keep(np.full(RATE_HZ, 9000, np.int16), RATE_HZ, before=first)
    await collect(reply(handlers, conversation, mode="listen", utterance=whole.key))
    assert len(service.requests[-1].messages) == len(conversation.turns) == 1
    assert conversation.turns[0].asked.keys == (*first, whole.key)


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
