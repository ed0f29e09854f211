"""A TensorRT step's integers: put into pinned memory and sent with one copy to the buffers that the
engine reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from moss_engine.runtime.base import Limits, ScheduledSequence

_ALIGNED = 64
"""int32 values: TensorRT wants addresses at multiples of 256 bytes."""


@dataclass(frozen=True)
class StepShape:
    """B sequences of R rows; `blocks` places for each one's cached blocks."""

    sequences: int
    rows: int
    blocks: int


class StepInputs:
    """Buffers of every integer that a step reads, of any `StepShape` within the limits.

    Places that no sequence takes hold an empty one, whose new row goes to the pool's spare block.
    """

    def __init__(self, limits: Limits, max_sequences: int, device: torch.device):
        """max_sequences: of one step, those included that only fill it up."""
        self._limits = limits
        self._spare_row = limits.num_blocks * limits.block_size
        self.max_blocks = -(-limits.max_seq_len // limits.block_size)
        rows = max(max_sequences, limits.max_step_rows)
        sizes = {
            "ids": 2 * rows,
            "cached": max_sequences,
            "select": max_sequences,
            "pool_rows": rows,
            "tables": max_sequences * self.max_blocks,
        }
        starts, total = {}, 0
        for name, size in sizes.items():
            starts[name] = total
            total += -(-size // _ALIGNED) * _ALIGNED
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(total, dtype=torch.int32, pin_memory=on_gpu)
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        self._tables_start = starts["tables"]
        self._views = {
            name: self._host[start : start + sizes[name]].numpy() for name, start in starts.items()
        }
        self._tensors = {
            name: self._device[start : start + sizes[name]] for name, start in starts.items()
        }
        count = max(rows, self.max_blocks * limits.block_size)
        self._index = torch.arange(count, dtype=torch.int32, device=device)
        self._sent = torch.cuda.Event() if on_gpu else None

    def tensors(self) -> dict[str, Tensor]:
        """Buffers by the engine's names; a step reads the first values of each."""
        return {
            **{name: self._tensors[name] for name in ("ids", "cached", "tables", "select")},
            "past_index": self._index,
            "row_index": self._index,
        }

    def pool_rows(self, num_rows: int) -> Tensor:
        """Where the step's rows belong: int32 [rows], block * block_size + offset."""
        return self._tensors["pool_rows"][:num_rows]

    def put(self, sequences: Sequence[ScheduledSequence], shape: StepShape) -> None:
        """Send sequences of `shape.rows` rows each (at most `shape.sequences`); logits of each
        one's last row."""
        if self._sent is not None:
            self._sent.synchronize()
        views, count, rows, block_size = (
            self._views,
            len(sequences),
            shape.rows,
            self._limits.block_size,
        )
        num_rows = count * rows
        ids = chain.from_iterable(chain.from_iterable(sequence.rows for sequence in sequences))
        views["ids"][: 2 * num_rows] = np.fromiter(ids, np.int32, 2 * num_rows)
        views["ids"][2 * num_rows : 2 * shape.sequences * rows] = 0
        views["cached"][:count] = [sequence.num_cached for sequence in sequences]
        views["cached"][count : shape.sequences] = 0
        views["select"][: shape.sequences] = np.arange(1, shape.sequences + 1) * rows - 1
        tables = views["tables"][: shape.sequences * shape.blocks].reshape(
            shape.sequences, shape.blocks
        )
        tables[:] = self._limits.num_blocks
        pool_rows = views["pool_rows"][: shape.sequences * rows].reshape(shape.sequences, rows)
        pool_rows[:] = self._spare_row
        for i, sequence in enumerate(sequences):
            assert len(sequence.rows) == rows, "a step's sequences have equally many rows"
            table = np.asarray(sequence.block_table, dtype=np.int32)
            used = -(-sequence.num_cached // block_size)
            tables[i, :used] = table[:used]
            at = np.arange(sequence.num_cached, sequence.num_cached + rows)
            pool_rows[i] = table[at // block_size] * block_size + at % block_size
        end = self._tables_start + tables.size
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
