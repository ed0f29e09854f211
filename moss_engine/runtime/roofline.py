"""What one step of the network must read and multiply, and the rates at which this machine does
that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from moss_engine.api.info import MachineLimits, RuntimeInfo
from moss_engine.models.checkpoint import expected_tensors
from moss_engine.models.config import ModelConfig

VALUE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "int8": 1,
    "int4": 0.5 + 2 / 128,
}
"""Of one weight; 4 bits have a 16-bit scale for each 128 of them."""
REPEATS = 30
MAX_BUFFER_BYTES = 128 * 2**20  # of what is read to find the rate beside a running network


@dataclass(frozen=True)
class StepNeeds:
    """One step of one sequence reads every weight but the embedding tables once (`step_parameters`,
    `weight_bytes`), and `row_bytes` of keys and values for each cached row; it multiplies and adds
    once per weight. `parameters` counts the embedding tables, too."""

    parameters: int
    step_parameters: int
    weight_bytes: int
    row_bytes: int


def needs_of(config: ModelConfig, info: RuntimeInfo, device: torch.device) -> StepNeeds:
    """What a step of this network reads and multiplies in the runtime's number format."""
    sizes = {name: math.prod(shape) for name, shape in expected_tensors(config).items()}
    step_parameters = sum(size for name, size in sizes.items() if "embed" not in name)
    value_bytes = VALUE_BYTES[info.dtype.removesuffix("-all")]
    kv_value_bytes = 4 if device.type == "cpu" else max(2, math.ceil(value_bytes))
    heads = sum(size for name, size in sizes.items() if "lm_head" in name)
    head_bytes = heads * max(1, value_bytes)
    row_values = 2 * config.num_layers * config.num_key_value_heads * config.head_dim
    return StepNeeds(
        parameters=sum(sizes.values()),
        step_parameters=step_parameters,
        weight_bytes=round((step_parameters - heads) * value_bytes + head_bytes),
        row_bytes=row_values * kv_value_bytes,
    )


def read_rates(num_bytes: int, device: torch.device) -> Iterator[float]:
    """Bytes a second at which a buffer of this size can be read again and again: the best so far,
    after each of REPEATS runs."""
    buffer = torch.ones(max(1024, num_bytes // 4), device=device)
    yield from _rates(lambda: buffer.sum(), buffer.nbytes, device)


def dense_rates(size: int, device: torch.device) -> Iterator[float]:
    """Operations a second of a product of 512 rows with a [4 * size, size] matrix: the best so far,
    after each of REPEATS runs."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.ones(512, size, device=device, dtype=dtype)
    weight = torch.ones(4 * size, size, device=device, dtype=dtype)
    yield from _rates(lambda: F.linear(x, weight), 2 * 512 * weight.numel(), device)


def limits_in_steps(
    config: ModelConfig, info: RuntimeInfo, device: torch.device, threads: int
) -> Iterator[MachineLimits | None]:
    """The limits of this machine for this network, found in steps of a few milliseconds: None until
    the last one. To be run in a thread of its own, while the network rests."""
    if device.type == "cpu":
        torch.set_num_threads(threads)  # those of the network: MKL keeps one number for all
    needs = needs_of(config, info, device)
    read = dense = 0.0
    for rate in read_rates(min(MAX_BUFFER_BYTES, needs.weight_bytes), device):
        read = rate
        yield None
    for rate in dense_rates(config.hidden_size, device):
        dense = rate
        yield None
    yield MachineLimits(
        read_bytes_per_s=read,
        operations_per_s=dense,
        weight_bytes=needs.weight_bytes,
        row_bytes=needs.row_bytes,
        row_operations=2 * needs.step_parameters,
    )


def timed_ms(run: Callable[[], object], device: torch.device) -> float:
    """Milliseconds that a run takes."""
    start_s = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start_s) * 1e3


def _rates(run: Callable[[], object], amount: float, device: torch.device) -> Iterator[float]:
    """The highest of many: for a limit, disturbances do not count."""
    best_ms = math.inf
    for _ in range(REPEATS):
        best_ms = min(best_ms, timed_ms(run, device))
        yield amount / best_ms * 1e3
