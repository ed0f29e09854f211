"""Drawing the next ids of both channels on the device, from a short list of each row's best scores.

The rules are those of `moss_engine.runtime.sampler`. A first kernel applies forbidden ids,
repetition penalty and temperature and keeps the best `CANDIDATES` of every tile of the vocabulary;
a second one merges these, filters and draws. Where a row ranks at most `MAX_TOP_K` ids the result
is the same as with the whole vocabulary.
"""

from __future__ import annotations

import enum

import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import next_power_of_2, options, wait_for_previous

CANDIDATES = 64
MAX_TOP_K = CANDIDATES - 8  # leaves room for ids that tie with the last one ranked
TILE = 2048
_NEGATIVE = tl.constexpr(-(2**63))


class Column(enum.IntEnum):
    """Columns of the records that rows are drawn by: `values` float64 [rows, channels, columns]. A
    sampling parameter has the column of its name; one without is drawn by the plain rules.

    Ids from `first_forbidden` on and the id `forbidden` are not drawn, nor, where `allowed` is an
    id, any but this and `also_allowed`. `noted` is what the channel's history gets instead of an
    id that is drawn: where it is one, nothing is drawn and the result is 0. NO_ID stands for none.
    """

    place = 0
    temperature = 1
    top_k = 2
    top_p = 3
    repetition_penalty = 4
    uniform = 5
    first_forbidden = 6
    forbidden = 7
    allowed = 8
    also_allowed = 9
    noted = 10


class Drawn(enum.IntEnum):
    """Columns of what was drawn: int32 [rows, columns]."""

    text = 0
    audio = 1
    is_finite = 2


NO_ID = -1
_NUM_COLUMNS, _NUM_DRAWN = tl.constexpr(len(Column)), tl.constexpr(len(Drawn))
(_PLACE, _TEMPERATURE, _TOP_K, _TOP_P, _PENALTY, _UNIFORM, _FIRST_FORBIDDEN, _FORBIDDEN, _ALLOWED,
 _ALSO_ALLOWED, _NOTED) = (tl.constexpr(int(column)) for column in Column)
_IS_FINITE = tl.constexpr(int(Drawn.is_finite))


@triton.jit
def _value(values_ptr, row, channel, COLUMN: tl.constexpr):
    return tl.load(values_ptr + (row * 2 + channel) * _NUM_COLUMNS + COLUMN)


@triton.jit
def _is_forbidden(values_ptr, row, channel, ids):
    allowed = _value(values_ptr, row, channel, _ALLOWED)
    is_other = (ids != allowed) & (ids != _value(values_ptr, row, channel, _ALSO_ALLOWED))
    forbidden = (ids >= _value(values_ptr, row, channel, _FIRST_FORBIDDEN)) | (ids == _value(
        values_ptr, row, channel, _FORBIDDEN))
    return tl.where(allowed >= 0, forbidden | is_other, forbidden)


@triton.jit
def _best_of_tile_kernel(text_ptr, audio_ptr, values_ptr, seen_ptr, best_ptr, bad_ptr, first_tile,
                         text_size, audio_size, text_tiles, num_tiles, SIZE: tl.constexpr,
                         KEEP: tl.constexpr, OVERLAP: tl.constexpr):
    """Sorted keys of a tile's best scores: the score's bits as an integer in the same order, then
    the lowest id."""
    tile, row = tl.program_id(0) + first_tile, tl.program_id(1)
    wait_for_previous(OVERLAP)
    channel = (tile >= text_tiles).to(tl.int32)
    size = tl.where(channel == 0, text_size, audio_size)
    ids = (tile - channel * text_tiles) * SIZE + tl.arange(0, SIZE)
    inside = ids < size
    if channel == 0:
        scores = tl.load(text_ptr + row.to(tl.int64) * text_size + ids, mask=inside, other=0.0)
    else:
        scores = tl.load(audio_ptr + row.to(tl.int64) * audio_size + ids, mask=inside, other=0.0)
    is_bad = tl.sum((scores - scores != 0.0).to(tl.int32), 0)
    tl.store(bad_ptr + row * num_tiles + tile, is_bad)
    if _value(values_ptr, row, channel, _NOTED) < 0:
        penalty = _value(values_ptr, row, channel, _PENALTY).to(tl.float32)
        if penalty != 1.0:
            place = _value(values_ptr, row, channel, _PLACE).to(tl.int64)
            seen = tl.load(seen_ptr + place * (text_size + audio_size) + channel * text_size + ids,
                           mask=inside, other=0)
            scores = tl.where(seen != 0,
                              tl.where(scores < 0, scores * penalty, tl.div_rn(scores, penalty)),
                              scores)
        temperature = _value(values_ptr, row, channel, _TEMPERATURE).to(tl.float32)
        if temperature > 0.0:
            scores = tl.div_rn(scores, temperature)
        scores = tl.where(_is_forbidden(values_ptr, row, channel, ids), float("-inf"), scores)
        bits = scores.to(tl.int32, bitcast=True)
        order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        keys = (order.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
        keys = tl.where(inside, keys, _NEGATIVE)
        at = best_ptr + (row * num_tiles + tile).to(tl.int64) * KEEP + tl.arange(0, KEEP)
        tl.store(at, tl.topk(keys, KEEP))


@triton.jit
def _draw_kernel(values_ptr, seen_ptr, best_ptr, bad_ptr, drawn_ptr, first_tile, text_size,
                 audio_size, text_tiles, num_tiles, SIZE: tl.constexpr, KEEP: tl.constexpr,
                 TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Merge the tiles' keys, filter by top-k and top-p, draw, and note the id in the history."""
    channel, row = tl.program_id(0), tl.program_id(1)
    wait_for_previous(OVERLAP)
    tiles = tl.arange(0, TILES)
    is_computed = (tiles >= first_tile) & (tiles < num_tiles)
    num_bad = tl.sum(tl.load(bad_ptr + row * num_tiles + tiles, mask=is_computed, other=0), 0)
    first = channel * text_tiles * KEEP
    count = tl.where(channel == 0, text_tiles, num_tiles - text_tiles) * KEEP
    noted = _value(values_ptr, row, channel, _NOTED).to(tl.int32)
    drawn = tl.full([], 0, tl.int32)
    if (noted < 0) & (first >= first_tile * KEEP):
        at = tl.arange(0, SIZE)
        keys = tl.load(best_ptr + (row * num_tiles).to(tl.int64) * KEEP + first + at,
                       mask=at < count, other=_NEGATIVE)
        keys = tl.topk(keys, KEEP)
        order = (keys >> 32).to(tl.int32)
        scores = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        ids = 0x7FFFFFFF - (keys & 0xFFFFFFFF).to(tl.int32)
        rank = tl.arange(0, KEEP)
        if _value(values_ptr, row, channel, _TEMPERATURE) == 0.0:
            drawn = tl.sum(tl.where(rank == 0, ids, 0), 0)
        else:
            best = tl.max(scores, 0)
            top_k = _value(values_ptr, row, channel, _TOP_K).to(tl.int32)
            weights = tl.where(rank < top_k, tl.exp(scores - best), 0.0)
            weights = weights / tl.sum(weights, 0)
            before = tl.cumsum(weights, 0) - weights
            top_p = _value(values_ptr, row, channel, _TOP_P)
            kept = ((before < top_p) & (rank < top_k)) | (rank == 0)
            last = tl.sum(kept.to(tl.int32), 0) - 1
            lowest = tl.min(tl.where(rank <= last, scores, float("inf")), 0)
            weights = tl.where(scores >= lowest, tl.exp(scores - best), 0.0).to(tl.float64)
            # the cumulative distribution in id order, at every kept id
            up_to = tl.sum(tl.where(ids[None, :] <= ids[:, None], weights[None, :], 0.0), 1)
            number = _value(values_ptr, row, channel, _UNIFORM)
            reached = (up_to > number * tl.sum(weights, 0)) & (weights > 0.0)
            drawn = tl.min(tl.where(reached, ids, 0x7FFFFFFF), 0)
            highest = tl.max(tl.where(weights > 0.0, ids, 0), 0)
            drawn = tl.minimum(drawn, highest)
    tl.store(drawn_ptr + row * _NUM_DRAWN + channel, drawn)
    if channel == 0:
        tl.store(drawn_ptr + row * _NUM_DRAWN + _IS_FINITE, (num_bad == 0).to(tl.int32))
    if num_bad == 0:
        noted = tl.where(noted >= 0, noted, drawn)
        place = _value(values_ptr, row, channel, _PLACE).to(tl.int64)
        one = tl.full([], 1, tl.int8)
        tl.store(seen_ptr + place * (text_size + audio_size) + channel * text_size + noted, one)


def num_tiles(text_size: int, audio_size: int) -> int:
    return triton.cdiv(text_size, TILE) + triton.cdiv(audio_size, TILE)


def draw(text: Tensor | None, audio: Tensor, values: Tensor, seen: Tensor, best: Tensor,
         bad: Tensor, drawn: Tensor, text_size: int) -> None:
    """Draw for every row of the logits: text id, audio id and whether all logits are finite ->
    drawn int32 [rows, len(Drawn)].

    text [rows, vocab_size], audio [rows, audio_vocab_size]; values float64 [rows, 2, len(Column)];
    seen int8 [places, vocab_size + audio_vocab_size], in which finite rows' results are noted; best
    int64 [rows, num_tiles, CANDIDATES] and bad int32 [rows, num_tiles] are scratch memory. Without
    text logits, where every row speaks, only audio ids are drawn.
    """
    rows, audio_size = audio.shape
    text_tiles = triton.cdiv(text_size, TILE)
    tiles = num_tiles(text_size, audio_size)
    first_tile = text_tiles if text is None else 0
    _best_of_tile_kernel[(tiles - first_tile, rows)](
        audio if text is None else text, audio, values, seen, best, bad, first_tile, text_size,
        audio_size, text_tiles, tiles, SIZE=TILE, KEEP=CANDIDATES, **options(4))
    size = next_power_of_2(max(text_tiles - first_tile, tiles - text_tiles) * CANDIDATES)
    _draw_kernel[(2, rows)](values, seen, best, bad, drawn, first_tile, text_size, audio_size,
                            text_tiles, tiles, SIZE=size, KEEP=CANDIDATES,
                            TILES=next_power_of_2(tiles), **options(16 if size > 4096 else 4))
