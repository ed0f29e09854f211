"""Weights of 8 and 4 bits as kernels read them: widening, and sums of products with 16-bit inputs.

int8 [outputs, K], or 4 bits two a byte, uint8 [outputs, K / 2]: of each group of G inputs, byte j
holds input j in its lower and input j + G / 2 in its upper half, as value + 8. So a byte's halves
meet two contiguous tiles of rows, and eight bytes can be widened to pairs by masks alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Eight int8 of an int64 with as many inputs in steps, whose upper and lower bytes lie in two words
# each: sums of four products at a time, 256 times those of the upper bytes.
_DOT_8 = tl.constexpr("""
{
    .reg .b32 a, b, sum;
    mov.b64 {a, b}, $1;
    dp4a.s32.s32 sum, a, $2, 0;
    dp4a.s32.s32 sum, b, $3, sum;
    shl.b32 sum, sum, 8;
    dp4a.s32.u32 sum, a, $4, sum;
    dp4a.s32.u32 $0, b, $5, sum;
}
""")
# The same for sixteen values of 4 bits, each sixteen times, as the upper half of a signed byte.
_DOT_4 = tl.constexpr("""
{
    .reg .b32 a, b, c, d, sum;
    mov.b64 {c, d}, $1;
    shl.b32 a, c, 4;
    shl.b32 b, d, 4;
    lop3.b32 a, a, 0x80808080, 0xf0f0f0f0, 0x28;
    lop3.b32 b, b, 0x80808080, 0xf0f0f0f0, 0x28;
    lop3.b32 c, c, 0x80808080, 0xf0f0f0f0, 0x28;
    lop3.b32 d, d, 0x80808080, 0xf0f0f0f0, 0x28;
    dp4a.s32.s32 sum, a, $2, 0;
    dp4a.s32.s32 sum, b, $3, sum;
    dp4a.s32.s32 sum, c, $4, sum;
    dp4a.s32.s32 sum, d, $5, sum;
    shl.b32 sum, sum, 8;
    dp4a.s32.u32 sum, a, $6, sum;
    dp4a.s32.u32 sum, b, $7, sum;
    dp4a.s32.u32 sum, c, $8, sum;
    dp4a.s32.u32 $0, d, $9, sum;
}
""")
# The lower two bytes of four int32 to a word of their upper and one of their lower bytes.
_SPLIT_BYTES = tl.constexpr("""
{
    .reg .b32 a, b;
    prmt.b32 a, $2, $3, 0x5410;
    prmt.b32 b, $4, $5, 0x5410;
    prmt.b32 $0, a, b, 0x7531;
    prmt.b32 $1, a, b, 0x6420;
}
""")
# Four int8 to bfloat16: 2^23 + u as float32, whose upper half is exact once 2^23 + 128 is taken.
_WIDEN_8 = tl.constexpr("""
{
    .reg .b32 u, a<4>;
    .reg .f32 f<4>;
    xor.b32 u, $2, 0x80808080;
    prmt.b32 a0, u, 0x4b000000, 0x7440;
    prmt.b32 a1, u, 0x4b000000, 0x7441;
    prmt.b32 a2, u, 0x4b000000, 0x7442;
    prmt.b32 a3, u, 0x4b000000, 0x7443;
    mov.b32 f0, a0;
    mov.b32 f1, a1;
    mov.b32 f2, a2;
    mov.b32 f3, a3;
    sub.f32 f0, f0, 0f4b000080;
    sub.f32 f1, f1, 0f4b000080;
    sub.f32 f2, f2, 0f4b000080;
    sub.f32 f3, f3, 0f4b000080;
    mov.b32 a0, f0;
    mov.b32 a1, f1;
    mov.b32 a2, f2;
    mov.b32 a3, f3;
    prmt.b32 $0, a0, a1, 0x7632;
    prmt.b32 $1, a2, a3, 0x7632;
}
""")
# Both halves of four bytes to bfloat16: 128 + u by its bits, less 136.
_WIDEN_4 = tl.constexpr("""
{
    .reg .b32 a, b, c, d, one, bias;
    mov.b32 one, 0x3f803f80;
    mov.b32 bias, 0xc308c308;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    shr.u32 c, a, 4;
    shr.u32 d, b, 4;
    lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
    fma.rn.bf16x2 $0, a, one, bias;
    fma.rn.bf16x2 $1, b, one, bias;
    fma.rn.bf16x2 $2, c, one, bias;
    fma.rn.bf16x2 $3, d, one, bias;
}
""")


@triton.jit
def dot_packs(weights, xs, BITS: tl.constexpr, ASM: tl.constexpr):
    """weights int64 [n, R] of packed values, times inputs in steps, the words of `input_words` ->
    int32 [n, R]: the sum over the values of each int64, of 4 bits sixteen times."""
    if ASM and BITS == 8:
        total = tl.inline_asm_elementwise(
            _DOT_8, "=r,l,r,r,r,r",
            [weights, xs[0][:, None], xs[1][:, None], xs[2][:, None], xs[3][:, None]],
            dtype=tl.int32, is_pure=True, pack=1)
    elif ASM:
        total = tl.inline_asm_elementwise(
            _DOT_4, "=r,l,r,r,r,r,r,r,r,r",
            [weights, xs[0][:, None], xs[1][:, None], xs[2][:, None], xs[3][:, None],
             xs[4][:, None], xs[5][:, None], xs[6][:, None], xs[7][:, None]], dtype=tl.int32,
            is_pure=True, pack=1)
    else:
        total = tl.zeros(weights.shape, tl.int32)
        WORDS: tl.constexpr = 16 // BITS
        for value in tl.static_range(64 // BITS):
            word: tl.constexpr = value // 4
            byte: tl.constexpr = value % 4
            if BITS == 8:
                wide = (weights >> (8 * value)).to(tl.int8).to(tl.int32)
            else:
                at: tl.constexpr = 32 * (word % 2) + 8 * byte + 4 * (word // 2)
                wide = (((weights >> at) & 15).to(tl.int32) - 8) * 16
            upper = (xs[word] >> (8 * byte)).to(tl.int8).to(tl.int32)
            lower = (xs[WORDS + word] >> (8 * byte)) & 255
            total += wide * (upper * 256 + lower)[:, None]
    return total


@triton.jit
def larger(a, b):
    """The larger one, or NaN where one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sum_and_larger(a_sum, a, b_sum, b):
    return a_sum + b_sum, larger(a, b)


_WHOLE = tl.constexpr(1.5 * 2**23)
WHOLE_BITS = tl.constexpr(0x4B400000)


@triton.jit
def round_to_bits(x):
    """float32 of less than 2^22 -> the next whole numbers plus WHOLE_BITS, int32, of which 16 bits
    are those of small ones. A conversion would take several times as long."""
    return (x + _WHOLE).to(tl.int32, bitcast=True)


@triton.jit
def load_inputs(x_ptr, start, K: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
                PER: tl.constexpr):
    """CHUNK inputs from `start` on as the threads need them that hold two int64 of weights each, so
    that words of them stay where they are: tiles [CHUNK / PER / 2, 8] of the first and of the
    second int64, of 4 bits those of lower halves before those of upper ones, float32."""
    PACKS: tl.constexpr = GROUP // 16  # int64 of a group of 4 bits
    eight = tl.arange(0, 8)
    tiles = ()
    for half in tl.static_range(PER // 8):
        for second in tl.static_range(2):
            pack = start // PER + 2 * tl.arange(0, CHUNK // PER // 2) + second
            first = pack * 8
            if PER == 16:
                first = pack // PACKS * GROUP + half * (GROUP // 2) + pack % PACKS * 8
            tile = tl.load(x_ptr + first[:, None] + eight[None, :], mask=(first < K)[:, None],
                           other=0.0)
            tiles += (tile.to(tl.float32),)
    return tiles


@triton.jit
def _quarters(tile):
    """[n, 8] -> four [n, 2]: columns 0 and 4, 1 and 5, 2 and 6, 3 and 7"""
    N: tl.constexpr = tile.shape[0]
    even, odd = tl.split(tl.reshape(tile, [N, 4, 2]))
    first, third = tl.split(tl.reshape(even, [N, 2, 2]))
    second, fourth = tl.split(tl.reshape(odd, [N, 2, 2]))
    return first, second, third, fourth


@triton.jit
def _bytes_of_eight(tile, ASM: tl.constexpr):
    """Words of the upper and of the lower bytes of int32 [n, 8] of 16 bits: two [n] of each."""
    first, second, third, fourth = _quarters(tile)
    if ASM:
        upper, lower = tl.inline_asm_elementwise(
            _SPLIT_BYTES, "=r,=r,r,r,r,r", [first, second, third, fourth],
            dtype=(tl.int32, tl.int32), is_pure=True, pack=1)
    else:
        one, two = first & 0xFFFF | second << 16, third & 0xFFFF | fourth << 16
        upper = (one >> 8) & 0xFF | (one >> 16) & 0xFF00 | (two & 0xFF00) << 8 | two & -0x1000000
        lower = one & 0xFF | (one >> 8) & 0xFF00 | (two & 0xFF) << 16 | (two & 0xFF0000) << 8
    return tl.split(upper) + tl.split(lower)


@triton.jit
def input_words(tiles, ASM: tl.constexpr):
    """Inputs by `load_inputs`, int32 whose lower 16 bits count -> words of their upper and then of
    their lower bytes, for `dot_packs`."""
    uppers, lowers = (), ()
    for i in tl.static_range(0, len(tiles), 2):
        one, two = _bytes_of_eight(tiles[i], ASM), _bytes_of_eight(tiles[i + 1], ASM)
        uppers += (tl.interleave(one[0], two[0]), tl.interleave(one[1], two[1]))
        lowers += (tl.interleave(one[2], two[2]), tl.interleave(one[3], two[3]))
    return uppers + lowers


@triton.jit
def _pairs_of_eight(tile, ASM: tl.constexpr):
    """float32 [n, 8] -> four int32 [n]: neighbours as pairs of float16"""
    N: tl.constexpr = tile.shape[0]
    even, odd = tl.split(tl.reshape(tile, [N, 4, 2]))
    if ASM:
        pairs = tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd],
                                          dtype=tl.int32, is_pure=True, pack=1)
    else:
        even = even.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
        pairs = even | odd.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32) << 16
    first, second = tl.split(tl.reshape(pairs, [N, 2, 2]))
    pair0, pair2 = tl.split(first)
    pair1, pair3 = tl.split(second)
    return pair0, pair1, pair2, pair3


@triton.jit
def input_pairs(tiles, ASM: tl.constexpr):
    """Inputs float32, by `load_inputs` -> four int32 for each eight: pairs of float16."""
    one, two = _pairs_of_eight(tiles[0], ASM), _pairs_of_eight(tiles[1], ASM)
    pairs = ()
    for i in tl.static_range(4):
        pairs += (tl.interleave(one[i], two[i]),)
    return pairs


@triton.jit
def widen_8(values, dtype: tl.constexpr, ASM: tl.constexpr):
    """int8 to `dtype`, in which each is exact."""
    if ASM:
        return tl.inline_asm_elementwise(_WIDEN_8, "=r,=r,r", [values], dtype=tl.bfloat16,
                                         is_pure=True, pack=4)
    return values.to(tl.float32).to(dtype)


@triton.jit
def widen_4(values, dtype: tl.constexpr, ASM: tl.constexpr):
    """Lower and upper halves of bytes to `dtype`, each less 8."""
    if ASM:
        return tl.inline_asm_elementwise(_WIDEN_4, "=r,=r,=r,=r,r", [values],
                                         dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4)
    low = ((values & 15).to(tl.float32) - 8.0).to(dtype)
    high = ((values >> 4).to(tl.float32) - 8.0).to(dtype)
    return low, high
