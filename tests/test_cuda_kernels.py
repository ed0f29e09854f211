"""Every kernel of the CUDA runtime against plain PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.cuda_support")

from moss_engine.runtime.kernels.float8 import quantise_rows  # noqa: E402
from moss_engine.runtime.kernels.matvec import MAX_ROWS, matvec  # noqa: E402
from moss_engine.runtime.kernels.narrow import narrow_product  # noqa: E402
from moss_engine.runtime.kernels.rows import embed, gate, rms_norm  # noqa: E402
from tests.cuda_support import DEVICE, INTERPRETED, relative_error  # noqa: E402

# bfloat16 rounds to 2**-9 relative; the sums themselves are float32.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-3}
DTYPES = [torch.float32] if INTERPRETED else list(TOLERANCE)


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lanes", "rows", "inputs", "outputs"), [(1, 1, 48, 100), (2, 1, 96, 37), (2, 3, 48, 33),
                                                                  (1, MAX_ROWS, 5000, 18)])
def test_matvec(dtype, lanes, rows, inputs, outputs):
    x, weight = normal(lanes, rows, inputs, dtype=dtype, seed=1), normal(lanes, outputs, inputs, dtype=dtype, seed=2)
    norm, residual = normal(lanes, inputs, dtype=dtype, seed=3), normal(lanes, rows, outputs, dtype=dtype, seed=4)
    out = torch.full((lanes, rows, outputs), torch.nan, device=DEVICE, dtype=dtype)
    matvec(x, weight, out, norm=norm, eps=1e-3)
    wanted = normed(x, norm.unsqueeze(1), 1e-3) @ weight.double().mT
    assert relative_error(out, wanted) < TOLERANCE[dtype]
    matvec(x, weight, residual_out := residual.clone(), residual=residual)
    assert relative_error(residual_out, residual.double() + x.double() @ weight.double().mT) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lanes", "rows", "inputs", "outputs"), [(1, 1, 48, 40), (2, 2, 96, 33)])
def test_gated_matvec(dtype, lanes, rows, inputs, outputs):
    x = normal(lanes, rows, inputs, dtype=dtype, seed=1)
    weight = normal(lanes, 2 * outputs, inputs, dtype=dtype, seed=2)
    norm = normal(lanes, inputs, dtype=dtype, seed=3)
    out = torch.full((lanes, rows, outputs), torch.nan, device=DEVICE, dtype=dtype)
    matvec(x, weight, out, norm=norm, eps=1e-3, gated=True)
    first, second = (normed(x, norm.unsqueeze(1), 1e-3) @ weight.double().mT).chunk(2, -1)
    assert relative_error(out, F.silu(first) * second) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_kernels(dtype):
    x, weight = normal(2, 5, 90, dtype=dtype, seed=1), normal(2, 90, dtype=dtype, seed=2)
    out = torch.full_like(x, torch.nan)
    rms_norm(x, weight, 1e-3, out)
    assert relative_error(out, normed(x, weight.unsqueeze(1), 1e-3)) < TOLERANCE[dtype]
    gated = torch.full((2, 5, 45), torch.nan, device=DEVICE, dtype=dtype)
    gate(x, gated)
    first, second = x.double().chunk(2, -1)
    assert relative_error(gated, F.silu(first) * second) < TOLERANCE[dtype]


def test_embedding_selects_by_the_modality_pad():
    text, audio = torch.arange(12.0, device=DEVICE).view(4, 3), -torch.arange(9.0, device=DEVICE).view(3, 3)
    ids = torch.tensor([[1, 2], [3, 999], [0, 1]], dtype=torch.int32, device=DEVICE)
    out = torch.full((3, 3), torch.nan, device=DEVICE)
    embed(ids, text, audio, 3, out[:1])
    embed(ids[2:], text, audio, 0, out[2:])
    embed(ids[1:2], text, audio, 7, out[1:2])
    assert torch.equal(out, torch.stack([text[1], text[3], audio[1]]))


@pytest.mark.parametrize(("lanes", "rows", "inputs", "outputs"), [(1, 5, 48, 40), (2, 17, 96, 33), (1, 64, 300, 70)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_product(dtype, lanes, rows, inputs, outputs):
    x, weight = normal(lanes, rows, inputs, dtype=dtype, seed=1), normal(lanes, outputs, inputs, dtype=dtype, seed=2)
    residual = normal(lanes, rows, outputs, dtype=dtype, seed=4)
    out = torch.full((lanes, rows, outputs), torch.nan, device=DEVICE, dtype=dtype)
    narrow_product(x, weight, out)
    assert relative_error(out, x.double() @ weight.double().mT) < TOLERANCE[dtype]
    narrow_product(x, weight, out := residual.clone(), residual=residual)
    assert relative_error(out, residual.double() + x.double() @ weight.double().mT) < TOLERANCE[dtype]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_float8_weights_are_widened_exactly(rows, gated):
    weight = normal(1, 40, 96, dtype=torch.float32, seed=2).to(torch.float8_e4m3fn)
    scale = normal(1, 40, dtype=torch.float32, seed=3).abs() + 0.5
    x = normal(1, rows, 96, dtype=torch.float32, seed=1)
    out = torch.full((1, rows, 20 if gated else 40), torch.nan, device=DEVICE)
    if rows <= MAX_ROWS:
        matvec(x, weight, out, scale=scale, gated=gated)
    else:
        narrow_product(x, weight, out, scale=scale, gated=gated)
    wanted = x.double() @ (weight.double() * scale.double().unsqueeze(-1)).mT
    if gated:
        first, second = wanted.chunk(2, -1)
        wanted = F.silu(first) * second
    assert relative_error(out, wanted) < TOLERANCE[torch.float32]


def test_rows_as_float8():
    x = normal(7, 90, dtype=torch.float32, seed=5)
    x[3] = 0
    values, scale = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.full((7,), torch.nan, device=DEVICE)
    quantise_rows(x, values, scale)
    assert relative_error(values.float() * scale[:, None], x) < 0.05  # 3 bits of mantissa, cut off by the interpreter
    assert values[3].float().abs().max() == 0
