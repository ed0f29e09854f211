"""Builds engine files with TensorRT-LLM's attention plugin, on the GPU that will run them: the
network of the other backends, with `gpt_attention` over a paged pool in the plugin's layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.export.network import Network, Ops, Value
from moss_engine.export.tensorrt import (
    BuildTarget,
    Report,
    Weights,
    capability_of,
    constants,
    serialize,
    write_plan,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import file_digest
from moss_engine.models.network import rotary_pairs
from moss_engine.runtime.engine_manifest import EngineManifest
from moss_engine.runtime.tensorrt.engine import Library, describe
from moss_engine.runtime.tensorrt.tensors import ANY, EngineTensors
from moss_engine.runtime.tensorrt_llm.runtime import (
    ATTENTION,
    RELEASES,
    capacity,
    engine_inputs,
    find_plugin,
    profile_shapes,
)

PLUGIN_SETTINGS = {
    "gemm_plugin": None,
    "remove_input_padding": True,
    "paged_kv_cache": True,
    "context_fmha": True,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": False,
}
"""Rows are packed, without padding, over a paged pool, also in the context phase."""


def build_llm_plan(
    config: ModelConfig, target: BuildTarget, path: Path, weights: Weights | None, report: Report
) -> EngineManifest:
    """As `build_tensorrt_plan`, for TensorRT-LLM."""
    size = target.limits.block_size
    if size < 8 or size & (size - 1):
        raise ConfigError(
            f"--block-size {size} is no power of two from 8 on, which tensorrt_llm needs; use 32."
        )
    library, llm = _import_library()
    capability = capability_of(library, target)
    tensors = EngineTensors(config, target.limits, target.dtype)
    builder = llm.Builder()
    network = builder.create_network()
    settings = {
        **PLUGIN_SETTINGS,
        "dtype": tensors.io_dtype,
        "gpt_attention_plugin": tensors.io_dtype,
        "tokens_per_block": target.limits.block_size,
    }
    for name, value in settings.items():
        setattr(network.plugin_config, name, value)
    with llm.net_guard(network):
        ops, builder = Ops(library, network.trt_network), builder.trt_builder
        report("defining the network" + ("" if weights is None else " and reading its weights"))
        values = constants(ops, tensors, weights) if weights is not None else {}
        specs = engine_inputs(tensors)
        values |= {name: ops.input(name, spec) for name, spec in specs.items()}
        attention = PluginAttention(ops, network, tensors, values)
        Network(ops, tensors, values.__getitem__).define(values, attention)
        shapes, made = profile_shapes(tensors), builder.create_builder_config()
        report("building")
        plan = serialize(library, builder, network.trt_network, made, shapes, target, report)
    digest = file_digest(find_plugin(None))
    return write_plan(path, plan, library, capability, target, report, digest)


class PluginAttention:
    """`Attention` by the plugin, which rotates queries and keys, and reads and writes the pool.
    Every layer has a KV slot of its own."""

    def __init__(self, ops: Ops, network: Any, tensors: EngineTensors, inputs: Mapping[str, Value]):
        from tensorrt_llm import functional  # pyright: ignore

        self._f = functional
        self._ops = ops
        self._network = network
        self._config = tensors.config
        self._dtype = tensors.io_dtype
        self._max_step_rows = tensors.limits.max_step_rows
        self._num_positions = capacity(tensors.limits)
        frequencies, table = rotary_constants(tensors.config, self._num_positions)
        self._inputs = {
            **{name: self._wrapped(inputs[name]) for name in ATTENTION},
            "rotary_inv_freq": self._wrapped(ops.weight(frequencies)),
            "rotary_cos_sin": self._wrapped(ops.weight(table)),
        }

    def attend(self, slot: int, q: Value, k: Value, v: Value) -> Value:
        """See `Attention`."""
        ops, f, config = self._ops, self._f, self._config
        heads, head_dim = config.num_attention_heads, config.head_dim
        qkv = ops.concatenate([ops.cast(part, self._dtype) for part in (q, k, v)], 1)
        qkv = ops.reshape(qkv, (0, (heads + 2 * config.num_key_value_heads) * head_dim))
        attended, _ = f.gpt_attention(
            qkv=self._wrapped(qkv),
            past_key_value=None,
            layer_idx=slot,
            num_heads=heads,
            num_kv_heads=config.num_key_value_heads,
            hidden_size_per_head=head_dim,
            q_scaling=1.0,
            rotary_embedding_dim=head_dim,
            rotary_embedding_base=config.rope_theta,
            rotary_embedding_max_positions=self._num_positions,
            position_embedding_type=f.PositionEmbeddingType.rope_gpt_neox,
            mask_type=f.AttentionMaskType.causal,
            max_context_length=self._max_step_rows,
            use_cache=True,
            **self._inputs,
        )
        return Value(attended.trt_tensor, self._dtype, (ANY, heads * head_dim))

    def _wrapped(self, value: Value) -> Any:
        return self._f.Tensor(
            trt_tensor=value.tensor, network=self._network, is_network_input=False
        )


def rotary_constants(config: ModelConfig, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse frequencies float32 [head_dim / 2]; cosine and sine side by side for every position
    and frequency, float32 [1, positions * head_dim]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    pairs = rotary_pairs(config, num_positions, torch.device("cpu"))
    return (config.rope_theta**-exponents).float(), pairs.mT.reshape(1, -1)


def _import_library() -> tuple[Library, Any]:
    remedy = (
        "install tensorrt_llm 1.2.1 from NVIDIA's own package index, in an environment of its own "
        "with Python 3.10 or 3.12, as docs/engine_files.md says."
    )
    try:
        import tensorrt  # pyright: ignore[reportMissingImports]
        import tensorrt_llm  # pyright: ignore
        from tensorrt_llm import __version__ as version  # pyright: ignore
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingPackageError(
            f"--backend tensorrt_llm cannot be loaded ({error}); {remedy}"
        ) from None
    if version not in RELEASES:
        raise ConfigError(
            f"tensorrt_llm {version} is installed and engines are built with "
            f"{' or '.join(RELEASES)}; {remedy}"
        )
    return describe("tensorrt_llm", tensorrt), tensorrt_llm
