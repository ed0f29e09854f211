"""The runtime seam: what the engine asks of anything that can run the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import Sampling
from moss_engine.api.tokens import Modality, Row, SpecialIds

if TYPE_CHECKING:
    from torch import Tensor


BACKENDS = ("tensorrt", "tensorrt_rtx", "tensorrt_llm")
"""The libraries that run engine files."""


@dataclass(frozen=True)
class Limits:
    """Capacity of a runtime, fixed when it is made.

    `block_size` is the rows of a KV block and `num_blocks` the blocks of the pool. `max_batch`
    counts sequences of one step, `max_step_rows` the uncached rows of one step over all its
    sequences; `max_seq_len` is the rows of the longest sequence, prompt and reply.
    """

    block_size: int
    num_blocks: int
    max_batch: int
    max_step_rows: int
    max_seq_len: int

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_seq_len // self.block_size)


class ScheduledSequence(NamedTuple):
    """One sequence's share of a step.

    Rows `num_cached .. num_cached + len(rows) - 1` of the sequence are run; `block_table[i]` is the
    pool block of positions `i * block_size ...`, and covers them. `sample` tells whether logits of
    the last row are wanted: not so for a prefill chunk that is not the last. `text_logits` tells
    whether the text logits are among them: not so while a reply speaks, since its text sample is
    replaced by the modality pad. Keys and values are written in both branches in any case.
    `of_reply`: the rows belong to a reply rather than to a prompt, see `Runtime`.
    """

    rows: tuple[Row, ...]
    num_cached: int
    block_table: tuple[int, ...]
    sample: bool
    text_logits: bool = True
    of_reply: bool = False


@dataclass(frozen=True)
class ScheduledBatch:
    """One step of the network over one or more sequences."""

    sequences: tuple[ScheduledSequence, ...]

    @property
    def text_logits(self) -> bool:
        """Whether any sequence needs text logits."""
        return any(sequence.sample and sequence.text_logits for sequence in self.sequences)


def check_batch(batch: ScheduledBatch, limits: Limits) -> None:
    """Assert that a batch is one that a runtime with these limits may be given."""
    assert 0 < len(batch.sequences) <= limits.max_batch, "too many sequences in a step, or none"
    assert sum(len(s.rows) for s in batch.sequences) <= limits.max_step_rows, (
        "too many rows in a step"
    )
    for sequence in batch.sequences:
        length = sequence.num_cached + len(sequence.rows)
        assert sequence.rows and length <= limits.max_seq_len, (
            "a sequence without rows, or a too long one"
        )
        assert length <= len(sequence.block_table) * limits.block_size, (
            "the block table does not cover the rows"
        )


class SequenceSampling(NamedTuple):
    """How the next row of a sequence is drawn, all by value: what a runtime keeps of a sequence
    under its id is only a cache of what follows from `rows`.

    `rows` are prompt and reply so far, the history that the repetition penalty looks at, of which
    the last `num_reply_rows` are the reply. `allowed_text` are the only text ids that may be drawn,
    at most two; None for all.
    """

    sequence_id: str
    rows: Sequence[Row]
    num_reply_rows: int
    sampling: Sampling
    modality: Modality
    allowed_text: tuple[int, ...] | None = None


class BatchSampling(NamedTuple):
    """How the rows of a step are drawn: one entry for each sequence with `sample`, in batch order.

    `finished` are the ids of the sequences that ended since the last step, or are left out while
    more are running than fit into one. They are let go before the step, in which their ids may
    already be those of new sequences.
    """

    sequences: tuple[SequenceSampling, ...]
    special_ids: SpecialIds
    finished: tuple[str, ...] = ()


class Logits(NamedTuple):
    """float32 logits of the last row of each sequence with `sample`, in batch order, on the
    runtime's device.

    Where no sequence of the batch needs text logits, they are finite numbers without meaning.
    """

    text: Tensor  # [num_sampled, vocab_size]
    audio: Tensor  # [num_sampled, audio_vocab_size]


class Runtime(Protocol):
    """Runs the model and draws rows; owns weights and the KV pool.

    After `step`, the KV of the batch's rows is in the blocks of its tables. Blocks are anonymous:
    the engine decides who owns which, and may pass a freed block to another sequence at the next
    call. Called by one thread. A step takes up to `few_rows` rows of one reply at a time: they have
    the values that they would have in steps of their own, and cost less. `LogitsRuntime` is the
    base of those that compute logits.
    """

    limits: Limits
    info: RuntimeInfo
    few_rows: int

    def step(self, batch: ScheduledBatch, sampling: BatchSampling) -> list[Row | None]:
        """Run the batch's rows and draw the next one of every sequence with `sample`, in batch
        order; None where the logits hold NaN or infinity."""
        ...

    def close(self) -> None:
        """Give back device memory; the runtime is unusable afterwards."""
        ...
