"""Pauses between the sentences of a reply: codes of silence in its sound, and in the times of its
text."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moss_engine.api.errors import CheckpointError
from moss_engine.api.events import Finished, TextDelta
from moss_engine.api.modes import Mode, Modes, Pauses, read_modes
from moss_engine.api.request import Request
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.engine.sequence import Segment
from moss_engine.service.core import ServiceCore
from moss_engine.text.reading import parts_to_read
from tests.fakes import SPOKEN, FakeCodec, FakeProcessor, FakeRuntime, scripted
from tests.service.service_support import ask, heard, listen

SILENCE = (3, 3)
READ = Mode("read", "Read", "text", "speech", "<read>", True, True, None)


class Pausing(FakeProcessor):
    """Every segment asks for silence before it; the first one has nothing to follow."""

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        return tuple(replace(segment, silence=SILENCE) for segment in super().prepare(request))


def test_the_silence_is_heard_between_segments_alone() -> None:
    runtime = FakeRuntime(scripted(SPOKEN))
    engine = Engine(runtime, Pausing(), EngineConfig(), samples_per_code=960)
    service = ServiceCore(engine, FakeCodec(), EngineConfig())
    service.start()
    try:
        events = asyncio.run(listen(service, ask("one\ntwo\nthree", mode="lines")))
    finally:
        service.close()
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


def test_without_pauses_there_is_none():
    parts = parts_to_read("Yes it is. No it is not.\n\nWell.", Modes((READ,), 60, 3.5, 50), READ, 1)
    assert [part.silence for part in parts] == [()] * 3


@pytest.mark.parametrize(
    "pauses",
    [
        {"code": 1, "sentence": 4},
        {"code": -1, "sentence": 4, "paragraph": 4},
        {"code": 1, "sentence": 0.2, "paragraph": 4},
        {"code": 1, "sentence": 4, "paragraph": 4000},
    ],
)
def test_pauses_that_do_not_fit_are_refused(tiny_checkpoint: Path, tmp_path: Path, pauses: dict):
    path = tmp_path / "processor_config.json"
    shutil.copy(tiny_checkpoint / path.name, path)
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, "pauses": pauses}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="processor_config"):
        read_modes(path)
