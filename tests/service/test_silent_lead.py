"""The silence with which a network begins its replies is left out of their sound, and of the times
of their text."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from moss_engine.api.errors import CheckpointError
from moss_engine.api.events import TextDelta
from moss_engine.api.modes import read_modes
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.service.core import ServiceCore
from tests.fakes import SPOKEN, FakeCodec, FakeProcessor, FakeRuntime, scripted
from tests.service.service_support import ask, heard, listen, sound_of

TWO_SPANS = (*SPOKEN[:-1], *SPOKEN[1:])
"""Text, three codes, text, three codes."""


@pytest.mark.parametrize("lead_s", [0.0, 0.03, 0.1])
def test_the_lead_is_not_heard(lead_s: float) -> None:
    runtime = FakeRuntime(scripted(list(TWO_SPANS)))
    engine = Engine(runtime, FakeProcessor(), EngineConfig(), samples_per_code=960)
    service = ServiceCore(engine, FakeCodec(), EngineConfig(), silent_lead_s=lead_s)
    service.start()
    try:
        events = asyncio.run(listen(service, ask()))
    finally:
        service.close()
    lead = round(lead_s * 24_000)
    np.testing.assert_array_equal(heard(events), sound_of(TWO_SPANS)[lead:])
    starts = {event.start_sample for event in events if isinstance(event, TextDelta)}
    assert starts == {0, 3 * 960 - lead}


@pytest.mark.parametrize("lead_s", [-0.1, 1.0, float("nan"), "x"])
def test_a_lead_that_does_not_fit_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, lead_s: object
) -> None:
    path = tmp_path / "processor_config.json"
    shutil.copy(tiny_checkpoint / path.name, path)
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, "silent_lead_s": lead_s}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="processor_config"):
        read_modes(path)
