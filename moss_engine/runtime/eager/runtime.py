"""The torch runtime: paged KV and mixed batches of prefill and decode in plain PyTorch, on a CPU or
a GPU.

One pool of blocks holds keys and values of a row side by side, so that a layer writes and gathers
both with one operation. On a CPU the decode step is a recording of its operations.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.info import RuntimeInfo
from moss_engine.models.checkpoint import expected_tensors, load_tensors, refuse_tied
from moss_engine.models.config import ModelConfig
from moss_engine.models.recording import Recording
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, ScheduledSequence, check_batch
from moss_engine.runtime.eager.network import INT8, CheckpointWeights, PackedNetwork
from moss_engine.runtime.sampler import LogitsRuntime

PADDING = 16
"""Rows are padded to whole vectors of the widest unit, where the sums of a kernel keep their order.
"""
MAX_PADDING = 256
"""Reading so many rows in vain costs less than a call of their own."""


class KVPool:
    """Blocks of every layer: `tensor` is [slots, num_blocks * block_size, 2 * kv_heads, head_dim],
    keys before values; `rows[slot]` is one layer's."""

    def __init__(self, tensor: Tensor, block_size: int):
        self.tensor, self.block_size = tensor, block_size
        self.rows = tensor.unbind()
        self.dtype, self.device = tensor.dtype, tensor.device


def make_pool(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KVPool:
    """An empty pool. Memory of a CPU pool is taken by the system as blocks are first written."""
    shape = (
        config.num_layers,
        num_blocks * block_size,
        2 * config.num_key_value_heads,
        config.head_dim,
    )
    if device.type == "cpu" and dtype is torch.float32:
        return KVPool(torch.from_numpy(np.zeros(shape, dtype=np.float32)), block_size)
    return KVPool(torch.zeros(shape, dtype=dtype, device=device), block_size)


class _Part(NamedTuple):
    """Rows of a step that attend together: one row each of several sequences, or the new rows of
    one sequence.

    `num_live` rows are gathered for them. `mask` is what is added to the scores: 0, or -infinity
    where a row may not attend.
    """

    num_rows: int
    num_live: int
    one_row_each: bool
    mask: Tensor


class GatheredAttention:
    """The attention of one step (`PackedAttend`): writes the new rows' keys and values, then reads
    the live rows. Where in the pool these lie: `new_rows` int64 [rows], `live` int64 [live rows]
    of one part after another."""

    def __init__(self, pool: KVPool, parts: Sequence[_Part], new_rows: Tensor, live: Tensor):
        self._pool, self.parts = pool, parts
        self.new_rows, self.live = new_rows, live

    @classmethod
    def of_sequences(
        cls, pool: KVPool, sequences: Sequence[ScheduledSequence], num_decode: int
    ) -> GatheredAttention:
        """`sequences` are in packed order: the `num_decode` decoding ones (one row each) first, by
        length.

        Decoding sequences of similar length attend in one call, padded; whole vectors of padding do
        not change a sequence's rounding.
        """
        parts, live, new, start = [], [], [], 0
        for end in [
            *_decode_ends(sequences[:num_decode]),
            *range(num_decode + 1, len(sequences) + 1),
        ]:
            group = sequences[start:end]
            length = group[-1].num_cached + len(group[-1].rows)
            if end <= num_decode:
                length = -(-length // PADDING) * PADDING
            for sequence in group:
                rows = _pool_rows(sequence, length, pool.block_size)
                live.append(rows)
                new.append(rows[sequence.num_cached : sequence.num_cached + len(sequence.rows)])
            num_rows, one_row_each = sum(len(s.rows) for s in group), len(group[0].rows) == 1
            parts.append(
                _Part(num_rows, len(group) * length, one_row_each, _mask(pool, group, length))
            )
            start = end
        new_rows, live_rows = (
            torch.from_numpy(np.concatenate(rows)).to(pool.device) for rows in (new, live)
        )
        return cls(pool, parts, new_rows, live_rows)

    def __call__(self, slot: int, q: Tensor, kv: Tensor) -> Tensor:
        rows = self._pool.rows[slot]
        rows.index_copy_(0, self.new_rows, kv.to(rows.dtype))
        live, queries = rows.index_select(0, self.live), q.to(rows.dtype)
        if len(self.parts) == 1:
            return _attend(self.parts[0], queries, live)
        work = zip(
            self.parts,
            queries.split([part.num_rows for part in self.parts]),
            live.split([part.num_live for part in self.parts]),
            strict=True,
        )
        return torch.cat([_attend(*one) for one in work])


def _mask(pool: KVPool, group: Sequence[ScheduledSequence], length: int) -> Tensor:
    """[sequences, 1, 1, length] for one row each, [rows, length] for the rows of one sequence."""
    if len(group[0].rows) == 1:
        last = np.array([sequence.num_cached for sequence in group])[:, None, None, None]
    else:
        last = group[0].num_cached + np.arange(len(group[0].rows))[:, None]
    mask = np.where(np.arange(length) > last, np.float32(-np.inf), np.float32(0))
    return torch.from_numpy(mask).to(pool.device, pool.dtype)


def _attend(part: _Part, q: Tensor, live: Tensor) -> Tensor:
    """q: [rows, heads, head_dim]; live: [live rows, 2 * kv_heads, head_dim]."""
    num_sequences = q.shape[0] if part.one_row_each else 1
    keys, values = live.unflatten(0, (num_sequences, -1)).transpose(1, 2).chunk(2, dim=1)
    if not part.one_row_each:
        q = q.transpose(0, 1).unsqueeze(0)
        attended = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=part.mask, enable_gqa=True
        )
        return attended.squeeze(0).transpose(0, 1).flatten(1)
    # the query heads of one kv head take the place of query rows
    q = q.unflatten(1, (keys.shape[1], -1))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=part.mask).flatten(1)


def _pool_rows(sequence: ScheduledSequence, length: int, block_size: int) -> np.ndarray:
    """Where in the pool the sequence's first `length` rows lie: int64 [length].

    Places behind its last row are those of its first one, so that nobody's stale values are ever
    read.
    """
    positions = np.arange(length, dtype=np.int64)
    positions[sequence.num_cached + len(sequence.rows) :] = 0
    blocks = np.array(sequence.block_table, dtype=np.int64)
    return blocks[positions // block_size] * block_size + positions % block_size


def _decode_ends(sequences: Sequence[ScheduledSequence]) -> list[int]:
    """Where to cut sequences of ascending length so that nobody in a group is padded by more than
    MAX_PADDING rows."""
    ends, first = [], 0
    for i, sequence in enumerate(sequences):
        if sequence.num_cached - sequences[first].num_cached > MAX_PADDING:
            ends.append(i)
            first = i
    return [*ends, len(sequences)] if sequences else []


class RecordedDecode:
    """Decode rows of any number of sequences that attend in one call -> their logits.

    To record, two rows are run on the pool's first row, which must not be in use.
    """

    def __init__(self, network: PackedNetwork, pool: KVPool) -> None:
        self._pool = pool

        def record(text_logits: bool) -> Recording:
            def forward(
                kv: Tensor,
                indices: Tensor,
                positions: Tensor,
                new_rows: Tensor,
                live: Tensor,
                mask: Tensor,
            ) -> tuple[Tensor, Tensor]:
                num_rows = indices.shape[0]
                part = _Part(num_rows, live.shape[0], True, mask)
                attention = GatheredAttention(KVPool(kv, pool.block_size), [part], new_rows, live)
                return network.forward(
                    indices, positions, attention, num_rows, None, text_logits=text_logits
                )

            two, live = torch.zeros(2, dtype=torch.long), torch.zeros(32, dtype=torch.long)
            mask = torch.zeros(2, 1, 1, 16, dtype=pool.dtype)
            return Recording(forward, (pool.tensor, two, two, two, live, mask))

        self._recordings = {text_logits: record(text_logits) for text_logits in (False, True)}

    def __call__(
        self, indices: Tensor, positions: Tensor, attend: GatheredAttention, *, text_logits: bool
    ) -> tuple[Tensor, Tensor]:
        """See `PackedNetwork.forward`."""
        (part,) = attend.parts
        rows = attend.new_rows, attend.live, part.mask
        return self._recordings[text_logits](self._pool.tensor, indices, positions, *rows)


FEW_ROWS = 8
"""So many rows take less time as decode rows than as a prompt, and their values are those of one
row a step."""


class TorchRuntime(LogitsRuntime):
    """`Runtime` in plain PyTorch. `threads` is the number of CPU threads of the thread that
    runs it."""

    few_rows = FEW_ROWS

    def __init__(
        self, network: PackedNetwork, pool: KVPool, limits: Limits, info: RuntimeInfo, threads: int
    ):
        self.limits = limits
        self.info = info
        self._network: PackedNetwork | None = network
        self._pool: KVPool | None = pool
        self._recorded = RecordedDecode(network, pool) if pool.device.type == "cpu" else None
        self._threads = threads
        self._thread_id: int | None = None

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._network is not None and self._pool is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        self._set_threads()
        runs = [run for sequence in batch.sequences for run in _runs(sequence)]
        order = sorted(range(len(runs)), key=lambda i: _packing_key(runs[i]))
        sequences = [runs[i] for i in order]
        num_decode = sum(map(_decodes, sequences))
        select, ends = [], 0
        for sequence in sequences:
            ends += len(sequence.rows)
            if sequence.sample:
                select.append(ends - 1)
        device = self._pool.device
        table_index = self._network.table_index
        indices = torch.tensor([table_index(row) for s in sequences for row in s.rows]).to(device)
        positions = _positions(sequences, device)
        attention = GatheredAttention.of_sequences(self._pool, sequences, num_decode)
        decode_in_one_call = num_decode == len(sequences) and len(attention.parts) == 1
        if self._recorded is not None and decode_in_one_call:
            text, audio = self._recorded(
                indices, positions, attention, text_logits=batch.text_logits
            )
        else:
            text, audio = self._network.forward(
                indices,
                positions,
                attention,
                num_decode,
                torch.tensor(select, device=device, dtype=torch.long)
                if len(select) < len(indices)
                else None,
                text_logits=batch.text_logits,
            )
        sampled = [i for i in order if runs[i].sample]
        wanted = [sampled.index(i) for i in _last_runs(batch) if runs[i].sample]
        if wanted != list(range(len(sampled))):
            back = torch.tensor(wanted, device=device)
            text, audio = text.index_select(0, back), audio.index_select(0, back)
        return Logits(text, audio)

    def close(self) -> None:
        self._network = self._pool = self._recorded = None
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _set_threads(self) -> None:
        # torch keeps the number of threads per calling thread; the codec's thread has its own
        if self._thread_id != threading.get_ident():
            self._thread_id = threading.get_ident()
            torch.set_num_threads(self._threads)


def _runs(sequence: ScheduledSequence) -> list[ScheduledSequence]:
    """A sequence as it is run: few rows of a reply as decode rows, each of a sequence that ends
    with it."""
    if not (sequence.of_reply and sequence.sample) or len(sequence.rows) > FEW_ROWS:
        return [sequence]
    return [
        sequence._replace(rows=(row,), num_cached=position)
        for position, row in enumerate(sequence.rows, sequence.num_cached)
    ]


def _last_runs(batch: ScheduledBatch) -> list[int]:
    """Which of all sequences' runs is the last one of each."""
    return [end - 1 for end in accumulate(len(_runs(s)) for s in batch.sequences)]


def _positions(sequences: list[ScheduledSequence], device: torch.device) -> Tensor:
    return torch.tensor(
        [p for s in sequences for p in range(s.num_cached, s.num_cached + len(s.rows))],
        device=device,
    )


def _packing_key(sequence: ScheduledSequence) -> tuple[bool, int]:
    """Decoding sequences first, by length."""
    return not _decodes(sequence), sequence.num_cached


def _decodes(sequence: ScheduledSequence) -> bool:
    return sequence.sample and len(sequence.rows) == 1


def load_torch_runtime(
    folder: Path, limits: Limits, *, device: torch.device, dtype: torch.dtype | str, threads: int
) -> TorchRuntime:
    """Load a checkpoint folder into a runtime.

    dtype: float32, bfloat16 or "int8" (CPU only). Norms, rotary embedding and the residual stream
    are float32 in all of them; so is KV on a CPU, while on a GPU it has the weights' dtype. Raises
    CheckpointError.
    """
    config = ModelConfig.from_file(folder / "config.json")
    int8 = dtype == INT8
    weight_dtype = torch.float32 if int8 else dtype
    assert isinstance(weight_dtype, torch.dtype)
    tensors = load_tensors(
        folder, expected_tensors(config), dtype=weight_dtype, device=device, keep_int8=int8
    )
    refuse_tied(folder)
    network = PackedNetwork(
        config, CheckpointWeights(tensors, dtype, threads), device, limits.max_seq_len
    )
    assert not tensors, "a tensor was not used"
    pool = make_pool(
        config,
        limits.num_blocks,
        limits.block_size,
        torch.float32 if device.type == "cpu" else weight_dtype,
        device,
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    info = RuntimeInfo(
        "torch", torch.__version__, name, str(dtype).removeprefix("torch."), folder.resolve().name
    )
    return TorchRuntime(network, pool, limits, info, threads)
