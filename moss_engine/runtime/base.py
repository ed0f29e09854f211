"""The runtime seam: what the engine asks of anything that can run the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moss_engine.tokens import Row

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Limits:
    """Capacity of a runtime, fixed when it is made.

    `max_batch` counts sequences of one step, `max_step_rows` the uncached rows of one step over all its sequences.
    """

    block_size: int
    num_blocks: int
    max_batch: int
    max_step_rows: int
    max_seq_len: int


@dataclass(frozen=True)
class RuntimeInfo:
    """What the status panel names: runtime, library version, device and number format."""

    name: str
    version: str
    device: str
    dtype: str
    weights: str
    engine_digest: str | None = None


@dataclass(frozen=True)
class ScheduledSequence:
    """One sequence's share of a step.

    Rows `num_cached .. num_cached + len(rows) - 1` of the sequence are run; `block_table[i]` is the pool block of
    positions `i * block_size ...`, and covers them. `sample` tells whether logits of the last row are wanted: not so
    for a prefill chunk that is not the last.
    """

    rows: tuple[Row, ...]
    num_cached: int
    block_table: tuple[int, ...]
    sample: bool


@dataclass(frozen=True)
class ScheduledBatch:
    sequences: tuple[ScheduledSequence, ...]


def check_batch(batch: ScheduledBatch, limits: Limits) -> None:
    """Assert that a batch is one that a runtime with these limits may be given."""
    assert 0 < len(batch.sequences) <= limits.max_batch, "too many sequences in a step, or none"
    assert sum(len(s.rows) for s in batch.sequences) <= limits.max_step_rows, "too many rows in a step"
    for sequence in batch.sequences:
        length = sequence.num_cached + len(sequence.rows)
        assert sequence.rows and length <= limits.max_seq_len, "a sequence without rows, or a too long one"
        assert length <= len(sequence.block_table) * limits.block_size, "the block table does not cover the rows"


class Logits(NamedTuple):
    """float32 logits of the last row of each sequence with `sample`, in batch order, on the runtime's device."""

    text: Tensor  # [num_sampled, vocab_size]
    audio: Tensor  # [num_sampled, audio_vocab_size]


class Runtime(Protocol):
    """Runs the model; owns weights and the KV pool.

    After `forward`, the KV of the batch's rows is in the blocks of its tables. Blocks are anonymous: the engine
    decides who owns which, and may pass a freed block to another sequence at the next call. Called by one thread.
    """

    limits: Limits
    info: RuntimeInfo

    def forward(self, batch: ScheduledBatch) -> Logits: ...

    def close(self) -> None:
        """Give back device memory; the runtime is unusable afterwards."""
        ...
