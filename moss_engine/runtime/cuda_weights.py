"""The network's weights as the CUDA runtime keeps them: merged where one product can serve several.

Query, key and value projections are one matrix, gate and up projections another, and the text and audio branches,
which have equal shapes, are two *lanes* of the same tensors. The checkpoint's tensors are views into these, so loading
copies every tensor exactly once and a reference network can share the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig

INIT_STD = 0.02


@dataclass(frozen=True)
class Linear:
    """weight [lanes, outputs, inputs]; float8 weights have a scale [lanes, outputs] in float32."""

    weight: Tensor
    scale: Tensor | None = None


@dataclass(frozen=True)
class LayerWeights:
    """One layer of every lane. Norm weights are [lanes, size]; `qkv` outputs queries, keys, values."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor
    k_norm: Tensor
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Stack:
    """Layers run one after another; lane i of layer j has KV slot first_slot + i * lane_slots + j."""

    lanes: int
    first_slot: int
    lane_slots: int
    layers: tuple[LayerWeights, ...]


@dataclass(frozen=True)
class Weights:
    """All weights. `final_norm` is [2, hidden] and `heads` [vocab_size + audio_vocab_size, hidden], text first."""

    text_table: Tensor
    audio_table: Tensor
    trunk: Stack
    branches: Stack
    final_norm: Tensor
    heads: Linear

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in _tensors(self))


def allocate(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Uninitialised weights."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    hidden, ffn = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    qkv_size = q_size + 2 * config.num_key_value_heads * config.head_dim

    def stack(lanes: int, first_slot: int, num_layers: int) -> Stack:
        layers = tuple(
            LayerWeights(
                input_norm=empty(lanes, hidden), qkv=Linear(empty(lanes, qkv_size, hidden)),
                q_norm=empty(lanes, config.head_dim), k_norm=empty(lanes, config.head_dim),
                o=Linear(empty(lanes, hidden, q_size)), post_norm=empty(lanes, hidden),
                gate_up=Linear(empty(lanes, 2 * ffn, hidden)), down=Linear(empty(lanes, hidden, ffn)))
            for _ in range(num_layers))
        return Stack(lanes, first_slot, num_layers, layers)

    return Weights(
        text_table=empty(config.vocab_size, hidden), audio_table=empty(config.audio_vocab_size, hidden),
        trunk=stack(1, 0, config.num_shared_layers),
        branches=stack(2, config.num_shared_layers, config.num_modality_layers), final_norm=empty(2, hidden),
        heads=Linear(empty(1, config.vocab_size + config.audio_vocab_size, hidden)))


def named_views(weights: Weights, config: ModelConfig) -> dict[str, Tensor]:
    """The checkpoint's tensors, by name, as views of the merged ones."""
    heads = weights.heads.weight[0]
    views = {
        "model.embed_tokens.weight": weights.text_table,
        "model.audio_embed.weight": weights.audio_table,
        "model.text_norm.weight": weights.final_norm[0],
        "model.audio_norm.weight": weights.final_norm[1],
        "text_lm_head.weight": heads[: config.vocab_size],
        "audio_lm_head.weight": heads[config.vocab_size :],
    }
    blocks = (("shared_block", weights.trunk, 0), ("text_block", weights.branches, 0),
              ("audio_block", weights.branches, 1))
    for block, stack, lane in blocks:
        for i, layer in enumerate(stack.layers):
            views |= {f"model.{block}.layers.{i}.{name}.weight": view
                      for name, view in _layer_views(layer, lane, config)}
    return views


def _layer_views(layer: LayerWeights, lane: int, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    parts = (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size))
    split = layer.qkv.weight[lane].split([size for _, size in parts])
    for (name, _), view in zip(parts, split, strict=True):
        yield f"self_attn.{name}", view
    yield "self_attn.o_proj", layer.o.weight[lane]
    yield "self_attn.q_norm", layer.q_norm[lane]
    yield "self_attn.k_norm", layer.k_norm[lane]
    gate, up = layer.gate_up.weight[lane].chunk(2)
    yield "mlp.gate_proj", gate
    yield "mlp.up_proj", up
    yield "mlp.down_proj", layer.down.weight[lane]
    yield "input_layernorm", layer.input_norm[lane]
    yield "post_attention_layernorm", layer.post_norm[lane]


def fill_from_state(weights: Weights, config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's tensors in; the loader has checked names and shapes."""
    views = named_views(weights, config)
    assert views.keys() == state.keys(), "the loader returned other tensors than it was asked for"
    for name, view in views.items():
        view.copy_(state[name])


def fill_at_random(weights: Weights, config: ModelConfig, seed: int) -> None:
    """Weights of a preset: normal with deviation INIT_STD, norms near one; the same seed gives the same weights."""
    generator = torch.Generator(weights.text_table.device).manual_seed(seed)
    for view in named_views(weights, config).values():
        if view.dim() == 1:
            view.normal_(1.0, INIT_STD, generator=generator)
        else:
            view.normal_(0.0, INIT_STD, generator=generator)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))
