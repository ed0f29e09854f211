"""Silence of a reply: the network's own before its first sound is left out of its sound and the
times of its text, and pauses between sentences are put into both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moss_engine.api.errors import CheckpointError
from moss_engine.api.events import Event, Finished, TextDelta
from moss_engine.api.modes import Mode
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row
from moss_engine.engine.sequence import Segment
from moss_engine.text.modes import Modes, Pauses, read_modes
from moss_engine.text.processor import parts_to_read
from tests.fakes import SPOKEN, FakeProcessor, FakeRuntime, scripted
from tests.service.service_support import INFO, ask, hear, heard, served, sound_of

TWO_SPANS = (*SPOKEN[:-1], *SPOKEN[1:])
"""Text, three codes, text, three codes."""


def told(
    reply: Sequence[Row], processor: FakeProcessor, request: Request, **options: Any
) -> list[Event]:
    """What a listener is told by a network that always says `reply`."""
    with served(FakeRuntime(scripted(list(reply))), processor=processor, **options) as service:
        return hear(service, request)


@pytest.mark.parametrize("lead_s", [0.0, 0.03, 0.1])
def test_the_lead_is_not_heard(lead_s: float) -> None:
    lead = round(lead_s * 24_000)
    events = told(TWO_SPANS, FakeProcessor(), ask(), info=replace(INFO, lead_samples=lead))
    np.testing.assert_array_equal(heard(events), sound_of(TWO_SPANS)[lead:])
    starts = {event.start_sample for event in events if isinstance(event, TextDelta)}
    assert starts == {0, 3 * 960 - lead}


SILENCE = (3, 3)
READ = Mode("read", "Read", "text", "speech", "<read>", True, True, None)


class Pausing(FakeProcessor):
    """Every segment asks for silence before it; the first one has nothing to follow."""

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        return tuple(replace(segment, silence=SILENCE) for segment in super().prepare(request))


def test_the_silence_is_heard_between_segments_alone() -> None:
    events = told(SPOKEN, Pausing(), ask("one\ntwo\nthree", mode="lines"))
    codes = [7, 8, 9, *SILENCE, 7, 8, 9, *SILENCE, 7, 8, 9]
    np.testing.assert_array_equal(heard(events), np.repeat(np.array(codes, np.float32) / 100, 960))
    starts = {event.start_sample // 960 for event in events if isinstance(event, TextDelta)}
    assert starts == {0, 5, 10}
    last = events[-1]
    assert isinstance(last, Finished) and len(last.rows) == 3 * len(SPOKEN)


@pytest.mark.parametrize(
    ("speed", "sentence", "paragraph"), [(0.7, 4, 13), (1.0, 4, 13), (2, 2, 6)]
)
def test_sentences_and_paragraphs_are_set_apart(speed: float, sentence: int, paragraph: int):
    limits = Modes((READ,), 60, 3.5, 50, pauses=Pauses(9, 4, 13))
    long = "So we stay at home and play the longest game of cards of all"
    text = f"It rains. Is it cold?\r\n \r\n{long}"
    parts = parts_to_read(text, limits, READ, speed)
    assert [part.text for part in parts] == [
        "It rains.",
        "Is it cold?",
        "So we stay at home and play the longest game of cards of,",
        "All.",
    ]
    assert [len(part.silence) for part in parts] == [0, sentence, paragraph, 0]
    assert {code for part in parts for code in part.silence} == {9}

    without = parts_to_read(text, Modes((READ,), 60, 3.5, 50), READ, speed)
    assert [part.silence for part in without] == [()] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"pauses": {"code": 1, "sentence": 4}},
        {"pauses": {"code": -1, "sentence": 4, "paragraph": 4}},
        {"pauses": {"code": 1, "sentence": 0.2, "paragraph": 4}},
        {"pauses": {"code": 1, "sentence": 4, "paragraph": 4000}},
        {"silent_lead_s": -0.1},
        {"silent_lead_s": float("nan")},
        {"silent_lead_s": "x"},
    ],
)
def test_silence_that_does_not_fit_is_refused(tiny_checkpoint: Path, tmp_path: Path, changes: dict):
    path = tmp_path / "processor_config.json"
    shutil.copy(tiny_checkpoint / path.name, path)
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, **changes}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="processor_config"):
        read_modes(path)
