"""Steps of the CUDA runtime at the published size, beside what this GPU can do at most. Used by
`scripts.bench`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from moss_engine.api.tokens import Row
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import FORMATS as BITS
from moss_engine.models.layout import HEADS_BITS, bits_of_format
from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from scripts.bench.common.timing import (
    REST_S,
    Ceilings,
    Figure,
    device_times_ms,
    figure,
    wall_times_ms,
)

if TYPE_CHECKING:
    from moss_engine.runtime.cuda.runtime import CudaRuntime

CONTEXT_ROWS = 600
FILLS = ((512, 0), (64, 2000), (64, 0), (128, 0), (256, 0))
"""New rows and cached ones of the prefills that are timed."""


def step_parameters(config: ModelConfig, *, text_logits: bool = True) -> int:
    """Weights that one step reads. The text head is needed only to sample text; while a reply
    speaks, only keys and values of the last text layer.
    """
    head_rows = config.audio_vocab_size + (config.vocab_size if text_logits else 0)
    unused = 0 if text_logits else last_layer_unused(config)
    return config.num_layers * layer_parameters(config) - unused + head_rows * config.hidden_size


def step_bytes(config: ModelConfig, float8: str = "none", *, text_logits: bool = True) -> int:
    """Weight bytes that one step reads: one byte a float8 weight, two a bfloat16 one; of int8 and
    int4 without their scales."""
    if float8 in BITS:
        head_rows = config.audio_vocab_size + (config.vocab_size if text_logits else 0)
        heads = head_rows * config.hidden_size
        layers = step_parameters(config, text_logits=text_logits) - heads
        return (layers * BITS[float8] + heads * HEADS_BITS) // 8
    in_float8 = {
        "none": 0,
        "trunk": config.num_shared_layers * layer_parameters(config),
        "all": step_parameters(config, text_logits=text_logits),
    }[float8]
    return 2 * step_parameters(config, text_logits=text_logits) - in_float8


def layer_parameters(config: ModelConfig) -> int:
    q_size, kv_size = (
        n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
    )
    return config.hidden_size * (2 * q_size + 2 * kv_size + 3 * config.intermediate_size)


def last_layer_unused(config: ModelConfig) -> int:
    """Weights of a layer of which only keys and values are wanted, without those of the two."""
    return (
        layer_parameters(config)
        - config.hidden_size * 2 * config.num_key_value_heads * config.head_dim
    )


def kv_row_bytes(config: ModelConfig, *, text_logits: bool = True) -> int:
    """Bytes of keys and values that a step reads for each cached row."""
    num_layers = config.num_layers if text_logits else config.num_layers - 1
    return num_layers * 2 * config.num_key_value_heads * config.head_dim * 2


def decode_limit_ms(
    config: ModelConfig,
    ceilings: Ceilings | None,
    batch: int,
    context: int,
    float8: str = "none",
    *,
    text_logits: bool = True,
) -> float | None:
    """The larger of the times of reading weights and KV and of computing; None if unknown."""
    if ceilings is None:
        return None
    weight_bytes = step_bytes(config, float8, text_logits=text_logits)
    weights = step_parameters(config, text_logits=text_logits)
    kv_bytes = batch * context * kv_row_bytes(config, text_logits=text_logits)
    read_s = (weight_bytes + kv_bytes) / ceilings.read_bytes_per_s
    in_float8 = 0 if float8 in BITS else 2 * weights - weight_bytes
    product_s = products_s(ceilings, 2 * batch * (weights - in_float8), 2 * batch * in_float8)
    return None if product_s is None else 1e3 * max(read_s, product_s)


def fill_limit_ms(
    config: ModelConfig, ceilings: Ceilings | None, rows: int, cached: int, float8: str = "none"
) -> float | None:
    """The same for many rows of one sequence, with heads for one row only."""
    if ceilings is None:
        return None
    read_s = (
        step_bytes(config, float8) + (cached + rows) * kv_row_bytes(config)
    ) / ceilings.read_bytes_per_s
    layers = {"trunk": config.num_shared_layers, "all": config.num_layers}.get(float8, 0)
    flop = 2 * rows * (config.num_layers - layers) * layer_parameters(config)
    flop += (
        4
        * config.num_layers
        * config.num_attention_heads
        * config.head_dim
        * rows
        * (cached + rows / 2)
    )
    product_s = products_s(ceilings, flop, 2 * rows * layers * layer_parameters(config))
    return None if product_s is None else 1e3 * max(read_s, product_s)


def products_s(ceilings: Ceilings, flop: float, float8_flop: float) -> float | None:
    """Least time of these numbers of operations in bfloat16 and in float8."""
    product_s = flop / ceilings.dense_flop_per_s
    if not float8_flop:
        return product_s
    return (
        None
        if ceilings.float8_flop_per_s is None
        else product_s + float8_flop / ceilings.float8_flop_per_s
    )


def rows_of(count: int, config: ModelConfig, seed: int) -> tuple[Row, ...]:
    """Half text, half audio."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, config.sosp_token_id, (count,), generator=generator)
    text[count // 2 :] = config.modality_pad_token_id
    audio = torch.randint(0, config.eosp_token_id, (count,), generator=generator)
    return tuple(Row(int(a), int(b)) for a, b in zip(text, audio, strict=True))


def sequence(
    config: ModelConfig, index: int, cached: int, count: int, blocks_each: int
) -> ScheduledSequence:
    table = tuple(range(index * blocks_each, (index + 1) * blocks_each))
    return ScheduledSequence(rows_of(count, config, index), cached, table, True)


def blocks_each() -> int:
    """Blocks of a sequence in the decode steps that are timed."""
    return CONTEXT_ROWS // 16 + 2


def make_runtime(
    config: ModelConfig,
    max_batch: int,
    kv_rows: int,
    float8: str,
    max_step_rows: int = 512,
    *,
    device: torch.device,
):
    """A network with random weights, in int8 or int4 where `float8` says so instead; raises
    ConfigError where memory is too small."""
    from moss_engine.runtime.cuda.runtime import make_random_runtime
    from moss_engine.runtime.cuda.weights import Float8, num_bytes
    from moss_engine.runtime.memory import require_memory

    bits = bits_of_format(config, float8) if float8 in BITS else None
    kind = Float8.NONE if bits else Float8(float8)
    require_memory(
        device, num_bytes(config, torch.bfloat16, kind, bits), kv_rows * kv_row_bytes(config)
    )
    limits = Limits(
        16,
        kv_rows // 16,
        max_batch,
        max_step_rows,
        min(config.max_position_embeddings, kv_rows, 4096),
    )
    return make_random_runtime(
        config, limits, device=device, dtype=torch.bfloat16, seed=0, float8=kind, bits=bits
    )


def measure_decode(
    runtime: CudaRuntime,
    config: ModelConfig,
    ceilings: Ceilings | None,
    batches: list[int],
    float8: str,
) -> Iterator[Figure]:
    """Decode steps with both logits, and as served, against the time of reading their inputs."""
    for batch in batches:
        shares = tuple(sequence(config, i, CONTEXT_ROWS, 1, blocks_each()) for i in range(batch))
        step = ScheduledBatch(shares)
        limit_ms = decode_limit_ms(config, ceilings, batch, CONTEXT_ROWS, float8)
        runtime.forward(step)
        yield figure(
            f"decode step, batch {batch}",
            device_times_ms(runtime.decode_again(batch)),
            limit_ms,
            "device",
        )
        for name, text_logits in (("rows drawn", True), ("speaking, rows drawn", False)):
            times_ms = device_times_ms(
                runtime.decode_again(batch, text_logits=text_logits, draw=True)
            )
            least_ms = decode_limit_ms(
                config, ceilings, batch, CONTEXT_ROWS, float8, text_logits=text_logits
            )
            yield figure(f"decode step, batch {batch}, {name}", times_ms, least_ms, "device")
        yield figure(
            f"forward of one row, batch {batch}",
            wall_times_ms(lambda: runtime.forward(step)),  # noqa: B023
            limit_ms,
            "wall",
        )


def measure_prefill(
    runtime: CudaRuntime, config: ModelConfig, ceilings: Ceilings | None, float8: str
) -> Iterator[Figure]:
    """Wall times of prefill, each after rest; the longest also back to back."""
    for rows, cached in FILLS:
        step = ScheduledBatch((sequence(config, 0, cached, rows, (cached + rows) // 16 + 1),))
        limit_ms = fill_limit_ms(config, ceilings, rows, cached, float8)
        name = f"prefill {rows} rows on {cached} cached"
        run = lambda: runtime.forward(step)  # noqa: B023, E731
        yield figure(name, wall_times_ms(run, rest_s=REST_S), limit_ms, "wall")
        if rows == max(FILLS)[0]:
            yield figure(f"{name}, one after another", wall_times_ms(run), limit_ms, "wall")


def measure_baselines(config: ModelConfig, ceilings: Ceilings | None) -> Iterator[Figure]:
    from scripts.bench.lm.baselines import PlainStep, captured, transformers_step_ms

    limit_ms = decode_limit_ms(config, ceilings, 1, CONTEXT_ROWS)
    step = PlainStep(config, CONTEXT_ROWS)
    yield figure("plain PyTorch, operation by operation", device_times_ms(step), limit_ms, "device")
    yield figure("plain PyTorch, CUDA graph", device_times_ms(captured(step)), limit_ms, "device")
    step.compile_layers()
    yield figure(
        "compiled PyTorch, CUDA graph", device_times_ms(captured(step)), limit_ms, "device"
    )
    del step
    for cache, times_ms in transformers_step_ms(config, CONTEXT_ROWS):
        name = f"transformers generate, {cache} cache, a token"
        yield figure(name, times_ms, limit_ms, "wall")
