"""The attentions that `scripts.bench_attention` compares: the runtime's kernels and what could stand in their place.

Each is a function of a `Scene` that yields methods; it raises where a library cannot do what it is asked for.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from moss_engine.runtime.base import Limits, ScheduledSequence
from moss_engine.tokens import Row
from scripts.bench_attention_case import BLOCK_SIZE, Scene

OURS = "this runtime's Triton kernels"
FLEX_PAGE = 128
FLASHINFER_WORKSPACE_BYTES = 512 << 20


@dataclass(frozen=True)
class Method:
    """`attend(slot)` is attention alone -> [rows, heads, head_dim], over KV that is laid out as the library wants it.

    `gather(slot)` brings it into that layout for `attend_gathered`, where the paged pool itself cannot be read;
    `fused` norms, rotates and writes the new rows, too. `plan_ms` is work of the host before every step.
    """

    name: str
    attend: Callable[[int], Tensor]
    fused: bool = False
    gather: Callable[[int], Any] | None = None
    attend_gathered: Callable[[Any], Tensor] | None = None
    plan_ms: float | None = None

    def whole(self, slot: int) -> Tensor:
        """What a step has to run once the new rows are in the pool."""
        if self.gather is None:
            return self.attend(slot)
        assert self.attend_gathered is not None
        return self.attend_gathered(self.gather(slot))


class Kernels:
    """The runtime's own kernels on a scene, with the inputs that the runtime makes of its sequences."""

    def __init__(self, scene: Scene):
        from moss_engine.runtime.cuda import rope_table, rows_shapes
        from moss_engine.runtime.cuda_inputs import DeviceInputs
        from moss_engine.runtime.kernels.paged import PagedAttention, Pool

        config, case = scene.config, scene.case
        batch = 1 << (len(case.new) - 1).bit_length()
        limits = Limits(BLOCK_SIZE, scene.num_blocks, batch, max(case.num_rows, 16), BLOCK_SIZE * scene.tables.shape[1])
        shapes = rows_shapes(config, limits)
        rope = rope_table(config, limits.max_seq_len, scene.device)
        groups = 2 * max(batch, *(shape.max_tiles for shape in shapes))
        self._scene = scene
        self._attention = PagedAttention(config, Pool(scene.keys, scene.values), rope, groups)
        inputs = DeviceInputs(limits, shapes, scene.device)
        sequences = [ScheduledSequence((Row(0, 0),) * new, cached, tuple(table), True) for cached, new, table in
                     zip(case.cached, case.new, scene.tables.tolist(), strict=True)]
        self._step, self._rows = inputs.decode(batch), inputs.rows(shapes[-1])
        if case.decodes:
            inputs.put_decode(sequences, batch)
            count, self._places = batch, self._step
        else:
            inputs.put_rows(sequences, shapes[-1], 0, 1)
            count, self._places = shapes[-1].rows, self._rows
        self._qkv = scene.qkv.new_zeros(1, count, scene.qkv.shape[1])
        self._qkv[0, : case.num_rows] = scene.qkv
        self._queries, self._out = (
            scene.qkv.new_zeros(1, count, config.num_attention_heads * config.head_dim) for _ in range(2))

    def store(self, slot: int) -> None:
        """Norm, rotate and write the new rows: one kernel, and what every attention but a fused one needs before."""
        scene, places = self._scene, self._places
        self._attention.store(self._qkv, scene.q_norm, scene.k_norm, slot, 0, places.positions, places.pool_rows,
                              self._queries)

    def method(self) -> Method:
        self.store(0)  # queries for attention alone
        return Method(OURS, self._decode, fused=True) if self._scene.case.decodes else Method(OURS, self._attend)

    def _decode(self, slot: int) -> Tensor:
        scene, step = self._scene, self._step
        self._attention.decode(self._qkv, scene.q_norm, scene.k_norm, slot, 0, step.positions, step.tables, self._out)
        return self._result()

    def _attend(self, slot: int) -> Tensor:
        rows = self._rows
        self._attention.attend(self._queries, slot, 0, rows.tiles, rows.tile_rows, rows.tables, self._out)
        return self._result()

    def _result(self) -> Tensor:
        return self._out[0, : self._scene.case.num_rows].unflatten(-1, (-1, self._scene.config.head_dim))


def torch_sdpa(scene: Scene, backend: SDPBackend) -> Method:
    """torch's attention of equally long sequences: one new row each, or nothing cached."""
    case = scene.case
    assert case.decodes or not any(case.cached)
    queries = scene.queries.view(len(case.new), -1, *scene.queries.shape[1:]).transpose(1, 2)

    def attend(gathered: tuple[Tensor, Tensor]) -> Tensor:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(queries, *gathered, is_causal=not case.decodes, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    stored = [(keys.contiguous(), values.contiguous()) for keys, values in map(scene.gathered, range(scene.num_slots))]
    return Method(f"torch SDPA ({backend.name.lower()}), gathered KV", lambda slot: attend(stored[slot]),
                  gather=scene.gathered, attend_gathered=attend)


def torch_varlen(scene: Scene) -> Method:
    """torch.nn.attention.varlen over gathered KV: its block tables are FlashAttention 3's alone, which torch lacks."""
    from torch.nn.attention.varlen import varlen_attn

    case = scene.case
    lengths = torch.tensor([0, *case.lengths]).cumsum(0).to(scene.device, torch.int32)
    starts = torch.tensor(case.starts, dtype=torch.int32, device=scene.device)
    options: dict[str, Any] = {"window_size": (-1, 0)}
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        options["enable_gqa"] = True

    def attend(gathered: tuple[Tensor, Tensor]) -> Tensor:
        out = varlen_attn(scene.queries, *gathered, starts, lengths, max(case.new), max(case.lengths), **options)
        assert isinstance(out, Tensor)
        return out

    stored = [scene.packed(slot) for slot in range(scene.num_slots)]
    return Method("torch varlen_attn, gathered KV", lambda slot: attend(stored[slot]), gather=scene.packed,
                  attend_gathered=attend)


def torch_flex(scene: Scene, *, compiled: bool = True) -> Method:
    """FlexAttention over pages of 128 rows: a block mask of physical pages, and a table that gives their places."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    case, device = scene.case, scene.device
    (length,), (cached,), (new,) = set(case.lengths), set(case.cached), set(case.new)
    count, pages_each = len(case.new), -(-length // FLEX_PAGE)
    order = torch.randperm(count * pages_each, generator=torch.Generator().manual_seed(1)).to(device)
    pages = order.argsort().view(count, pages_each)  # the physical page of every page of every sequence
    owner, place = order // pages_each, order % pages_each * FLEX_PAGE

    def stored(pool_part: Tensor) -> Tensor:
        """[sequences, kv_heads, rows, head_dim] -> [1, kv_heads, rows of all pages, head_dim]."""
        padded = F.pad(pool_part, (0, 0, 0, pages_each * FLEX_PAGE - length)).unflatten(2, (pages_each, FLEX_PAGE))
        return padded.transpose(0, 1).flatten(1, 2)[:, order].flatten(1, 2).unsqueeze(0)

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        page = kv // FLEX_PAGE
        return (owner[page] == b) & (place[page] + kv % FLEX_PAGE <= cached + q)

    q_tiles = -(-new // FLEX_PAGE)
    first = cached + FLEX_PAGE * torch.arange(q_tiles)  # the position of every tile's first row
    last = torch.clamp(first + FLEX_PAGE, max=length)
    num_full = (first + 1) // FLEX_PAGE
    num_partial = -(-last // FLEX_PAGE) - num_full
    partial = torch.stack([torch.roll(pages, -int(full), 1) for full in num_full], 1)
    mask = BlockMask.from_kv_blocks(
        *(part.to(device, torch.int32).unsqueeze(1) for part in (
            num_partial.expand(count, -1), partial, num_full.expand(count, -1),
            pages.unsqueeze(1).expand(-1, q_tiles, -1))),
        BLOCK_SIZE=FLEX_PAGE, mask_mod=seen, seq_lengths=(new, count * pages_each * FLEX_PAGE), compute_q_blocks=False)
    flex = torch.compile(flex_attention, dynamic=False, fullgraph=True) if compiled else flex_attention
    # its kernel for few rows has no tiles for as many as 64
    options: dict[str, Any] | None = None if case.decodes else {"FORCE_USE_FLEX_ATTENTION": True}
    queries = scene.queries.view(count, new, *scene.queries.shape[1:]).transpose(1, 2).contiguous()
    pools = [(stored(keys), stored(values)) for keys, values in map(scene.gathered, range(scene.num_slots))]

    def attend(slot: int) -> Tensor:
        keys, values = pools[slot]
        out = flex(queries, keys, values, block_mask=mask, enable_gqa=True, kernel_options=options)
        assert isinstance(out, Tensor)
        return out.transpose(1, 2).flatten(0, 1)

    return Method("torch FlexAttention, pages of 128", attend)


def page_lists(scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    """Block tables as FlashInfer takes them: where each sequence's pages begin, all pages, rows of each last page."""
    counts = [-(-length // BLOCK_SIZE) for length in scene.case.lengths]
    begins = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    pages = torch.cat([table[:count] for table, count in zip(scene.tables, counts, strict=True)])
    last = torch.tensor([(length - 1) % BLOCK_SIZE + 1 for length in scene.case.lengths], dtype=torch.int32)
    return begins, pages, last


def flashinfer(scene: Scene, backend: str) -> Method:
    """FlashInfer over the runtime's own pool: `cuda_cores` for one new row a sequence, `fa2` and `fa3` for any."""
    import flashinfer as library  # pyright: ignore[reportMissingImports]

    config, case = scene.config, scene.case
    workspace = torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=scene.device)
    begins, pages, last = page_lists(scene)
    sizes = (config.num_attention_heads, config.num_key_value_heads, config.head_dim, BLOCK_SIZE)
    dtypes = {"q_data_type": scene.queries.dtype, "kv_data_type": scene.keys.dtype}
    if case.decodes and backend != "fa3":
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=backend == "fa2")
        plan = lambda: wrapper.plan(begins, pages, last, *sizes, **dtypes)  # noqa: E731
    else:
        starts = torch.tensor(case.starts, dtype=torch.int32)
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend=backend)
        plan = lambda: wrapper.plan(starts, begins, pages, last, *sizes, causal=True, **dtypes)  # noqa: E731
    times_ms = []
    for _ in range(4):
        start_s = time.perf_counter()
        plan()
        times_ms.append(1e3 * (time.perf_counter() - start_s))
    out = torch.empty_like(scene.queries)
    return Method(f"FlashInfer {library.__version__} ({backend})",
                  lambda slot: wrapper.run(scene.queries, (scene.keys[slot], scene.values[slot]), out=out),
                  plan_ms=min(times_ms[1:]))


def others(scene: Scene) -> Iterator[tuple[str, Callable[[], Method]]]:
    """What is compared with the runtime's kernels on a scene, by name; nothing is made before it is called."""
    case = scene.case
    for backend in ("fa2", "fa3", *(("cuda_cores",) if case.decodes else ())):
        yield f"FlashInfer ({backend})", lambda backend=backend: flashinfer(scene, backend)
    if case.decodes or (len(case.new) == 1 and not any(case.cached)):
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            yield f"torch SDPA ({backend.name.lower()})", lambda backend=backend: torch_sdpa(scene, backend)
    if not case.decodes:
        yield "torch varlen_attn", lambda: torch_varlen(scene)
    if case.flex:
        yield "torch FlexAttention", lambda: torch_flex(scene)
