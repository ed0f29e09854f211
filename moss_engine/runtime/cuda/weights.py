"""The network's weights as the CUDA runtime keeps them: merged where one product can serve several.

Query, key and value projections are one matrix, gate and up projections another, and the text and
audio branches, which have equal shapes, are two *lanes* of the same tensors. A linear layer has
16-bit values, float8 with a scale per output, or 8 and 4 bits with scales per output or group of
inputs. The checkpoint's tensors have their places in these, so loading copies every tensor exactly
once, and float8 weights are made one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.api.info import RuntimeInfo
from moss_engine.models.checkpoint import (
    SCALE_SUFFIX,
    expected_tensors,
    slot_prefixes,
    widen_stored,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import float8_values, row_scales
from moss_engine.models.layout import MERGED, Bits, parts
from moss_engine.models.packed import group_of, quantise4, quantise8, widen4

# Rows that are float32 on their way to fewer bits: a large vocabulary's head would be gigabytes.
_ROWS_AT_ONCE = 8192
PACKED = (torch.int8, torch.uint8)


@dataclass(frozen=True)
class Place:
    """Where one checkpoint tensor is kept.

    `scale` is None for 16-bit values, float32 [rows] for float8, float16 [rows, 1] for int8 and
    [rows, groups] for 4 bits, whose values are uint8 [rows, inputs / 2].
    """

    values: Tensor
    scale: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the checkpoint's tensor."""
        if self.values.dtype is torch.uint8:
            return self.values.shape[0], 2 * self.values.shape[1]
        return tuple(self.values.shape)

    def put(self, tensor: Tensor, scale: Tensor | None = None) -> None:
        """Copy a tensor in; float8 takes the given row scales, or those that fit each row's largest
        value, and fewer bits are rounded plainly."""
        if self.scale is None:
            self.values.copy_(tensor)
            return
        for start in range(0, len(tensor), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            wide = tensor[rows].to(self.values.device, torch.float32)
            if self.values.dtype in PACKED:
                self._round(rows, wide)
                continue
            self.scale[rows].copy_(row_scales(wide) if scale is None else scale[rows])
            self.values[rows].copy_(float8_values(wide, self.scale[rows]))

    def put_stored(self, values: Tensor, scale: Tensor) -> None:
        """Copy int8 or packed values with their scales, as a checkpoint stores them."""
        if values.dtype is not self.values.dtype:
            self.put(widen_stored(values, scale))
            return
        assert self.scale is not None, "packed values have scales"
        self.values.copy_(values)
        self.scale.copy_(scale.view(self.scale.shape))

    def widened(self) -> Tensor:
        """The values as float32."""
        if self.scale is None:
            return self.values.float()
        if self.values.dtype is torch.uint8:
            return widen4(self.values, self.scale)
        return self.values.float() * self.scale.float().view(-1, 1)

    def _round(self, rows: slice, wide: Tensor) -> None:
        assert self.scale is not None
        if self.values.dtype is torch.int8:
            values, scale = quantise8(wide)
            scale = scale.unsqueeze(1)
        else:
            values, scale = quantise4(wide, wide.shape[1] // self.scale.shape[1])
        self.values[rows].copy_(values)
        self.scale[rows].copy_(scale)


@dataclass(frozen=True)
class LaneLinear:
    """weight [lanes, outputs, inputs], or uint8 [lanes, outputs, inputs / 2] in 4 bits.

    float8 weights have a scale [lanes, outputs] in float32, those of 8 and 4 bits one of [lanes,
    outputs, groups] in float16.
    """

    weight: Tensor
    scale: Tensor | None = None

    @property
    def is_packed(self) -> bool:
        """Whether it has 8 or 4 bits."""
        return self.weight.dtype in PACKED

    @property
    def inputs(self) -> int:
        return self.weight.shape[2] * (2 if self.weight.dtype is torch.uint8 else 1)

    def __getitem__(self, lanes: slice) -> LaneLinear:
        return LaneLinear(self.weight[lanes], None if self.scale is None else self.scale[lanes])

    def outputs(self, start: int, end: int) -> LaneLinear:
        """The same with some of the outputs only."""
        return LaneLinear(
            self.weight[:, start:end], None if self.scale is None else self.scale[:, start:end]
        )

    def split(self, lane: int, sizes: Sequence[int]) -> list[Place]:
        """One lane's outputs as the parts that the checkpoint keeps apart."""
        values = self.weight[lane].split(sizes)
        scales = [None] * len(sizes) if self.scale is None else self.scale[lane].split(sizes)
        return [Place(value, scale) for value, scale in zip(values, scales, strict=True)]


def empty_linear(
    bits: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> LaneLinear:
    """An uninitialised layer [lanes, outputs, inputs] of 16 bits in `dtype`, of 8 or of 4."""
    lanes, outputs, inputs = shape
    if bits == 16:
        return LaneLinear(torch.empty(shape, dtype=dtype, device=device))
    groups, stored, width = 1, torch.int8, inputs
    if bits == 4:
        group = group_of(inputs)
        assert group is not None, "the sizes were checked"
        groups, stored, width = inputs // group, torch.uint8, inputs // 2
    return LaneLinear(
        torch.empty(lanes, outputs, width, dtype=stored, device=device),
        torch.empty(lanes, outputs, groups, dtype=torch.float16, device=device),
    )


def empty_float8(shape: tuple[int, int, int], device: torch.device) -> LaneLinear:
    return LaneLinear(
        torch.empty(shape, dtype=torch.float8_e4m3fn, device=device),
        torch.empty(shape[:2], dtype=torch.float32, device=device),
    )


INIT_STD = 0.02
_NAMES = {torch.float8_e4m3fn: "float8", torch.uint8: "int4"}


class Float8(Enum):
    """Which linear layers are kept as float8: none, the trunk's, or all of them and the heads."""

    NONE = "none"
    TRUNK = "trunk"
    ALL = "all"


@dataclass(frozen=True)
class LayerWeights:
    """One layer of every lane, merged as `layout.MERGED` says. Norm weights are [lanes, size];
    `qkv` outputs queries, keys, values."""

    qkv: LaneLinear
    o: LaneLinear
    gate_up: LaneLinear
    down: LaneLinear
    input_norm: Tensor
    q_norm: Tensor
    k_norm: Tensor
    mlp_norm: Tensor

    def lane(self, index: int) -> LayerWeights:
        """The same layer with one lane only."""
        return LayerWeights(
            **{field.name: getattr(self, field.name)[index : index + 1] for field in fields(self)}
        )


@dataclass(frozen=True)
class Stack:
    """Layers run one after another; lane i of layer j has KV slot first_slot + i * lane_slots +
    j."""

    lanes: int
    first_slot: int
    lane_slots: int
    layers: tuple[LayerWeights, ...]

    def lane(self, index: int) -> Stack:
        """The same layers with one lane only."""
        return Stack(
            1,
            self.first_slot + index * self.lane_slots,
            self.lane_slots,
            tuple(layer.lane(index) for layer in self.layers),
        )

    def before_last(self) -> Stack:
        """All layers but the last."""
        return Stack(self.lanes, self.first_slot, self.lane_slots, self.layers[:-1])

    def last(self) -> Stack:
        """The last layer alone."""
        return Stack(
            self.lanes, self.first_slot + len(self.layers) - 1, self.lane_slots, self.layers[-1:]
        )


@dataclass(frozen=True)
class Weights:
    """All weights. `final_norm` is [2, hidden] and `heads` [vocab_size + audio_vocab_size, hidden],
    text first."""

    text_table: Tensor
    audio_table: Tensor
    trunk: Stack
    branches: Stack
    final_norm: Tensor
    heads: LaneLinear


def allocate(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    float8: Float8 = Float8.NONE,
    bits: Bits | None = None,
) -> Weights:
    """Uninitialised weights, of which the parts that `bits` names have 8 or 4.

    Raises ConfigError where float8 is asked for and the sizes do not allow it.
    """
    if float8 is not Float8.NONE:
        _require_even_sizes(config, float8)
    layout = parts(config)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def linear(part: str, *shape: int) -> LaneLinear:
        lanes, outputs, inputs = shape
        if float8 is Float8.ALL or (float8 is Float8.TRUNK and part.startswith("trunk.")):
            return empty_float8((lanes, outputs, inputs), device)
        return empty_linear((bits or {}).get(part, 16), (lanes, outputs, inputs), dtype, device)

    def stack(name: str, lanes: int, first_slot: int, count: int) -> Stack:
        layers = []
        for i in range(count):
            made: dict[str, Any] = {}
            for field in MERGED:
                shape = lanes, *layout[f"layers.{first_slot + i}.{field}"].shape
                made[field] = (
                    linear(f"{name}.{i}.{field}", *shape) if len(shape) == 3 else empty(*shape)
                )
            layers.append(LayerWeights(**made))
        return Stack(lanes, first_slot, count, tuple(layers))

    shared, vocabulary = config.num_shared_layers, config.vocab_size + config.audio_vocab_size
    return Weights(
        text_table=empty(config.vocab_size, config.hidden_size),
        audio_table=empty(config.audio_vocab_size, config.hidden_size),
        trunk=stack("trunk", 1, 0, shared),
        branches=stack("branches", 2, shared, config.num_modality_layers),
        final_norm=empty(2, config.hidden_size),
        heads=linear("heads", 1, vocabulary, config.hidden_size),
    )


def num_bytes(
    config: ModelConfig, dtype: torch.dtype, float8: Float8 = Float8.NONE, bits: Bits | None = None
) -> int:
    """Device memory that the weights take."""
    weights = allocate(config, dtype, torch.device("meta"), float8, bits)
    places_of = places(weights, config).values()
    tensors = [
        tensor
        for place in places_of
        for tensor in (place.values, place.scale)
        if tensor is not None
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _require_even_sizes(config: ModelConfig, float8: Float8) -> None:
    """cuBLAS multiplies float8 matrices in blocks of 16."""
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_key_value_heads x head_dim": config.num_key_value_heads * config.head_dim,
    }
    if float8 is Float8.ALL:
        sizes |= {"vocab_size": config.vocab_size, "audio_vocab_size": config.audio_vocab_size}
    odd = [f"{name} {size}" for name, size in sizes.items() if size % 16]
    if odd:
        raise ConfigError(
            f"float8 needs sizes that are multiples of 16, but the model has {', '.join(odd)}; use "
            "--dtype bfloat16."
        )


def places(weights: Weights, config: ModelConfig) -> dict[str, Place]:
    """Where each of the checkpoint's tensors is kept, by name."""
    text_head, audio_head = weights.heads.split(0, (config.vocab_size, config.audio_vocab_size))
    found = {
        "model.embed_tokens.weight": Place(weights.text_table, None),
        "model.audio_embed.weight": Place(weights.audio_table, None),
        "model.text_norm.weight": Place(weights.final_norm[0], None),
        "model.audio_norm.weight": Place(weights.final_norm[1], None),
        "text_lm_head.weight": text_head,
        "audio_lm_head.weight": audio_head,
    }
    branches = weights.branches.layers
    layers = [(layer, 0) for layer in weights.trunk.layers]
    layers += [(layer, lane) for lane in range(2) for layer in branches]
    shapes = expected_tensors(config)
    for prefix, (layer, lane) in zip(slot_prefixes(config), layers, strict=True):
        for field, sources in MERGED.items():
            names = [f"{prefix}{source}.weight" for source in sources]
            kept = getattr(layer, field)
            if isinstance(kept, LaneLinear):
                sizes = [shapes[name][0] for name in names]
                found |= zip(names, kept.split(lane, sizes), strict=True)
            else:
                found[names[0]] = Place(kept[lane], None)
    return found


def fill(
    weights: Weights,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    scales: Mapping[str, Tensor] | None = None,
) -> None:
    """Copy a checkpoint's tensors in, one by one, whose names and shapes the loader has checked.

    `scales` are float8 row scales by name. What comes in 8 or 4 bits is followed by its scales.
    """
    targets, pending = places(weights, config), None
    for name, tensor in tensors:
        if pending is not None:
            targets.pop(name.removesuffix(SCALE_SUFFIX)).put_stored(pending, tensor)
            pending = None
        elif tensor.dtype in (torch.int8, torch.uint8):
            pending = tensor
        else:
            place = targets.pop(name)
            place.put(tensor, scales[name] if scales and place.scale is not None else None)
    assert not targets, "the loader returned fewer tensors than it was asked for"


def fill_at_random(weights: Weights, config: ModelConfig, seed: int, std: float = INIT_STD) -> None:
    """Weights of a preset: normal with deviation `std`, norms near one; the same seed gives the
    same weights."""
    device = weights.text_table.device
    generator = torch.Generator(device).manual_seed(seed)
    for place in places(weights, config).values():
        shape = place.shape
        made = torch.empty(shape, dtype=weights.text_table.dtype, device=device)
        place.put(made.normal_(0.0 if len(shape) > 1 else 1.0, std, generator=generator))


def runtime_info(weights: Weights, source: Path | str) -> RuntimeInfo:
    """What a runtime of these weights says of itself; of the folder that they come from, a visitor
    is told the name and not the path."""
    table = weights.text_table
    name = torch.cuda.get_device_name(table.device) if table.device.type == "cuda" else "CPU"
    linear = weights.trunk.layers[0].qkv.weight
    dtype = _NAMES.get(linear.dtype, str(linear.dtype).removeprefix("torch."))
    source = source.resolve().name if isinstance(source, Path) else source
    return RuntimeInfo("torch", torch.__version__, name, dtype, source)
