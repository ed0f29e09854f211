"""What the layers of `tests.trt_emulator` compute, in torch; each asserts what TensorRT would
refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def run_layer(  # noqa: PLR0911
    operation: str, values: list[Tensor], places: list[int], settings: dict[str, Any]
) -> Tensor:
    """One layer; `places` are the indices of its inputs `values`."""
    if operation == "constant":
        return settings["values"]
    if operation == "cast":
        return values[0].to(getattr(torch, settings["dtype"]))
    if operation in ("quantize", "dequantize"):
        x, scale = values[0].float(), values[1].float()
        assert scale.dim() == 0, "one scale for all values"
        if operation == "quantize":
            return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return (x * scale).to(getattr(torch, settings["dtype"]))
    if operation in _PLAIN:
        for value in values[1:]:
            assert value.dtype is values[-1].dtype and value.dim() == values[0].dim(), (
                f"{operation} of unlike tensors"
            )
        return _PLAIN[operation](*values)
    if operation in ("avg", "softmax"):
        axis = settings["axes"].bit_length() - 1
        assert settings["axes"] == 1 << axis
        return values[0].mean(axis, keepdim=True) if operation == "avg" else values[0].softmax(axis)
    if operation == "product":
        assert values[0].dtype is values[1].dtype
        return values[0] @ (values[1].transpose(-1, -2) if settings["transposed"] else values[1])
    if operation == "gather":
        assert settings["axis"] == 0 and values[1].dtype is torch.int32
        assert int(values[1].min()) >= 0 and int(values[1].max()) < values[0].shape[0], (
            "an index outside its tensor"
        )
        return (
            values[0]
            .index_select(0, values[1].flatten())
            .reshape(*values[1].shape, *values[0].shape[1:])
        )
    if operation == "concatenation":
        return torch.cat(values, settings["axis"])
    if operation == "shape":
        return torch.tensor(values[0].shape, dtype=getattr(torch, settings["dtype"]))
    if operation == "slice":
        assert places == [0, 2], "the sizes of a slice come from a tensor"
        ends = [
            start + size for start, size in zip(settings["start"], values[1].tolist(), strict=True)
        ]
        assert all(end <= size for end, size in zip(ends, values[0].shape, strict=True)), (
            "a slice beyond its tensor"
        )
        return values[0][tuple(map(slice, settings["start"], ends))]
    assert operation == "shuffle", operation
    x = (
        values[0]
        if settings["first_transpose"] is None
        else values[0].permute(settings["first_transpose"])
    )
    if 1 in places:
        return x.reshape(values[1].tolist())
    if settings["reshape_dims"] is None:
        return x
    return x.reshape(
        [x.shape[i] if size == 0 else size for i, size in enumerate(settings["reshape_dims"])]
    )


_PLAIN = {
    "sum": torch.add,
    "sub": torch.sub,
    "prod": torch.mul,
    "div": torch.div,
    "less": torch.lt,
    "equal": torch.eq,
    "sqrt": torch.sqrt,
    "sigmoid": torch.sigmoid,
    "select": torch.where,
}
