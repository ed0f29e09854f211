"""The network in TensorRT-LLM's functional API: `gpt_attention` over a paged KV pool.

q and k are normed head by head in ordinary operations before the plugin, which rotates them (base
and table from the checkpoint's configuration) and reads and writes the pool. Every layer has a KV
slot of its own. The residual stream is float32; matrices are multiplied in the engine's number
format.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits

Weight = Callable[[str], Any]
"""A tensor of the builders' layout, by its name, as a tensor of the network."""
Linear = Callable[[Any, str], Any]
"""Rows times a matrix of the layout, by its name."""
PERF_KNOBS = 16


@dataclass(frozen=True)
class StepInputs:
    """The tensors that every call of an engine is given."""

    input_ids: Any
    position_ids: Any
    last_token_ids: Any
    attention: dict[str, Any]


def max_blocks(limits: Limits) -> int:
    """Blocks of the longest sequence."""
    return -(-limits.max_seq_len // limits.block_size)


def step_inputs(functional: Any, num_layers: int, limits: Limits) -> StepInputs:
    """Declare the inputs with two profiles: decode, and steps of up to `max_step_rows` rows."""
    batch = [(1, limits.max_batch, limits.max_batch), (1, 1, limits.max_batch)]
    # at least two, as a size that one profile fixes may be reported as fixed in all
    rows = [(1, most, max(2, most)) for most in (limits.max_batch, limits.max_step_rows)]
    declare = partial(_declare, functional)
    return StepInputs(
        declare("input_ids", "int32", num_tokens=rows),
        declare("position_ids", "int32", position_ids_num_tokens=rows),
        declare("last_token_ids", "int32", batch_size=batch),
        _attention_inputs(declare, num_layers, limits, batch),
    )


def _declare(functional: Any, name: str, dtype: str, **dims: Any) -> Any:
    """An input; a size is a number, or (smallest, usual, largest) of both profiles."""
    ranges = OrderedDict(
        (dim, size if isinstance(size, list) else [size] * 2) for dim, size in dims.items()
    )
    shape = [-1 if isinstance(size, list) else size for size in dims.values()]
    return functional.Tensor(name=name, dtype=dtype, shape=shape, dim_range=ranges)


def _attention_inputs(
    declare: Callable[..., Any], num_layers: int, limits: Limits, batch: list[tuple[int, int, int]]
) -> dict[str, Any]:
    """The inputs that `gpt_attention` takes beside queries, keys and values."""
    blocks = [(1, max_blocks(limits), max_blocks(limits))] * 2
    capacity = [(max_blocks(limits) * limits.block_size,) * 3] * 2
    attention = {
        name: declare(name, "int32", batch_size=batch)
        for name in (
            "sequence_length",
            "host_past_key_value_lengths",
            "context_lengths",
            "host_context_lengths",
            "host_request_types",
        )
    }
    attention["host_max_attention_window_sizes"] = declare(
        "host_max_attention_window_sizes", "int32", num_layers=num_layers
    )
    attention["host_sink_token_length"] = declare("host_sink_token_length", "int32", scalar=1)
    attention["cache_indirection"] = declare(
        "cache_indirection",
        "int32",
        batch_size_cache=batch,
        beam_width=[(1, 1, 1)] * 2,
        max_seq_len=capacity,
    )
    for name in ("kv_cache_block_offsets", "host_kv_cache_block_offsets"):
        attention[name] = declare(
            name, "int32", num_pools=1, batch_size=batch, kv=2, max_blocks=blocks
        )
    attention["host_kv_cache_pool_pointers"] = declare(
        "host_kv_cache_pool_pointers", "int64", num_pools=1, primary_secondary=2
    )
    attention["host_kv_cache_pool_mapping"] = declare(
        "host_kv_cache_pool_mapping", "int32", num_layers=num_layers, pool_layer=2
    )
    attention["host_runtime_perf_knobs"] = declare(
        "host_runtime_perf_knobs", "int64", perf_knobs=PERF_KNOBS
    )
    attention["host_context_progress"] = declare(
        "host_context_progress", "int64", context_progress=1
    )
    return attention


def rotary_constants(config: ModelConfig, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Constants of the plugin's rotary embedding.

    Inverse frequencies float32 [head_dim / 2]; cosine and sine side by side for every position and
    frequency, float32 [1, positions * head_dim].
    """
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    frequencies = (1.0 / config.rope_theta**exponents).astype(np.float32)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * frequencies
    return frequencies, np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(
        np.float32
    ).reshape(1, -1)


class NetworkWriter:
    """Adds the operations of `functional`, tensorrt_llm's; `dtype` is that of products and KV."""

    def __init__(
        self,
        functional: Any,
        config: ModelConfig,
        limits: Limits,
        dtype: str,
        weight: Weight,
        linear: Linear,
    ):
        self._f = functional
        self._config = config
        self._limits = limits
        self._dtype = dtype
        self._weight = weight
        self._linear = linear

    def write(self, step: StepInputs) -> None:
        """The whole network: ids to `logits` and `audio_logits`, float32 [sequences, vocab]."""
        f, config = self._f, self._config
        frequencies, table = rotary_constants(
            config, max_blocks(self._limits) * self._limits.block_size
        )
        self._attention_inputs = {
            **step.attention,
            "rotary_inv_freq": f.constant(frequencies),
            "rotary_cos_sin": f.constant(table),
        }
        trunk = self._embed(step.input_ids)
        shared, branch = config.num_shared_layers, config.num_modality_layers
        for slot in range(shared):
            trunk = self._layer(trunk, slot)
        for number, (name, output) in enumerate((("text", "logits"), ("audio", "audio_logits"))):
            x = trunk
            for i in range(branch):
                x = self._layer(x, shared + number * branch + i)
            x = f.gather_last_token_logits(x, step.last_token_ids, True)
            logits = f.cast(
                self._linear(self._norm(x, f"{name}.norm", config.hidden_size), f"{name}.head"),
                "float32",
            )
            logits.mark_output(output, "float32")

    def _embed(self, ids: Any) -> Any:
        """Select, never sum: ids below vocab_size read the text table, others the audio table."""
        f, size = self._f, self._config.vocab_size
        is_audio = f.gt(ids, size - 1)
        text = f.embedding(f.where(is_audio, 0, ids), self._weight("embed.text"))
        audio = f.embedding(f.where(is_audio, f.sub(ids, size), 0), self._weight("embed.audio"))
        return f.cast(f.where(f.unsqueeze(is_audio, 1), audio, text), "float32")

    def _layer(self, x: Any, slot: int) -> Any:
        f, prefix, hidden = self._f, f"layers.{slot}.", self._config.hidden_size
        attended = self._attend(self._norm(x, prefix + "input_norm", hidden), slot)
        x = f.add(x, f.cast(self._linear(attended, prefix + "o"), "float32"))
        gate_up = self._linear(self._norm(x, prefix + "mlp_norm", hidden), prefix + "gate_up")
        gate, up = f.split(gate_up, [self._config.intermediate_size] * 2, dim=1)
        return f.add(x, f.cast(self._linear(f.mul(f.silu(gate), up), prefix + "down"), "float32"))

    def _attend(self, normed: Any, slot: int) -> Any:
        f, config, prefix = self._f, self._config, f"layers.{slot}."
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        q, k, v = f.split(self._linear(normed, prefix + "qkv"), sizes, dim=1)
        q = self._norm_heads(q, prefix + "q_norm", heads)
        k = self._norm_heads(k, prefix + "k_norm", kv_heads)
        attended, _ = f.gpt_attention(
            qkv=f.concat([q, k, v], dim=1),
            past_key_value=None,
            layer_idx=slot,
            num_heads=heads,
            num_kv_heads=kv_heads,
            hidden_size_per_head=head_dim,
            q_scaling=1.0,
            rotary_embedding_dim=head_dim,
            rotary_embedding_base=config.rope_theta,
            rotary_embedding_max_positions=max_blocks(self._limits) * self._limits.block_size,
            position_embedding_type=f.PositionEmbeddingType.rope_gpt_neox,
            mask_type=f.AttentionMaskType.causal,
            max_context_length=self._limits.max_step_rows,
            use_cache=True,
            **self._attention_inputs,
        )
        return attended

    def _norm(self, x: Any, name: str, size: int) -> Any:
        """RMSNorm over the last axis in float32, given in the engine's format."""
        f = self._f
        weight = f.cast(self._weight(name), "float32")
        return f.cast(
            f.rms_norm(x, size, weight=weight, eps=self._config.rms_norm_eps), self._dtype
        )

    def _norm_heads(self, x: Any, name: str, num_heads: int) -> Any:
        """One norm for every head: [rows, heads * head_dim] in and out."""
        f, head_dim = self._f, self._config.head_dim
        x = f.cast(f.view(x, [-1, num_heads, head_dim]), "float32")
        return f.view(self._norm(x, name, head_dim), [-1, num_heads * head_dim])
