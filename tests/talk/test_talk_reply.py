"""Answers that are thought of while they are said: one reply of many parts."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import (
    BusyError,
    EngineFaultError,
    InputError,
    ParameterError,
    ShuttingDownError,
    UnsupportedModeError,
)
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Failed,
    Finished,
    FinishReason,
    Started,
    Thought,
)
from moss_engine.api.request import Message, Request, Speech, Text
from moss_engine.api.service import hear, stream
from moss_engine.talk.answer import Reached, Say
from moss_engine.talk.reply import Writing
from moss_engine.talk.service import TalkingService
from tests.service.service_support import heard
from tests.talk.talk_support import HEARD, Written, all_of, asking, talking, words
from tests.ui.page_support import DEFAULTS, INFO, PATIENCE_S, RATE_HZ, signal, soon

TWO = [Reached("first_sentence"), Say("It is noon."), Say("Have a rest.", 0.8)]


async def test_the_parts_are_one_reply():
    service, below = talking(Written(list(TWO)))
    events = await all_of(stream(service, asking()))
    assert words(events) == "It is noon. Have a rest."
    once = signal(1.0, seed=DEFAULTS.seed)
    assert np.array_equal(heard(events), np.concatenate([once, once]))
    assert {event.request_id for event in events} == {"asked"}
    times = [event.time_s for event in events]
    assert times == sorted(times)
    rows = [event.num_rows for event in events]
    assert rows == sorted(rows)
    kinds = [type(event) for event in events]
    assert [kinds.count(kind) for kind in (Accepted, Thought, Started, Finished)] == [1, 1, 1, 1]
    (started,) = (event for event in events if isinstance(event, Started))
    assert started.num_prompt_rows == 20 + len("It is noon.") // 4, (
        "what it says first is no prompt"
    )
    assert events[-1].reason is FinishReason.STOP
    assert [(r.mode, r.messages[-1].content, r.speed) for r in below.requests] == [
        ("read", Text("It is noon."), 1.0),
        ("read", Text("Have a rest."), 0.8),
    ]


async def test_what_was_heard_is_what_is_asked_and_history_is_words():
    answerer = Written([Say("Noon.")])
    service, _ = talking(answerer)
    before = (Message("user", Text("Hi.")), Message("assistant", Text("Hello.")))
    for mode in ("talk", "chat"):
        await all_of(stream(service, behind(*before, mode=mode)))
    assert [(asked.text, asked.before) for asked in answerer.asked] == [(HEARD.text, before)] * 2


async def test_speech_that_the_checkpoint_understands_goes_on_as_it_is():
    service, below = talking(Written())
    below.info = replace(INFO, recogniser=HEARD.recogniser)
    service = TalkingService(below, below.info, Written())
    speech = Speech((1, 2, 3), HEARD)
    asked = replace(asking(), mode="listen", messages=(Message("user", speech),))
    events = await all_of(stream(service, asked))
    assert below.requests[0].messages[-1].content == speech and len(heard(events))
    assert (await hear(below, np.zeros(1600, np.float32), 16_000)).codes == (0, 0)


async def test_a_written_answer_makes_no_heard():
    service, below = talking(Written(list(TWO)))
    events = await all_of(stream(service, asking("talk-written")))
    assert words(events) == "It is noon. Have a rest." and not len(heard(events))
    assert below.requests == [] and isinstance(events[-1], Finished)


def behind(*before: Message, mode: str = "chat") -> Request:
    asked = asking(mode)
    return replace(asked, messages=(*before, *asked.messages))


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_stops_it_or_leaves_ends_the_voice_and_the_thinking(leaves):
    answerer = Written([Say("One."), Say("Two.")], wait=asyncio.Event())
    service, below = talking(answerer, seconds=30.0, rtf=0.5)
    reply, event = await service.submit(asking()), None
    async with aclosing(reply.events()) as told:
        async for event in told:
            if isinstance(event, AudioChunk):
                if leaves:
                    break
                reply.cancel()
    assert leaves or event.reason is FinishReason.CANCELLED
    assert below.cancelled and answerer.closed == 1 and await soon(lambda: not below.open)


async def test_an_error_that_nobody_foresaw_ends_the_reply_and_is_logged(caplog):
    service, _ = talking(Written([Say("One."), ZeroDivisionError("of the thinker")]))
    events = await asyncio.wait_for(all_of(stream(service, asking())), PATIENCE_S)
    assert isinstance(events[-1], Failed) and events[-1].code == "E_ENGINE"
    assert events[-1].message.endswith("; ask again.") and words(events) == "One."
    assert "ZeroDivisionError: of the thinker" in caplog.text
    again = await asyncio.wait_for(all_of(stream(service, asking())), PATIENCE_S)
    assert isinstance(again[-1], Failed), "the place was not given back"


async def test_an_error_of_the_voice_is_the_last_word():
    service, below = talking(Written([Say("One.")]))
    below.script.error = EngineFaultError("The voice is gone; restart the program.")
    events = await all_of(stream(service, asking()))
    assert isinstance(events[-1], Failed) and events[-1].code == "E_ENGINE"


async def test_the_next_part_waits_for_a_listener_who_is_far_behind():
    parts = [Say(f"Part {number}.") for number in range(30)]
    service, below = talking(Written(parts))
    reply = await service.submit(asking())
    async with aclosing(reply.events()) as told:
        taking = asyncio.ensure_future(all_of(told))
        assert await soon(lambda: len(below.requests) >= 11)
        await asyncio.sleep(0.3)
        assert len(below.requests) in (11, 12), "more than run_ahead_s of sound was made"
        reply.acknowledge(5 * RATE_HZ)
        assert await soon(lambda: len(below.requests) >= 16)
        reply.cancel()
        await taking


async def test_requests_that_cannot_be_answered_are_refused():
    service, _ = talking(Written())
    with pytest.raises(UnsupportedModeError, match="takes speech"):
        await service.submit(replace(asking(), mode="talk"))
    with pytest.raises(InputError, match="system prompt"):
        await service.submit(behind(Message("system", Text("Be brief."))))
    with pytest.raises(InputError):
        await service.submit(asking(text="  "))


async def hearing_of(service, request_id: str, session_id: str) -> asyncio.Task:
    """Somebody who listens to an answer."""
    reply = await service.submit(asking(request_id=request_id, session_id=session_id))
    return asyncio.ensure_future(all_of(reply.events()))


async def test_at_full_load_a_second_question_takes_the_place_of_the_first():
    service, _ = talking(Written([Say("One.")], wait=asyncio.Event()), seconds=0.1)
    hearing = [await hearing_of(service, f"r{i}", f"s{i}") for i in range(20)]
    with pytest.raises(BusyError):
        await service.submit(asking(request_id="other", session_id="other"))
    newer = await hearing_of(service, "newer", "s0")
    assert (await hearing[0])[-1].reason is FinishReason.CANCELLED
    assert not any(task.done() for task in (newer, *hearing[1:]))
    await service.drain(0.0)
    await asyncio.gather(newer, *hearing)


async def test_an_id_that_is_in_use_is_refused_and_the_answer_before_goes_on():
    service, _ = talking(Written([Say("One.")], wait=asyncio.Event()), seconds=0.1)
    first = await hearing_of(service, "first", "visitor")
    for session_id in ("visitor", "other"):
        with pytest.raises(ParameterError, match="request_id"):
            await service.submit(asking(request_id="first", session_id=session_id))
    second = await hearing_of(service, "second", "other")
    await service.cancel_session("other")
    await second
    assert not first.done()
    await service.cancel_session("visitor")
    assert (await first)[-1].reason is FinishReason.CANCELLED


async def test_while_it_drains_open_answers_go_on_and_nothing_new_begins():
    answerer = Written([Say("One."), Say("Two.")], wait=asyncio.Event())
    service, below = talking(answerer, seconds=0.1)
    hearing = await hearing_of(service, "first", "visitor")
    assert await soon(lambda: below.requests)
    draining = asyncio.ensure_future(service.drain(PATIENCE_S))
    await asyncio.sleep(0)
    for request in (asking(), asking("read")):
        with pytest.raises(ShuttingDownError):
            await service.submit(replace(request, request_id="new"))
    assert (await service.stats()).state == "draining"
    answerer.wait.set()
    events = await hearing
    assert words(events) == "One. Two." and events[-1].reason is FinishReason.STOP
    await draining


@pytest.mark.parametrize(
    ("written", "said", "shown"),
    [
        ("It is 3:38 PM.", "It is three thir|ty-eight P| M.", "It is 3:38 PM."),
        ("12 times 4 is 48.", "twelve times four is forty-eight.", "12 times 4 is 48."),
        ("That costs $5. Yes!", "That costs five| dollars. Yes!", "That costs $5. Yes!"),
        ("It is 3 PM.", "Three o'clock it is.", "Three o'clock it is."),
        ("\u4f60\u597d", "\u4f60| \u597d", "\u4f60 \u597d"),
        ("Here is **one**, a list:", "Here is one, a list|.", "Here is one, a list:"),
        ("Hi \U0001f600! Well - fine", "Hi! Well, fine.", "Hi \U0001f600! Well - fine"),
        ("and [so](https://x.org) on", "And so on.", "and so on"),
        ("1 a" + " 1 a" * 999, "one a" + " one a" * 999, "1 a" + " 1 a" * 999),
    ],
)
def test_words_are_shown_in_the_writing_that_the_voice_was_given(written, said, shown):
    writing = Writing(written)
    assert "".join(writing.take(piece) for piece in said.split("|")) == shown
