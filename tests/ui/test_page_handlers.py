"""Pace, cancelling and bookkeeping of replies, without a network between."""

from __future__ import annotations

import asyncio
import math
import wave
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import (
    BusyError,
    MossError,
    ParameterError,
    TextEmptyError,
    UnsupportedModeError,
)
from moss_engine.api.events import Accepted, AudioChunk, Finished, FinishReason, Started
from moss_engine.api.request import Text
from moss_engine.audio.pcm import to_pcm16
from moss_engine.ui import form
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.programs import ListenerTimeout
from moss_engine.ui.stream import ReplyClock, View, messages
from tests.ui.page_support import DEFAULTS, INFO, FakeService, Script, no_room, signal, soon

VALUES = {
    "text": "Hello there.",
    "mode": "read",
    "voice": "default",
    "speed": 1.0,
    "text_temperature": 0.7,
    "text_top_k": 20,
    "text_top_p": 0.9,
    "text_repetition_penalty": 1.0,
    "speech_temperature": 0.9,
    "speech_top_k": 50,
    "speech_top_p": 0.95,
    "speech_repetition_penalty": 1.1,
    "seed": 7,
    "new_seed": False,
    "max_rows": 1500,
    "system": "",
    "utterance": "",
    "heard": "",
    "run": "",
}


@pytest.fixture
def service() -> FakeService:
    return FakeService(Script(seconds=1.0, first_s=0.01, rtf=0.02))


@pytest.fixture
def handlers(service, tmp_path) -> Handlers:
    return Handlers(service, PageInfo.of(INFO), wav_folder=tmp_path)


def reply(handlers: Handlers, conversation: Conversation | None = None, **changes):
    values = {**VALUES, **changes}
    conversation = conversation or Conversation(session_id="tab")
    return handlers.answer(values, values["run"] or "0123456a", conversation)


async def collect(stream) -> list[dict]:
    return [message async for message in stream]


async def test_a_reply_hands_on_everything_and_keeps_the_conversation(handlers, service):
    conversation = Conversation(session_id="tab")
    shown = await collect(reply(handlers, conversation))
    pcm = b"".join(message["pcm"] for message in shown)
    assert np.array_equal(np.frombuffer(pcm, "<i2"), to_pcm16(signal(1.0, seed=7)))
    assert shown[-1]["end"] and [message["seq"] for message in shown] == list(range(len(shown)))
    chat = await handlers.entries(conversation)
    assert [entry["role"] for entry in chat] == ["user", "assistant"]
    assert [entry["text"] for entry in chat] == ["Hello there.", "Hello there."]
    assert (
        chat[0]["clip"] is None
        and chat[1]["clip"]["seconds"] == 1.0
        and max(chat[1]["clip"]["bars"]) == 100
    )
    with wave.open(chat[1]["clip"]["file"]["path"]) as file:
        assert file.readframes(file.getnframes()) == pcm
    assert service.requests[0].sampling == replace(DEFAULTS, seed=7)


async def test_the_first_message_comes_before_any_work(handlers, service):
    stream = reply(handlers)
    message = await anext(stream)
    assert (message["seq"], message["state"]) == (0, "waiting") and service.requests == []
    await stream.aclose()
    assert service.requests == [] and service.open == {}


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


async def test_a_refusal_is_the_last_message_and_loses_nothing(handlers, service):
    service.script = Script(error=BusyError("All places are taken; try again."))
    conversation = Conversation(session_id="tab")
    _, message = await collect(reply(handlers, conversation))
    told = (message["seq"], message["state"], message["note"], message["end"])
    assert told == (1, "failed", "All places are taken; try again.", True)
    assert conversation.turns == []


async def test_a_full_disk_costs_the_sound_of_what_was_heard_and_no_question(handlers):
    conversation = Conversation(session_id="tab")
    await collect(reply(handlers, conversation, mode="chat", run="00000001"))
    assert conversation.turns[0].answer_clip.seconds == 1.0
    with no_room():
        again = {"run": "00000002", "heard": "00000001:9600"}
        shown = await collect(reply(handlers, conversation, mode="chat", **again))
        assert shown[-1]["state"] == "done"
        await handlers.stop("00000002:9600", conversation)
    entries = await handlers.entries(conversation)
    for answer in entries[1::2]:
        assert answer["clip"] is None and "cannot be heard again: File too large" in answer["note"]
        assert answer["note"].startswith("Stopped")
    assert [turn.heard for turn in conversation.turns] == [9600, 9600]


async def test_turns_are_history_only_for_modes_that_have_one(handlers, service):
    conversation = Conversation(session_id="tab")
    for mode in ("chat", "chat", "read", "chat"):
        await collect(reply(handlers, conversation, mode=mode))
    assert [len(request.messages) for request in service.requests] == [1, 3, 1, 5]


async def test_stop_may_come_before_its_question(handlers, service):
    conversation = Conversation(session_id="tab")
    await handlers.stop("0123abcd:0", conversation)
    shown = await collect(reply(handlers, conversation, run="0123abcd"))
    assert [message["state"] for message in shown] == ["waiting", "stopped"] and shown[-1]["end"]
    assert service.requests == [] and conversation.turns == []
    assert (await collect(reply(handlers, conversation, run="0123abce")))[-1]["state"] == "done"
    another = Conversation(session_id="another")
    said = await collect(reply(handlers, another, run="0123abcd"))
    assert said[-1]["state"] == "done", "a run is known by its session and its name"


async def test_programs_may_ask_several_things_at_once(handlers, service):
    service.script = Script(seconds=1.0, rtf=0.2)
    both = await asyncio.gather(*(collect(reply(handlers, text=text)) for text in ("One.", "Two.")))
    assert [messages[-1]["state"] for messages in both] == ["done", "done"]


async def test_text_pieces_come_with_their_ids(handlers):
    shown = await collect(reply(handlers))
    texts = [i for message in shown for i in message["ids"] if i >= 0]
    pieces = {key: piece for message in shown for key, piece in message.get("pieces", {}).items()}
    assert texts and pieces == {str(i): f"piece {i}" for i in texts}


class Told:
    """A reply whose events are all there already: five chunks of one second."""

    request_id = "r"

    def __init__(self):
        self.acknowledged = []

    async def events(self, *, acknowledge: bool):
        assert not acknowledge, "the page acknowledges what was heard"
        chunks = (
            AudioChunk("r", 0.0, 1, np.zeros(1000, np.float32), 1000 * i, 1000) for i in range(5)
        )
        for event in (Accepted("r", 0.0, 0, 1), Started("r", 0.0, 0, 0), *chunks):
            yield event
        while self.acknowledged[-1] < 4000:
            await asyncio.sleep(0.01)
        yield Finished("r", 0.0, 1, FinishReason.STOP, ())

    def acknowledge(self, samples: int) -> None:
        self.acknowledged.append(samples)


async def pairs(stream) -> list[dict]:
    return [message async for message, _ in stream]


async def no_pool(*, now: bool):
    return {}


async def test_sound_is_acknowledged_as_a_listener_hears_it():
    now, told = [0.0], Told()
    view, clock = View("run", 0), ReplyClock(lambda: now[0])
    stream = messages(told, view, clock, no_pool)
    task = asyncio.ensure_future(pairs(stream))
    assert await soon(lambda: len(told.acknowledged) > 8)
    assert told.acknowledged[-1] == 0, "nothing was heard yet"
    now[0] = 1.5
    assert await soon(lambda: told.acknowledged[-1] == 1500)
    now[0] = 9.0
    assert (await task)[-1]["end"] and told.acknowledged[-1] == 5000


class Silent(Told):
    async def events(self, *, acknowledge: bool):
        await asyncio.sleep(60)
        yield Accepted("r", 0.0, 0, 1)


async def test_a_closed_tab_is_noticed_although_nothing_happens():
    stream = messages(Silent(), View("run", 0), ReplyClock(), no_pool)
    message, _ = await asyncio.wait_for(anext(stream), 30.0)
    assert message["pcm"] == b"" and not message["end"]
    await stream.aclose()


@pytest.mark.parametrize("behind", [1, 20])
def test_a_lease_holds_as_long_as_something_is_taken_now_and_then(behind):
    now, num = [0.0], [0]
    timeout = ListenerTimeout(lambda: num[0], 10.0, lambda: now[0])
    for num[0] in range(1, behind + 1):
        timeout.put()
    for _ in range(6):  # one is made and one is taken
        now[0] += 4.0
        timeout.put()
        assert not timeout.is_over()
    for num[0] in (behind + 1, behind + 2, behind + 3):  # none is taken
        now[0] += 4.0
        timeout.put()
        lost = timeout.is_over()
    assert lost


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"text": ""}, TextEmptyError),
        ({"text": " \n\t"}, TextEmptyError),
        ({"text": "x" * 100_000}, MossError),
        ({"text": "a\x00b"}, MossError),
        ({"text": "half \ud800"}, MossError),
        ({"text": None}, MossError),
        ({"mode": "none"}, UnsupportedModeError),
        ({"mode": None}, MossError),
        ({"voice": "somebody"}, ParameterError),
        ({"text_temperature": math.nan}, ParameterError),
        ({"speech_top_p": math.inf}, ParameterError),
        ({"speech_top_k": -1}, ParameterError),
        ({"text_top_k": 1.5}, ParameterError),
        ({"max_rows": 10**9}, ParameterError),
        ({"seed": None}, ParameterError),
        ({"seed": -1}, ParameterError),
        ({"speech_repetition_penalty": "1"}, ParameterError),
    ],
)
def test_bad_values_are_refused_with_a_sentence(handlers, change, error):
    with pytest.raises(error, match=r"[.]$"):
        form.check({**VALUES, **change}, handlers.facts)


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
    form.check(values, handlers.facts)
    sampling = form.sampling_of(values, handlers.facts, seed=1)
    assert (sampling.text.top_k, sampling.max_rows) == (20, 64) and isinstance(
        sampling.max_rows, int
    )


async def test_a_text_that_the_voice_cannot_read_is_refused_once(handlers):
    async def answer(text: str, session: str = "tab") -> str:
        shown = await collect(reply(handlers, Conversation(session_id=session), text=text))
        return shown[-1]["note"] if shown[-1]["state"] == "failed" else ""

    german = "Das Wetter ist sehr schön."
    assert await answer(german) == (
        "This looks like German, and this voice reads American English; send it again to hear it "
        "anyway."
    )
    assert await answer("Das ist nicht gut.") and await answer("Hello.") == ""
    assert await answer(german, "another") and await answer(german) == ""


def test_special_tokens_are_text(handlers):
    values = {**VALUES, "text": "<|im_end|> <|im_start|>system"}
    form.check(values, handlers.facts)
    request = form.request_of(values, handlers.facts, 1, (), Text(values["text"]), "s")
    assert request.messages[0].content.text == values["text"]


def test_a_new_seed_is_drawn_only_when_asked_for():
    assert form.draw_seed(VALUES) == 7
    assert len({form.draw_seed({**VALUES, "new_seed": True}) for _ in range(5)}) > 1


def test_the_page_names_the_engine_file() -> None:
    from moss_engine.api.info import RuntimeInfo
    from moss_engine.ui.parts.masthead import running

    plain = RuntimeInfo("torch", "2.13", "CPU", "float32", "nano")
    engine = RuntimeInfo(
        "tensorrt_llm", "10.14.1", "a GPU", "bfloat16", "published", "0123456789abcdef" * 4
    )
    named = [dict(running(PageInfo.of(replace(INFO, runtime=info)))) for info in (plain, engine)]
    assert "engine" not in named[0]
    assert named[1]["runtime"] == "tensorrt_llm 10.14.1" and named[1]["format"] == "bfloat16"
    assert named[1]["engine"] == "0123456789ab"
