"""A runtime and a codec that share a GPU: steps wait for a first sound, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from moss_engine.api.events import FinishReason
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.service.core import ServiceCore
from tests.fakes import FakeCodec, FakeProcessor
from tests.service.service_support import PATIENCE_S, ask, listen_to, talking, wait_until


class Held:
    """A service whose codec waits in its first run; `answers` are what the engine's thread was told
    each time that it asked whether to wait."""

    def __init__(self, one_gpu: bool):
        self.runtime, codec, config = talking(), FakeCodec(), EngineConfig()
        self.go_on, self.answers = threading.Event(), []
        codec.before_push = lambda: self.go_on.wait(PATIENCE_S)
        engine = Engine(self.runtime, FakeProcessor(), config, samples_per_code=960)
        self.service = ServiceCore(engine, codec, config, one_gpu=one_gpu)
        is_awaited = self.service._worker.is_awaited

        def noted(ahead_s: dict[str, float]) -> bool:
            self.answers.append(is_awaited(ahead_s))
            return self.answers[-1]

        self.service._worker.is_awaited = noted
        self.service.start()

    def waits(self) -> bool:
        """Whether the engine's thread has waited, since it was asked to look."""
        before = len(self.answers)
        self.service._engine_wake.set()
        wait_until(lambda: len(self.answers) > before)
        return self.answers[-1]


@pytest.fixture(params=[True])
def held(request: pytest.FixtureRequest) -> Iterator[Held]:
    made = Held(request.param)
    yield made
    made.go_on.set()
    made.service.close()


def test_no_step_runs_beside_the_only_reply_s_first_sound(held: Held):
    reply = held.service.submit(ask())
    wait_until(lambda: held.answers and held.answers[-1])
    steps = len(held.runtime.batches)
    assert held.waits() and held.waits() and len(held.runtime.batches) == steps
    held.go_on.set()
    assert listen_to(reply)[-1].reason is FinishReason.STOP
    assert len(held.runtime.batches) > steps


def test_who_waits_for_a_step_gets_it_beside_another_s_first_sound(held: Held):
    first = held.service.submit(ask())
    wait_until(lambda: held.answers and held.answers[-1])
    steps = len(held.runtime.batches)
    second = held.service.submit(ask())
    wait_until(lambda: len(held.runtime.batches) >= steps + 5)
    held.go_on.set()
    assert [listen_to(reply)[-1].reason for reply in (first, second)] == [FinishReason.STOP] * 2


@pytest.mark.parametrize("held", [False], indirect=True)
def test_on_a_cpu_steps_and_sound_go_on_together(held: Held):
    reply = held.service.submit(ask())
    wait_until(lambda: held.service.stats().engine.blocks_cached > 0)
    held.go_on.set()
    assert listen_to(reply)[-1].reason is FinishReason.STOP
    assert held.answers == []
