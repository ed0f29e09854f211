"""The runtime seam: what the engine asks of anything that can run the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
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


class TextBranch(Enum):
    """How much of the text branch a step needs for a sequence's rows; trunk and audio branch are always run, and the
    text branch is run for all sequences of a step as far as one of them needs it.

    While a reply speaks, the sample of the text head is replaced by the modality pad before anything sees it, so its
    logits are not needed. Nothing else is known to be unused: in text mode the audio sample stays in the row, counts
    for the audio channel's repetition penalty, and is what the network reads should the text sample be the pad. Text
    logits that are no numbers are noticed when text is sampled again.
    """

    SAMPLED = "sampled"  # all of it, and the text logits
    FILLED = "filled"  # keys and values; the text logits may be anything finite
    DEFERRED = "deferred"  # nothing yet: keys and values follow before text is sampled again


@dataclass(frozen=True)
class ScheduledSequence:
    """One sequence's share of a step.

    Rows `num_cached .. num_cached + len(rows) - 1` of the sequence are run; `block_table[i]` is the pool block of
    positions `i * block_size ...`, and covers them. `sample` tells whether logits of the last row are wanted: not so
    for a prefill chunk that is not the last. The last `num_deferred` of the cached rows have not been through the text
    branch; unless `text` is DEFERRED again, the runtime makes up for that first.
    """

    rows: tuple[Row, ...]
    num_cached: int
    block_table: tuple[int, ...]
    sample: bool
    text: TextBranch = TextBranch.SAMPLED
    num_deferred: int = 0


@dataclass(frozen=True)
class ScheduledBatch:
    sequences: tuple[ScheduledSequence, ...]

    @property
    def text(self) -> TextBranch:
        """The most that any sequence needs of the text branch."""
        needs = {TextBranch.FILLED if sequence.text is TextBranch.SAMPLED and not sequence.sample else sequence.text
                 for sequence in self.sequences}
        return next(text for text in TextBranch if text in needs)


def check_batch(batch: ScheduledBatch, limits: Limits) -> None:
    """Assert that a batch is one that a runtime with these limits may be given."""
    assert 0 < len(batch.sequences) <= limits.max_batch, "too many sequences in a step, or none"
    assert sum(len(s.rows) for s in batch.sequences) <= limits.max_step_rows, "too many rows in a step"
    for sequence in batch.sequences:
        length = sequence.num_cached + len(sequence.rows)
        assert sequence.rows and length <= limits.max_seq_len, "a sequence without rows, or a too long one"
        assert sequence.num_deferred <= sequence.num_cached, "more rows are deferred than cached"
        assert length <= len(sequence.block_table) * limits.block_size, "the block table does not cover the rows"


def deferred_parts(batch: ScheduledBatch, max_rows: int) -> Iterator[list[ScheduledSequence]]:
    """What has to be made up for in the text branch before the batch: groups of at most `max_rows` rows.

    Each part stands for cached rows of one sequence; what it holds as rows only counts them.
    """
    group: list[ScheduledSequence] = []
    room = max_rows
    for sequence in batch.sequences:
        start = sequence.num_cached - sequence.num_deferred
        while sequence.text is not TextBranch.DEFERRED and start < sequence.num_cached:
            count = min(room, sequence.num_cached - start)
            rows = (sequence.rows[0],) * count
            group.append(ScheduledSequence(rows, start, sequence.block_table, False, TextBranch.FILLED))
            start += count
            room -= count
            if room == 0:
                yield group
                group, room = [], max_rows
    if group:
        yield group


class Logits(NamedTuple):
    """float32 logits of the last row of each sequence with `sample`, in batch order, on the runtime's device.

    Where no sequence of the batch has `TextBranch.SAMPLED`, the text logits are finite numbers without meaning.
    """

    text: Tensor  # [num_sampled, vocab_size]
    audio: Tensor  # [num_sampled, audio_vocab_size]


class Runtime(Protocol):
    """Runs the model; owns weights and the KV pool.

    After `forward`, the KV of the batch's rows is in the blocks of its tables. Blocks are anonymous: the engine
    decides who owns which, and may pass a freed block to another sequence at the next call. Called by one thread.
    Only a runtime that was made for it is given sequences whose text branch is deferred.
    """

    limits: Limits
    info: RuntimeInfo

    def forward(self, batch: ScheduledBatch) -> Logits: ...

    def close(self) -> None:
        """Give back device memory; the runtime is unusable afterwards."""
        ...
