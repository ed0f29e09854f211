"""The machine's limits are found in the background, and only while nothing is asked."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from moss_engine.api.info import MachineLimits, RuntimeInfo
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.roofline import limits_in_steps
from moss_engine.service.local import MachineWatch
from tests.service.service_support import wait_until

LIMITS = MachineLimits(1e9, 1e9, 1000, 10, 2000)


def steps(taken: list[int], count: int = 3) -> Iterator[MachineLimits | None]:
    for step in range(count):
        taken.append(step)
        yield None
    yield LIMITS


def test_it_waits_while_somebody_is_answered():
    taken: list[int] = []
    busy = [True]
    watch = MachineWatch(lambda: steps(taken), lambda: not busy[0])
    watch.start()
    wait_until(lambda: taken == [0])
    assert watch.limits is None
    busy[0] = False
    wait_until(lambda: watch.limits == LIMITS)
    watch.close()


def test_it_ends_with_the_service():
    watch = MachineWatch(lambda: steps([], 10**9), lambda: True)
    watch.start()
    watch.close()
    assert watch.limits is None


def test_the_built_in_voice_has_limits():
    model = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    info = RuntimeInfo("torch", "1", "cpu", "int8", "nano")
    threads = torch.get_num_threads()
    *before, limits = limits_in_steps(model, info, torch.device("cpu"), threads)
    assert torch.get_num_threads() == threads
    assert not any(before) and limits is not None
    assert limits.read_bytes_per_s > 0 and limits.operations_per_s > 0
    assert limits.row_operations == 2 * limits.weight_bytes  # int8
