"""A small part of the stress bench: fuzzed calls, malformed recordings, cancels and damaged folders
leave a service as it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from scripts.bench.program import running
from scripts.bench.stress import KINDS, measure_cancels, measure_damage
from scripts.bench.stress_calls import measure_calls, measure_recordings
from tests.ui.page_support import FakeService, free_port


@dataclass
class Here:
    """The page in this process, in the place of the program in its own."""

    url: str
    log: pytest.LogCaptureFixture

    def written(self) -> str:
        return self.log.text

    def counts(self) -> dict[str, int]:
        return {}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    page = launch(FakeService(), PageConfig(port=port))
    yield f"http://127.0.0.1:{port}"
    page.close(verbose=False)


@pytest.fixture
def here(url, caplog) -> Here:
    caplog.set_level(logging.ERROR)
    return Here(url, caplog)


def test_another_program_on_the_port_is_not_taken_for_the_one_to_be_measured(url):
    port = int(url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"Port {port} is taken"), running(port):
        pytest.fail("it was measured")


def test_fuzzed_calls_are_answered_and_write_no_traceback(here):
    found = asyncio.run(measure_calls(here, 150))  # type: ignore[arg-type]
    assert sum(found["statuses"].values()) == 150
    assert all(status.isdigit() and int(status) < 500 for status in found["statuses"]), found
    assert found["tracebacks"] == 0


def test_malformed_recordings_are_answered_with_a_refusal(here):
    found = asyncio.run(measure_recordings(here, 20))  # type: ignore[arg-type]
    assert sum(found["statuses"].values()) == 20
    assert set(found["statuses"]) <= {"200", "413", "422", "503"} and found["tracebacks"] == 0


def test_cancels_leave_nothing_behind(tiny_checkpoint):
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"))
    service.start()
    try:
        found = asyncio.run(measure_cancels(service, 24))
    finally:
        service.close()
    left = ("running", "waiting", "blocks_used", "leaked_blocks")
    assert {name: found[name] for name in left} == dict.fromkeys(left, 0)
    assert found["handles_more"] <= 0  # one of an earlier test may close meanwhile
    assert set(found["threads_more"]) <= {"asyncio"}


def test_damaged_folders_are_refused_in_a_sentence():
    found = measure_damage(len(KINDS))
    assert found["tracebacks"] == [] and found["refused"] + found["fine"] == len(KINDS)
    assert found["refused"] >= 4
