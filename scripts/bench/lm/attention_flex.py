"""torch's FlexAttention as a method of `scripts.bench.lm.attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.bench.lm.attention_case import Scene
from scripts.bench.lm.attention_kernels import Method

FLEX_PAGE = 128


def torch_flex(scene: Scene, *, compiled: bool = True) -> Method:
    """FlexAttention over pages of 128 rows: a block mask of physical pages and a page table."""
    from torch.nn.attention.flex_attention import flex_attention

    case, device = scene.case, scene.device
    (length,), (cached,), (new,) = set(case.lengths), set(case.cached), set(case.new)
    count, pages_each = len(case.new), -(-length // FLEX_PAGE)
    order = torch.randperm(count * pages_each, generator=torch.Generator().manual_seed(1)).to(
        device
    )
    pages = order.argsort().view(
        count, pages_each
    )  # the physical page of every page of every sequence
    owner, place = order // pages_each, order % pages_each * FLEX_PAGE

    def stored(pool_part: Tensor) -> Tensor:
        """[sequences, kv_heads, rows, head_dim] -> [1, kv_heads, rows of all pages, head_dim]."""
        padded = F.pad(pool_part, (0, 0, 0, pages_each * FLEX_PAGE - length)).unflatten(
            2, (pages_each, FLEX_PAGE)
        )
        return padded.transpose(0, 1).flatten(1, 2)[:, order].flatten(1, 2).unsqueeze(0)

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        page = kv // FLEX_PAGE
        return (owner[page] == b) & (place[page] + kv % FLEX_PAGE <= cached + q)

    mask = _page_mask(pages, cached, length, new, seen)
    flex = (
        torch.compile(flex_attention, dynamic=False, fullgraph=True) if compiled else flex_attention
    )
    # its kernel for few rows has no tiles for as many as 64
    options: Any = None if case.decodes else {"FORCE_USE_FLEX_ATTENTION": True}
    queries = scene.queries.view(count, new, *scene.queries.shape[1:]).transpose(1, 2).contiguous()
    pools = [
        (stored(keys), stored(values))
        for keys, values in map(scene.gathered, range(scene.num_slots))
    ]

    def attend(slot: int) -> Tensor:
        keys, values = pools[slot]
        out = flex(queries, keys, values, block_mask=mask, enable_gqa=True, kernel_options=options)
        assert isinstance(out, Tensor)
        return out.transpose(1, 2).flatten(0, 1)

    return Method("torch FlexAttention, pages of 128", attend)


def _page_mask(
    pages: Tensor, cached: int, length: int, new: int, seen: Callable[..., Tensor]
) -> Any:
    """The block mask of causal attention over physical `pages` [sequences, pages each]."""
    from torch.nn.attention.flex_attention import BlockMask

    count, pages_each = pages.shape
    q_tiles = -(-new // FLEX_PAGE)
    first = cached + FLEX_PAGE * torch.arange(q_tiles)  # the position of every tile's first row
    last = torch.clamp(first + FLEX_PAGE, max=length)
    num_full = (first + 1) // FLEX_PAGE
    num_partial = -(-last // FLEX_PAGE) - num_full
    partial = torch.stack([torch.roll(pages, -int(full), 1) for full in num_full], 1)
    return BlockMask.from_kv_blocks(
        *(
            part.to(pages.device, torch.int32).unsqueeze(1)
            for part in (
                num_partial.expand(count, -1),
                partial,
                num_full.expand(count, -1),
                pages.unsqueeze(1).expand(-1, q_tiles, -1),
            )
        ),
        BLOCK_SIZE=FLEX_PAGE,
        mask_mod=seen,
        seq_lengths=(new, count * pages_each * FLEX_PAGE),
        compute_q_blocks=False,
    )
