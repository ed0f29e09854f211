"""Every kernel of the CUDA runtime against plain PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")

from moss_engine.kernels.lm.attention import PagedAttention, Pool  # noqa: E402
from moss_engine.kernels.lm.few_rows import FewRows, has_few_rows  # noqa: E402
from moss_engine.kernels.lm.integer_rows import IntegerRows  # noqa: E402
from moss_engine.kernels.lm.matvec import matvec  # noqa: E402
from moss_engine.kernels.lm.packed_rows import PackedRows, widen  # noqa: E402
from moss_engine.kernels.lm.rows import embed, quantise_rows  # noqa: E402
from moss_engine.models.network import rotary_pairs  # noqa: E402
from moss_engine.models.packed import group_of, quantise4, quantise8, widen4  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, INTERPRETED, SMALL, relative_error  # noqa: E402

# bfloat16 rounds to 2**-9 relative; the sums themselves are float32.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-3}
FLOAT16 = 1e-3
FIXED_POINT = 1e-4  # inputs in steps of 1 / 32767 of the largest
DTYPES = [torch.float32] if INTERPRETED else list(TOLERANCE)


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.einsum("lk,lnk->ln", x.double(), weight.double())


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lanes", "inputs", "outputs"), [(1, 48, 100), (2, 96, 37), (1, 5000, 18), (1, 64, 8200)]
)
def test_matvec(dtype, lanes, inputs, outputs):
    x = normal(lanes, inputs, dtype=dtype, seed=1)
    weight = normal(lanes, outputs, inputs, dtype=dtype, seed=2)
    norm = normal(lanes, inputs, dtype=dtype, seed=3)
    residual = normal(lanes, outputs, dtype=dtype, seed=4)
    out = torch.full((lanes, outputs), torch.nan, device=DEVICE, dtype=dtype)
    matvec(x, weight, out, norm=norm, eps=1e-3)
    assert relative_error(out, product(normed(x, norm, 1e-3), weight)) < TOLERANCE[dtype]
    matvec(x, weight, out := residual.clone(), residual=out)
    assert relative_error(out, residual.double() + product(x, weight)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES[-1:])
@pytest.mark.parametrize(
    ("lanes", "rows", "inputs", "outputs"), [(1, 2, 48, 100), (2, 9, 512, 72), (1, 64, 160, 8200)]
)
def test_products_of_few_rows(dtype, lanes, rows, inputs, outputs):
    """Outputs and rows past the last tile, padding rows, and columns split over programs (512 of
    them)."""
    if not has_few_rows():
        pytest.skip("the kernel is for compute capability 9")
    few_rows = FewRows(lanes, DEVICE)
    x = normal(lanes, rows, inputs, dtype=dtype, seed=1) / inputs**0.5
    weight = normal(lanes, outputs, inputs, dtype=dtype, seed=2)
    residual = normal(lanes, rows, outputs, dtype=dtype, seed=4)
    wanted = torch.einsum("lrk,lnk->lrn", x.double(), weight.double())
    for _ in range(2):  # the second finds what the first has left in the scratch memory
        few_rows(x, weight, out := torch.full_like(residual, torch.nan))
        assert relative_error(out, wanted) < TOLERANCE[dtype]
    few_rows(x, weight, out := residual.clone(), residual=out)
    assert relative_error(out, residual.double() + wanted) < TOLERANCE[dtype]
    out = torch.full((lanes, rows, outputs // 2), torch.nan, device=DEVICE, dtype=dtype)
    few_rows(x, weight, out, gated=True)
    first, second = wanted.chunk(2, -1)
    assert relative_error(out, F.silu(first) * second) < TOLERANCE[dtype]


def test_embedding_selects_by_the_modality_pad():
    text = torch.arange(12.0, device=DEVICE).view(4, 3)
    audio = -torch.arange(9.0, device=DEVICE).view(3, 3)
    ids = torch.tensor([[1, 2], [3, 999], [0, 1]], dtype=torch.int32, device=DEVICE)
    out = torch.full((3, 3), torch.nan, device=DEVICE)
    embed(ids, text, audio, 3, out[:1])
    embed(ids[2:], text, audio, 0, out[2:])
    embed(ids[1:2], text, audio, 7, out[1:2])
    assert torch.equal(out, torch.stack([text[1], text[3], audio[1]]))


@pytest.mark.skipif(INTERPRETED, reason="the kernel has machine instructions")
@pytest.mark.parametrize(
    ("lanes", "inputs", "outputs"), [(1, 48, 100), (2, 96, 37), (1, 12288, 18)]
)
def test_matvec_of_float8(lanes, inputs, outputs):
    """The vector, and sums of four products, have the 11 bits of float16; a gate adds up two such
    errors."""
    weight = normal(lanes, 2 * outputs, inputs, dtype=torch.float32, seed=2).to(torch.float8_e4m3fn)
    scale = normal(lanes, 2 * outputs, dtype=torch.float32, seed=3).abs() + 0.5
    x, residual = (
        normal(lanes, size, dtype=torch.bfloat16, seed=1) for size in (inputs, 2 * outputs)
    )
    norm = normal(lanes, inputs, dtype=torch.bfloat16, seed=3) / inputs**0.5
    widened = weight.double() * scale.double().unsqueeze(-1)
    out = torch.full((lanes, 2 * outputs), torch.nan, device=DEVICE)
    matvec(1000 * x, weight, out, scale=scale, residual=residual)
    assert relative_error(out, residual.double() + product(1000 * x, widened)) < FLOAT16
    out = torch.full((lanes, outputs), torch.nan, device=DEVICE)
    matvec(x, weight, out, scale=scale, norm=norm, eps=1e-3, gated=True)
    first, second = product(normed(x, norm, 1e-3), widened).chunk(2, -1)
    assert relative_error(out, F.silu(first) * second) < 4 * FLOAT16


def packed(
    lanes: int, outputs: int, inputs: int, bits: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random weights of 8 or 4 bits with their scales, and the same widened."""
    wide = normal(lanes, outputs, inputs, dtype=torch.float32, seed=2)
    group = group_of(inputs)
    assert group is not None
    made = [quantise8(lane) if bits == 8 else quantise4(lane, group) for lane in wide]
    values = torch.stack([lane for lane, _ in made])
    scale = torch.stack([lane for _, lane in made])
    if bits == 8:
        return values, scale.unsqueeze(2), values.double() * scale.double().unsqueeze(2)
    return values, scale, torch.stack([widen4(*lane) for lane in made]).double()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lanes", "inputs", "outputs"),
    [(1, 96, 20), (2, 160, 12)] + ([] if INTERPRETED else [(1, 4096, 100), (2, 12288, 18)]),
)
def test_matvec_of_packed_weights(dtype, lanes, inputs, outputs, bits):
    """All outputs with a residual, gates behind a norm, and some of the outputs of all lanes."""
    weight, scale, wide = packed(lanes, 2 * outputs, inputs, bits)
    x = normal(lanes, inputs, dtype=dtype, seed=1)
    norm = normal(lanes, inputs, dtype=dtype, seed=3) / inputs**0.5
    residual = normal(lanes, 2 * outputs, dtype=dtype, seed=4)
    most = max(TOLERANCE[dtype], FIXED_POINT)
    out = torch.full_like(residual, torch.nan)
    matvec(x, weight, out, scale=scale, residual=residual)
    assert relative_error(out, residual.double() + product(x, wide)) < most
    out = torch.full((lanes, outputs), torch.nan, device=DEVICE, dtype=dtype)
    matvec(x, weight, out, scale=scale, norm=norm, eps=1e-3, gated=True)
    first, second = product(normed(x, norm, 1e-3), wide).chunk(2, -1)
    assert relative_error(out, F.silu(first) * second) < 2 * most
    out = torch.full((lanes, outputs - 4), torch.nan, device=DEVICE, dtype=dtype)
    matvec(x, weight[:, 4:outputs], out, scale=scale[:, 4:outputs])
    assert relative_error(out, product(x, wide[:, 4:outputs])) < most
    for fault in (torch.nan, torch.inf):  # integers have none
        x[0, 5] = fault
        matvec(x, weight[:, 4:outputs], out, scale=scale[:, 4:outputs])
        assert not out[0].isfinite().any() and out[1:].isfinite().all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lanes", "rows", "inputs", "outputs"),
    [(1, 3, 96, 20), (2, 18, 160, 12), (1, 5, 512, 20), (1, 130, 512, 12)]
    + ([] if INTERPRETED else [(1, 64, 4096, 200), (2, 100, 4096, 72), (1, 512, 4096, 4500)]),
)
def test_rows_of_packed_weights(dtype, lanes, rows, inputs, outputs, bits):
    """Rows past the last tile, split columns (512 of them), gates, and some of the outputs."""
    weight, scale, wide = packed(lanes, 2 * outputs, inputs, bits)
    product_of = PackedRows(lanes, torch.device(DEVICE))
    x = normal(lanes, rows, inputs, dtype=dtype, seed=1) / inputs**0.5
    residual = normal(lanes, rows, 2 * outputs, dtype=dtype, seed=4)
    wanted = torch.einsum("lrk,lnk->lrn", x.double(), wide)
    for _ in range(2):  # the second finds what the first has left in the scratch memory
        product_of(x, weight, scale, out := torch.full_like(residual, torch.nan))
        assert relative_error(out, wanted) < TOLERANCE[dtype]
    product_of(x, weight, scale, out := residual.clone(), residual=out)
    assert relative_error(out, residual.double() + wanted) < TOLERANCE[dtype]
    out = torch.full((lanes, rows, outputs), torch.nan, device=DEVICE, dtype=dtype)
    product_of(x, weight, scale, out, gated=True)
    first, second = wanted.chunk(2, -1)
    assert relative_error(out, F.silu(first) * second) < 2 * TOLERANCE[dtype]
    out = torch.full((lanes, rows, outputs - 4), torch.nan, device=DEVICE, dtype=dtype)
    product_of(x, weight[:, 4:outputs], scale[:, 4:outputs], out)
    assert relative_error(out, wanted[..., 4:outputs]) < TOLERANCE[dtype]


def integer_rows(lanes: int, rows: int, inputs: int) -> IntegerRows:
    if not has_few_rows():
        pytest.skip("the kernel is for compute capability 9")
    values = torch.empty(2 * lanes * rows * inputs, dtype=torch.int8, device=DEVICE)
    return IntegerRows(lanes, rows, values)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lanes", "rows", "inputs", "outputs"),
    [(1, 3, 64, 20), (2, 9, 1024, 12), (1, 70, 512, 20)]
    + (
        []
        if INTERPRETED
        else [(2, 8, 4096, 72), (1, 16, 12288, 40), (1, 32, 4096, 9000), (2, 100, 12288, 72)]
    ),
)
def test_rows_as_integers(dtype, lanes, rows, inputs, outputs, bits):
    """Rows past the last tile, split columns, a residual, gates behind a norm, and some of the
    outputs; a row with what is no number leaves the others alone."""
    weight, scale, wide = packed(lanes, 2 * outputs, inputs, bits)
    product_of = integer_rows(lanes, rows, inputs)
    assert product_of.takes(rows, weight, scale)
    x = normal(lanes, rows, inputs, dtype=dtype, seed=1)
    norm = normal(lanes, inputs, dtype=dtype, seed=3) / inputs**0.5
    residual = normal(lanes, rows, 2 * outputs, dtype=dtype, seed=4)
    wanted = torch.einsum("lrk,lnk->lrn", x.double(), wide)
    most = max(TOLERANCE[dtype], FIXED_POINT)
    for _ in range(2):  # the second finds what the first has left in the scratch memory
        product_of(x, weight, scale, out := residual.clone(), residual=out)
        assert relative_error(out, residual.double() + wanted) < most
    out = torch.full((lanes, rows, outputs - 4), torch.nan, device=DEVICE, dtype=dtype)
    product_of(x, weight[:, 4:outputs], scale[:, 4:outputs], out)
    assert relative_error(out, wanted[..., 4:outputs]) < most
    for fault in (torch.nan, torch.inf):  # integers have none
        faulty = x.clone()
        faulty[0, 1, 5] = fault
        product_of(faulty, weight, scale, found := torch.zeros_like(residual))
        assert not found[0, 1].isfinite().any()
        assert found.isfinite().all(2).sum() == lanes * rows - 1
    first, second = torch.einsum("lrk,lnk->lrn", normed(x, norm[:, None], 1e-3), wide).chunk(2, -1)
    out = torch.full((lanes, rows, outputs), torch.nan, device=DEVICE, dtype=dtype)
    product_of(x, weight, scale, out, norm=norm, eps=1e-3, gated=True)
    assert relative_error(out, F.silu(first) * second) < 2 * most


@pytest.mark.skipif(INTERPRETED, reason="what overlaps on tensor cores is asked")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [2, 16, 32, 64, 128, 192, 256, 512])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(4096, 3072), (4096, 2048), (12288, 2048), (4096, 12288)]
)
def test_rows_of_packed_weights_are_the_same_every_time(inputs, outputs, rows, bits):
    """Of the kernel that is used for so many."""
    dtype = torch.bfloat16
    weight, scale, wide = packed(1, 2 * outputs, inputs, bits)
    product_of = integer_rows(1, rows, inputs)
    if not product_of.takes(rows, weight, scale):
        product_of = PackedRows(1, torch.device(DEVICE))
    x = normal(1, rows, inputs, dtype=dtype, seed=1) / inputs**0.5
    product_of(
        x, weight, scale, first := torch.empty(1, rows, 2 * outputs, device=DEVICE, dtype=dtype)
    )
    wanted = torch.einsum("lrk,lnk->lrn", x.double(), wide)
    assert relative_error(first, wanted) < TOLERANCE[dtype]
    gates = torch.empty(1, rows, outputs, device=DEVICE, dtype=dtype)
    product_of(x, weight, scale, gates, gated=True)
    gate, up = wanted.chunk(2, -1)
    assert relative_error(gates, F.silu(gate) * up) < 2 * TOLERANCE[dtype]
    for _ in range(50):
        product_of(x, weight, scale, out := torch.empty_like(first))
        assert torch.equal(out, first)
        product_of(x, weight, scale, out := torch.empty_like(gates), gated=True)
        assert torch.equal(out, gates)


@pytest.mark.parametrize("bits", [8, 4])
def test_packed_weights_in_a_widened_copy(bits):
    dtype = DTYPES[-1]
    weight, scale, wide = packed(1, 40, 512, bits)
    widen(weight[0], scale[0], copy := torch.full((40, 512), torch.nan, device=DEVICE, dtype=dtype))
    assert relative_error(copy, wide[0]) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("lanes", "rows", "inputs", "outputs"), [(1, 2, 48, 100), (2, 9, 512, 72), (1, 40, 160, 130)]
)
def test_few_float8_rows(lanes, rows, inputs, outputs):
    """Normed and rounded rows with scaled weights, with a residual, and gated."""
    if not has_few_rows():
        pytest.skip("the kernel is for compute capability 9")
    few_rows = FewRows(lanes, DEVICE)
    weight = normal(lanes, outputs, inputs, dtype=torch.float32, seed=2).to(torch.float8_e4m3fn)
    scale = normal(lanes, outputs, dtype=torch.float32, seed=3).abs() + 0.5
    x = normal(lanes, rows, inputs, dtype=torch.bfloat16, seed=1) / inputs**0.5
    norm = normal(lanes, inputs, dtype=torch.bfloat16, seed=4)
    residual = normal(lanes, rows, outputs, dtype=torch.float32, seed=5)
    values = torch.empty_like(x, dtype=weight.dtype)
    row_scale = torch.empty(lanes * rows, device=DEVICE)
    quantise_rows(x.flatten(0, 1), values.flatten(0, 1), row_scale, norm, 1e-3)
    rounded = values.double() * row_scale.double().view(lanes, rows, 1)
    if not INTERPRETED:  # the interpreter rounds 0.99 to a half
        assert relative_error(rounded, normed(x, norm.unsqueeze(1), 1e-3)) < 0.04
    wanted = torch.einsum("lrk,lnk->lrn", rounded, weight.double() * scale.double().unsqueeze(-1))
    few_rows(values, weight, out := residual.clone(), residual=out, scales=(row_scale, scale))
    assert relative_error(out, residual.double() + wanted) < FLOAT16
    out = torch.full((lanes, rows, outputs // 2), torch.nan, device=DEVICE)
    few_rows(values, weight, out, gated=True, scales=(row_scale, scale))
    first, second = wanted.chunk(2, -1)
    assert relative_error(out, F.silu(first) * second) < 4 * FLOAT16


def make_pool(slots: int, blocks: int, block: int, dtype: torch.dtype, *, in_int8: bool) -> Pool:
    """Full of what others left there, none of which is a number in 16 bits or as a scale."""
    kv_heads, head_dim = SMALL.num_key_value_heads, SMALL.head_dim
    shape = (slots, blocks + 1, kv_heads, block, head_dim)
    if not in_int8:
        return Pool(*torch.full((2, *shape), torch.nan, device=DEVICE, dtype=dtype))
    words = torch.full((2, *shape[:-1], head_dim // 2), -1, device=DEVICE, dtype=torch.int16)
    return Pool(*words, torch.full(shape[:-1], -1, device=DEVICE, dtype=torch.int32))


@pytest.mark.parametrize("in_int8", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "block"), [(1, 4), (3, 24)] if INTERPRETED else [(1, 4), (3, 24), (40, 16), (80, 64)]
)
def test_a_row_attends_alone_as_among_others(batch, block, dtype, in_int8):
    """Decoding against the kernels of a prompt, over contexts within and past a tile and a block;
    of two lanes, and with an own scale for each row of the pool."""
    lanes, most = 2, 70 if INTERPRETED else 300
    lengths = [(most, 0, 65, 1, 31, 64, 33)[i % 7] for i in range(batch)]
    blocks = most // block + 1
    tables = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(1))
    tables = tables.to(DEVICE, torch.int32).view(batch, blocks)
    pool = make_pool(lanes, batch * blocks, block, dtype, in_int8=in_int8)
    attention = PagedAttention(SMALL, pool, rotary_pairs(SMALL, most + 1, DEVICE), lanes * batch)
    heads, kv_heads = SMALL.num_attention_heads, SMALL.num_key_value_heads
    norms = [normal(lanes, SMALL.head_dim, dtype=dtype, seed=seed) for seed in (2, 3)]
    width = heads * SMALL.head_dim
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)

    def places(index: int, rows: torch.Tensor) -> torch.Tensor:
        return tables[index, rows // block] * block + rows % block

    for index, length in enumerate(lengths):
        rows = torch.arange(length, dtype=torch.int32, device=DEVICE)
        size = (lanes, length, 2 * kv_heads * SMALL.head_dim)
        qkv = normal(*size, dtype=dtype, seed=index) * 0.99 ** rows[:, None]
        attention.store(qkv.to(dtype), *norms, 0, 1, rows, places(index, rows), None)
    qkv = normal(lanes, batch, width + 2 * kv_heads * SMALL.head_dim, dtype=dtype, seed=4)
    alone, queries, among = torch.full((3, lanes, batch, width), torch.nan, device=DEVICE).to(dtype)
    attention.decode(qkv, *norms, 0, 1, positions, tables, alone)
    own = torch.cat([places(i, positions[i : i + 1]) for i in range(batch)])
    attention.store(qkv, *norms, 0, 1, positions, own, queries)
    numbers = torch.arange(batch, dtype=torch.int32, device=DEVICE)
    tiles = torch.stack([numbers, torch.ones_like(numbers), positions, numbers])
    attention.attend(queries, 0, 1, tiles, 1, tables, among)
    # in 8 bits a decoding row's queries have steps of 1 / 32639 of the largest value
    assert relative_error(alone, among) < max(TOLERANCE[dtype], FIXED_POINT if in_int8 else 0)
