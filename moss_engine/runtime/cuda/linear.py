"""Where the CUDA runtime keeps a linear layer: 16-bit values, float8 with a scale per output, or 8
and 4 bits with scales per output or group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.models.checkpoint import widen_stored
from moss_engine.models.float8 import float8_values, row_scales
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

    def split(self, lane: int, sizes: tuple[int, ...]) -> list[Place]:
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
