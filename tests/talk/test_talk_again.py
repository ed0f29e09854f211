"""An answer in parts is spoken again part by part: each has its own stream of the codec."""

from __future__ import annotations

from dataclasses import replace

from moss_engine.api.events import AudioChunk, Sampled, TextDelta
from moss_engine.api.request import Recorded
from moss_engine.api.service import stream
from moss_engine.api.tokens import Row
from moss_engine.talk.answer import Say
from tests.talk.talk_support import Written, asking, talking
from tests.ui.page_support import IDS


async def test_rows_say_which_part_they_are_of():
    service, _ = talking(Written([Say("One."), Say("Two.")]))
    events = [event async for event in stream(service, asking())]
    parts = [event.part for event in events if isinstance(event, Sampled)]
    assert parts == sorted(parts) and set(parts) == {0, 1}


async def test_recorded_parts_are_said_one_behind_the_other():
    service, below = talking(Written([]))
    codes = tuple(Row(IDS.modality_pad, code) for code in range(20))
    recorded = (Recorded(codes[:10], ((0, "One."),)), Recorded(codes[10:], ((0, " Two."),)))
    events = [event async for event in stream(service, replace(asking(), recorded=recorded))]
    assert [request.recorded for request in below.requests] == [recorded[:1], recorded[1:]]
    assert sum(len(event.samples) for event in events if isinstance(event, AudioChunk)) == 20 * 960
    texts = [(e.start_sample, e.text) for e in events if isinstance(e, TextDelta)]
    assert texts == [(0, "One."), (9600, " Two.")]
    assert [event.row for event in events if isinstance(event, Sampled)] == list(codes)


async def test_one_recorded_part_needs_nobody_who_answers():
    service, below = talking(Written([]))
    rows = (Row(IDS.modality_pad, 1),) * 10
    request = replace(asking(), recorded=(Recorded(rows),))
    assert [event async for event in stream(service, request)]
    assert below.requests == [request]
