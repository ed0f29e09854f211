"""Weights of 8 and 4 bits as kernels read them: widening, and sums of products with float16 pairs.

int8 [outputs, K], or 4 bits two a byte, uint8 [outputs, K / 2]: of each group of G inputs, byte j
holds input j in its lower and input j + G / 2 in its upper half, as value + 8. So a byte's halves
meet two contiguous tiles of rows, and eight bytes can be widened to pairs by masks alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Eight int8 of an int64 with four pairs of float16: u = value + 128 becomes 1024 + u by its bits.
_DOT_8 = tl.constexpr("""
{
    .reg .b32 low, high, w<4>, sum, bias;
    .reg .b16 first, second;
    .reg .f32 x, y;
    mov.b64 {low, high}, $1;
    mov.b32 bias, 0x64806480;
    xor.b32 low, low, 0x80808080;
    xor.b32 high, high, 0x80808080;
    prmt.b32 w0, low, 0x64646464, 0x4140;
    prmt.b32 w1, low, 0x64646464, 0x4342;
    prmt.b32 w2, high, 0x64646464, 0x4140;
    prmt.b32 w3, high, 0x64646464, 0x4342;
    sub.rn.f16x2 w0, w0, bias;
    sub.rn.f16x2 w1, w1, bias;
    sub.rn.f16x2 w2, w2, bias;
    sub.rn.f16x2 w3, w3, bias;
    mul.rn.f16x2 sum, w0, $2;
    fma.rn.f16x2 sum, w1, $3, sum;
    fma.rn.f16x2 sum, w2, $4, sum;
    fma.rn.f16x2 sum, w3, $5, sum;
    mov.b32 {first, second}, sum;
    cvt.f32.f16 x, first;
    cvt.f32.f16 y, second;
    add.f32 $0, x, y;
}
""")
# Sixteen values of 4 bits with eight pairs; the upper halves of bytes count sixteen times.
_DOT_4 = tl.constexpr("""
{
    .reg .b32 low, high, t, w<8>, sum, lows, highs;
    .reg .b16 first, second;
    .reg .f32 x, y;
    mov.b64 {low, high}, $1;
    mov.b32 lows, 0x64086408;
    mov.b32 highs, 0x64806480;
    lop3.b32 w0, low, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 w1, low, 0x00f000f0, 0x64006400, 0xea;
    shr.u32 t, low, 8;
    lop3.b32 w2, t, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 w3, t, 0x00f000f0, 0x64006400, 0xea;
    lop3.b32 w4, high, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 w5, high, 0x00f000f0, 0x64006400, 0xea;
    shr.u32 t, high, 8;
    lop3.b32 w6, t, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 w7, t, 0x00f000f0, 0x64006400, 0xea;
    sub.rn.f16x2 w0, w0, lows;
    sub.rn.f16x2 w1, w1, highs;
    sub.rn.f16x2 w2, w2, lows;
    sub.rn.f16x2 w3, w3, highs;
    sub.rn.f16x2 w4, w4, lows;
    sub.rn.f16x2 w5, w5, highs;
    sub.rn.f16x2 w6, w6, lows;
    sub.rn.f16x2 w7, w7, highs;
    mul.rn.f16x2 sum, w0, $2;
    fma.rn.f16x2 sum, w1, $3, sum;
    fma.rn.f16x2 sum, w2, $4, sum;
    fma.rn.f16x2 sum, w3, $5, sum;
    fma.rn.f16x2 sum, w4, $6, sum;
    fma.rn.f16x2 sum, w5, $7, sum;
    fma.rn.f16x2 sum, w6, $8, sum;
    fma.rn.f16x2 sum, w7, $9, sum;
    mov.b32 {first, second}, sum;
    cvt.f32.f16 x, first;
    cvt.f32.f16 y, second;
    add.f32 $0, x, y;
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
# Two int32 of four int8 each to four pairs of bfloat16, byte by byte: 128 + the lower seven bits,
# less 128, or less 256 where the sign is set.
_WIDEN_WORDS_8 = tl.constexpr("""
{
    .reg .b32 t<4>, w<4>, s<4>, one;
    mov.b32 one, 0x3f803f80;
    prmt.b32 t0, $4, $5, 0x4400;
    prmt.b32 t1, $4, $5, 0x5511;
    prmt.b32 t2, $4, $5, 0x6622;
    prmt.b32 t3, $4, $5, 0x7733;
    lop3.b32 w0, t0, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 w1, t1, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 w2, t2, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 w3, t3, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 s0, t0, 0x00800080, 0xc300c300, 0xea;
    lop3.b32 s1, t1, 0x00800080, 0xc300c300, 0xea;
    lop3.b32 s2, t2, 0x00800080, 0xc300c300, 0xea;
    lop3.b32 s3, t3, 0x00800080, 0xc300c300, 0xea;
    fma.rn.bf16x2 $0, w0, one, s0;
    fma.rn.bf16x2 $1, w1, one, s1;
    fma.rn.bf16x2 $2, w2, one, s2;
    fma.rn.bf16x2 $3, w3, one, s3;
}
""")
# The same for eight values of 4 bits in each int32: lower halves of the four bytes, then upper
# ones.
_WIDEN_WORDS_4 = tl.constexpr("""
{
    .reg .b32 t<4>, u<4>, w<8>, one, bias;
    mov.b32 one, 0x3f803f80;
    mov.b32 bias, 0xc308c308;
    prmt.b32 t0, $8, $9, 0x4400;
    prmt.b32 t1, $8, $9, 0x5511;
    prmt.b32 t2, $8, $9, 0x6622;
    prmt.b32 t3, $8, $9, 0x7733;
    shr.u32 u0, t0, 4;
    shr.u32 u1, t1, 4;
    shr.u32 u2, t2, 4;
    shr.u32 u3, t3, 4;
    lop3.b32 w0, t0, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w1, t1, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w2, t2, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w3, t3, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w4, u0, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w5, u1, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w6, u2, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 w7, u3, 0x000f000f, 0x43004300, 0xea;
    fma.rn.bf16x2 $0, w0, one, bias;
    fma.rn.bf16x2 $1, w1, one, bias;
    fma.rn.bf16x2 $2, w2, one, bias;
    fma.rn.bf16x2 $3, w3, one, bias;
    fma.rn.bf16x2 $4, w4, one, bias;
    fma.rn.bf16x2 $5, w5, one, bias;
    fma.rn.bf16x2 $6, w6, one, bias;
    fma.rn.bf16x2 $7, w7, one, bias;
}
""")


@triton.jit
def dot_packs(weights, xs, first: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr):
    """weights int64 [R, n] of packed values, times the inputs xs[first:] that `_load_vector` of
    matvec_packed made for them -> float32 [R, n]: the sum over the values of each int64."""
    if ASM:
        if BITS == 8:
            total = tl.inline_asm_elementwise(
                _DOT_8, "=f,l,r,r,r,r",
                [weights, xs[first][None, :], xs[first + 1][None, :], xs[first + 2][None, :],
                 xs[first + 3][None, :]], dtype=tl.float32, is_pure=True, pack=1)
        else:
            total = tl.inline_asm_elementwise(
                _DOT_4, "=f,l,r,r,r,r,r,r,r,r",
                [weights, xs[first][None, :], xs[first + 1][None, :], xs[first + 2][None, :],
                 xs[first + 3][None, :], xs[first + 4][None, :], xs[first + 5][None, :],
                 xs[first + 6][None, :], xs[first + 7][None, :]], dtype=tl.float32, is_pure=True,
                pack=1)
    else:
        total = tl.zeros(weights.shape, tl.float32)
        for value in tl.static_range(64 // BITS):
            if BITS == 8:
                wide = ((weights >> (8 * value)) & 255).to(tl.int8).to(tl.float32)
            else:
                wide = ((weights >> (4 * value)) & 15).to(tl.float32) - 8.0
            total += wide * xs[first + value][None, :]
    return total


@triton.jit
def pair(first, second):
    """Two float32 tensors as one of int32: pairs of float16."""
    low = first.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    high = second.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    return low | (high << 16)


@triton.jit
def first_inputs(packs, GROUP: tl.constexpr, BITS: tl.constexpr):
    """The input of the lowest value of each int64."""
    if BITS == 8:
        return packs * 8
    return packs // (GROUP // 16) * GROUP + packs % (GROUP // 16) * 8


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


@triton.jit
def widen_words(words, dtype: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr):
    """int32 of packed values as tensors of `dtype`, one for each place in the word: the four bytes
    of 8 bits, or the lower halves of the four bytes, then the upper ones."""
    if ASM:
        if BITS == 8:
            wide = tl.inline_asm_elementwise(
                _WIDEN_WORDS_8, "=r,=r,=r,=r,r,r", [words],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2)
        else:
            wide = tl.inline_asm_elementwise(
                _WIDEN_WORDS_4, "=r,=r,=r,=r,=r,=r,=r,=r,r,r", [words],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                       tl.bfloat16, tl.bfloat16), is_pure=True, pack=2)
        return wide
    wide = ()
    for i in tl.static_range(32 // BITS):
        if BITS == 8:
            wide += ((words >> (8 * i)).to(tl.int8).to(tl.float32).to(dtype),)
        else:
            value = (words >> (8 * (i % 4) + 4 * (i // 4))) & 15
            wide += ((value.to(tl.float32) - 8.0).to(dtype),)
    return wide


@triton.jit
def quarters(x):
    """[N, C] as four of [N, C / 4]: column 4 i + j is column i of the j-th."""
    N: tl.constexpr = x.shape[0]
    C: tl.constexpr = x.shape[1]
    even, odd = tl.split(x.reshape(N, C // 4, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth
