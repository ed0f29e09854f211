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
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.memory import kv_row_bytes

VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5 + 2 / 128}
"""Of one weight of a layer; 4 bits have a 16-bit scale for each 128 of them, and heads have 8."""
REPEATS = 30
MAX_BUFFER_BYTES = 128 * 2**20  # of what is read to find the rate beside a running network


@dataclass(frozen=True)
class StepNeeds:
    """What a step of one sequence reads once, and multiplies and adds by: the weights of the trunk,
    of the branches and of the heads, in a number format."""

    dtype: str
    trunk: int
    branches: int
    heads: int

    @property
    def weights(self) -> int:
        return self.trunk + self.branches + self.heads

    @property
    def in_float8(self) -> int:
        return {"float8": self.trunk, "float8-all": self.weights}.get(self.dtype, 0)

    @property
    def weight_bytes(self) -> int:
        if self.dtype.startswith("float8"):
            return 2 * self.weights - self.in_float8
        value_bytes = VALUE_BYTES[self.dtype]
        return round((self.trunk + self.branches) * value_bytes + self.heads * max(1, value_bytes))


def needs_of(config: ModelConfig, dtype: str, *, text_logits: bool = True) -> StepNeeds:
    """Of a step that samples text, too; while a reply speaks, without `text_logits`, the text head
    is not needed, and of the last text layer only keys and values are."""
    rows = config.num_attention_heads + config.num_key_value_heads
    layer = config.hidden_size * (2 * rows * config.head_dim + 3 * config.intermediate_size)
    kept = config.hidden_size * 2 * config.num_key_value_heads * config.head_dim
    branches = 2 * config.num_modality_layers * layer - (0 if text_logits else layer - kept)
    head_rows = config.audio_vocab_size + (config.vocab_size if text_logits else 0)
    trunk = config.num_shared_layers * layer
    return StepNeeds(dtype, trunk, branches, head_rows * config.hidden_size)


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
    needs = needs_of(config, info.dtype)
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
        row_bytes=kv_row_bytes(config, 4 if device.type == "cpu" else 2),
        row_operations=2 * needs.weights,
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
