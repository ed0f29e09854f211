"""A decode step's bytes and operations, this machine's limits, and how near the parts come.

Used by `scripts.bench`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.errors import ConfigError
from moss_engine.api.events import Sampled
from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row
from moss_engine.engine.engine import Engine
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import TorchRuntime
from moss_engine.runtime.roofline import dense_rate, needs_of, read_rate, timed_ms


@dataclass(frozen=True)
class Card:
    """Sizes and limits for one decode step of one sequence at `context_rows`.

    A step reads every weight but the embedding tables once, and all cached rows; it multiplies and
    adds once per weight read. `limit_ms` is the time that reading alone takes at `read_gb_per_s`,
    which was measured on a buffer of the same size: a small network may live in a cache.
    """

    parameters: int
    step_parameters: int
    context_rows: int
    weight_mb: float
    kv_mb: float
    step_mflop: float
    read_gb_per_s: float
    dense_gflop_per_s: float
    limit_ms: float


def make_card(
    config: ModelConfig, info: RuntimeInfo, device: torch.device, context_rows: int
) -> Card:
    """A step's needs, and this device's limits with the calling thread's number of threads."""
    needs = needs_of(config, info, device)
    kv_bytes = context_rows * needs.row_bytes
    read = read_rate(needs.weight_bytes + kv_bytes, device)
    return Card(
        parameters=needs.parameters,
        step_parameters=needs.step_parameters,
        context_rows=context_rows,
        weight_mb=needs.weight_bytes / 1e6,
        kv_mb=kv_bytes / 1e6,
        step_mflop=2 * needs.step_parameters / 1e6,
        read_gb_per_s=read / 1e9,
        dense_gflop_per_s=dense_rate(config.hidden_size, device) / 1e9,
        limit_ms=(needs.weight_bytes + kv_bytes) / read * 1e3,
    )


class ContiguousAttention:
    """A lower bound of a KV cache: one sequence's KV in one piece, read and written in place."""

    def __init__(self, config: ModelConfig, max_rows: int, device: torch.device):
        shape = (config.num_layers, max_rows, 2 * config.num_key_value_heads, config.head_dim)
        self.position = 0
        self._rows = torch.zeros(shape, device=device).unbind()

    def __call__(self, slot: int, q: Tensor, kv: Tensor) -> Tensor:
        self._rows[slot][self.position] = kv[0]
        live = self._rows[slot][: self.position + 1].unsqueeze(0).transpose(1, 2)
        keys, values = live.chunk(2, dim=1)
        q = q.view(1, keys.shape[1], -1, q.shape[-1])
        return F.scaled_dot_product_attention(q, keys, values).view(1, -1)


@dataclass(frozen=True)
class Overhead:
    """Medians of one decode step: the network alone, the paged runtime, the whole engine.

    `engine_ms - network_ms` is what scheduling, paging, sampling and events cost.
    """

    network_ms: float
    runtime_ms: float
    engine_ms: float
    overhead_ms: float
    network_share_of_limit: float


def measure_overhead(
    engine: Engine,
    config: ModelConfig,
    request: Request,
    device: torch.device,
    steps: int,
    limit_ms: float,
) -> Overhead:
    """Time the three in turn at the same context, so that the machine's state is the same for all.

    `request` must give a long reply; nothing else may use the engine. Raises ConfigError for a
    runtime whose network cannot be run by itself.
    """
    runtime = engine.runtime
    if not isinstance(runtime, TorchRuntime):
        raise ConfigError(
            "--overhead cannot run this runtime's network alone; omit it, or use --dtype float32."
        )
    network = runtime._network
    assert network is not None
    engine.submit(request)
    while not any(isinstance(event, Sampled) for event in engine.step().events):
        assert not engine.fault
    (segment,) = engine.processor.prepare(request)
    context = len(segment.prompt)
    attention = ContiguousAttention(config, context + steps + 1, device)
    row = Row(config.modality_pad_token_id, 0)
    table = _spare_blocks(runtime.limits, context + steps + 1)
    times: dict[str, list[float]] = {"network": [], "runtime": [], "engine": []}
    with torch.inference_mode():
        for step in range(steps):
            attention.position = context + step
            indices = torch.tensor([network.table_index(row)], device=device)
            position = torch.tensor([attention.position], device=device)
            batch = ScheduledBatch((ScheduledSequence((row,), attention.position, table, True),))
            runs = {
                "network": lambda i=indices, p=position: network.forward(i, p, attention, 1, None),
                "runtime": lambda b=batch: runtime.forward(b),
                "engine": engine.step,
            }
            for name, run in runs.items():
                times[name].append(timed_ms(run, device))
    engine.cancel(request.request_id)
    engine.step()
    alone, paged, whole = (statistics.median(values) for values in times.values())
    return Overhead(alone, paged, whole, whole - alone, limit_ms / alone)


@dataclass(frozen=True)
class BatchRate:
    """Rows a second of the engine alone, with `batch` replies in decode."""

    batch: int
    step_ms: float
    rows_per_s: float


def measure_batches(
    engine: Engine, requests: Sequence[Request], batches: Sequence[int], steps: int
) -> list[BatchRate]:
    """Median decode steps of the first 1, 2, ... of the `requests`, which give long replies."""
    rates = []
    for batch in batches:
        for request in requests[:batch]:
            engine.submit(request)
        while engine.step().num_rows != batch:
            assert not engine.fault
        step_ms = statistics.median(
            timed_ms(engine.step, torch.device("cpu")) for _ in range(steps)
        )
        rates.append(BatchRate(batch, step_ms, batch / step_ms * 1e3))
        for request in requests[:batch]:
            engine.cancel(request.request_id)
        engine.step()
    return rates


def _spare_blocks(limits: Limits, num_rows: int) -> tuple[int, ...]:
    """Blocks at the far end of the pool, which a single request does not reach."""
    count = -(-num_rows // limits.block_size)
    assert 2 * count <= limits.num_blocks, "the pool is too small to measure in; raise --kv-rows"
    return tuple(range(limits.num_blocks - count, limits.num_blocks))
