"""What every runtime must do, as a test class to inherit from.

A subclass provides the fixture `runtime` and its tolerances; `tests/runtime/test_runtime_torch.py`
is the example. All numbers are logits of the tiny random checkpoint, whose standard deviation is
about 1.5.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from moss_engine.api.request import ChannelSampling, Sampling
from moss_engine.api.tokens import Modality, Row
from moss_engine.models.network import MossSpeech, causal_attend, load_model
from moss_engine.runtime.base import (
    BatchSampling,
    Limits,
    Logits,
    ScheduledBatch,
    ScheduledSequence,
    SequenceSampling,
)
from moss_engine.runtime.sampler import LogitsRuntime
from scripts.quantize import quantize_folder
from tests.fixtures.make_tiny_checkpoint import write_checkpoint

LIMITS = Limits(block_size=4, num_blocks=128, max_batch=6, max_step_rows=96, max_seq_len=512)


class RuntimeContract:
    """`tolerance` bounds the difference from the float32 reference network, and `drift` that
    between two ways in which the runtime itself may compute the same. With `exact_batch` a decoding
    sequence must get the same bits whatever other sequences share its step.
    """

    tolerance: float
    drift: float
    exact_batch: bool

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tiny_checkpoint: Path) -> MossSpeech:
        return load_model(tiny_checkpoint)

    @pytest.fixture(autouse=True)
    def prepare(self, model: MossSpeech, runtime: LogitsRuntime) -> None:
        self.model, self.runtime, self.random = model, runtime, random.Random(3)
        self.free = self.random.sample(range(runtime.limits.num_blocks), runtime.limits.num_blocks)

    def test_every_row_agrees_with_the_reference(self) -> None:
        rows, table = self.rows(30), self.table(30)
        reference = self.reference(rows)
        for end in range(1, 31):
            logits = self.forward(self.part(rows, table, end - 1, end))
            self.assert_close(logits, self.pick(reference, end - 1), self.tolerance)

    def test_logits_are_float32_of_the_sampled_rows_in_batch_order(self) -> None:
        config = self.model.config
        sequences = [self.rows(length) for length in (6, 1, 8, 1)]
        parts = [self.part(rows, self.table(8), 0, len(rows)) for rows in sequences]
        logits = self.forward(*parts[:2], parts[2]._replace(sample=False), parts[3])
        assert logits.text.shape == (3, config.vocab_size)
        assert logits.audio.shape == (3, config.audio_vocab_size)
        assert logits.text.dtype == logits.audio.dtype == torch.float32
        for i, which in enumerate((0, 1, 3)):
            self.assert_close(self.pick(logits, i), self.whole(sequences[which]), self.drift)

    def test_a_step_without_samples_gives_no_logits(self) -> None:
        logits = self.forward(self.part(self.rows(5), self.table(5), 0, 5, sample=False))
        assert logits.text.shape[0] == logits.audio.shape[0] == 0

    def test_a_sequence_that_is_not_sampled_is_none_the_worse_for_it(self) -> None:
        """Beside any number of sampled ones, since steps are padded to certain numbers."""
        rows = self.rows(12)
        whole = self.whole(rows)
        for num_others in range(1, self.runtime.limits.max_batch):
            table, other = self.table(12), self.rows(3)
            self.forward(
                self.part(rows, table, 0, 9, sample=False),
                *(self.part(other, self.table(3), 0, 3) for _ in range(num_others)),
            )
            self.assert_close(self.forward(self.part(rows, table, 9, 12)), whole, self.drift)

    @pytest.mark.parametrize("steps", [[13, 13, 14], [4, 36], [20] + [1] * 20, [1] * 8 + [32]])
    def test_chunked_prefill_is_whole_prefill(self, steps: list[int]) -> None:
        rows = self.rows(40)
        self.assert_close(self.in_steps(rows, steps), self.whole(rows), self.drift)

    def test_batched_is_alone(self) -> None:
        """Of similar and of very different lengths."""
        sequences = [self.rows(length) for length in (3, 310, 17, 4, 33)]
        tables = [self.table(len(rows)) for rows in sequences]
        last = []
        for rows, table in zip(sequences, tables, strict=True):
            self.fill(rows, table, len(rows) - 1)
            last.append(self.part(rows, table, len(rows) - 1, len(rows)))
        together, drift = self.forward(*last), 0.0 if self.exact_batch else self.drift
        for i, part in enumerate(last):
            self.assert_close(self.pick(together, i), self.forward(part), drift)

    def test_decoding_is_the_same_beside_a_prefill(self) -> None:
        rows, table, other = self.rows(21), self.table(21), self.rows(64)
        self.forward(self.part(rows, table, 0, 20, sample=False))
        last = self.part(rows, table, 20, 21)
        alone = self.forward(last)
        mixed = self.forward(self.part(other, self.table(64), 0, 64), last)
        self.assert_close(self.pick(mixed, 1), alone, 0.0 if self.exact_batch else self.drift)
        self.assert_close(self.pick(mixed, 0), self.whole(other), self.drift)

    def test_any_order_of_blocks_gives_the_same(self) -> None:
        rows = self.rows(40)
        straight, shuffled = tuple(range(10)), self.table(40)
        assert list(shuffled) != sorted(shuffled)
        expected = self.in_steps(rows, [30] + [1] * 10, straight)
        for table in (shuffled, straight[::-1], (*straight, *shuffled)):
            self.assert_close(self.in_steps(rows, [30] + [1] * 10, table), expected, self.drift)

    def test_blocks_may_be_used_again(self) -> None:
        """Freed in the middle of a sequence and given to others, longer and shorter ones."""
        rows, others = self.rows(26), [self.rows(48), self.rows(5)]
        table = self.table(48)
        before = self.in_steps(rows, [24, 1, 1], table)
        for other in others:
            self.forward(self.part(other, table, 0, len(other)))
        self.assert_close(self.in_steps(rows, [24, 1, 1], table[::-1]), before, self.drift)
        self.assert_close(self.in_steps(rows, [24, 1, 1], table), before, self.drift)

    def test_a_shared_prefix_is_a_recomputed_one(self) -> None:
        size = self.runtime.limits.block_size
        prefix, table = self.rows(5 * size), self.table(64)
        first, second = ([*prefix, *self.rows(length)] for length in (7, 11))
        self.forward(self.part(first, table, 0, len(first)))
        shared = (*table[:5], *self.table(64))
        continued = self.forward(self.part(second, shared, len(prefix), len(second)))
        self.assert_close(continued, self.whole(second), self.drift)
        again = self.forward(self.part(first, table, len(first) - 1, len(first)))
        self.assert_close(again, self.whole(first), self.drift)

    def test_two_sequences_may_share_blocks_in_one_step(self) -> None:
        size = self.runtime.limits.block_size
        prefix, table = self.rows(3 * size), self.table(3 * size)
        sequences = [[*prefix, *self.rows(length)] for length in (2, 1)]
        self.forward(self.part(prefix, table, 0, len(prefix), sample=False))
        together = self.forward(
            *(
                self.part(rows, (*table[:3], *self.table(4)), len(prefix), len(rows))
                for rows in sequences
            )
        )
        for i, rows in enumerate(sequences):
            self.assert_close(self.pick(together, i), self.whole(rows), self.drift)

    @pytest.mark.parametrize("num_rows", [1, 30])
    def test_audio_logits_are_the_same_without_text_logits(self, num_rows: int) -> None:
        """And so are all that come later."""
        rows, tables = self.rows(num_rows + 21), (self.table(60), self.table(60))
        found = []
        for table, text_logits in zip(tables, (True, False), strict=True):
            self.forward(self.part(rows, table, 0, 20, sample=False))
            part = self.part(rows, table, 20, len(rows) - 1)
            logits = self.forward(part._replace(text_logits=text_logits))
            found.append((logits, self.forward(self.part(rows, table, len(rows) - 1, len(rows)))))
        (wanted, wanted_later), (filled, filled_later) = found
        assert filled.text.shape == wanted.text.shape and filled.text.isfinite().all()
        self.assert_close(Logits(wanted.text, filled.audio), wanted, self.drift)
        self.assert_close(filled_later, wanted_later, self.drift)

    def test_a_full_step_of_the_longest_sequence(self) -> None:
        limits = self.runtime.limits
        rows, table = self.rows(limits.max_seq_len), self.table(limits.max_seq_len)
        self.fill(rows, table, limits.max_seq_len - 1)
        logits = self.forward(self.part(rows, table, limits.max_seq_len - 1, limits.max_seq_len))
        self.assert_close(logits, self.pick(self.reference(rows), len(rows) - 1), self.tolerance)

    @pytest.mark.parametrize("modality", Modality)
    def test_a_step_draws_by_what_it_is_given(self, modality: Modality) -> None:
        """The likeliest ids, after the penalty for those of the history; a finished sequence's name
        may be that of a new one."""
        ids, values = self.model.config.special, ChannelSampling(0.0, 0, 1.0, 2.0)
        for _ in range(2):
            rows, table, other_table = self.rows(9), self.table(16), self.table(16)
            finished = ("sequence",)
            for end in range(9, 14):
                start = 0 if end == 9 else end - 1
                part = self.part(rows, table, start, end)
                (row,) = self.step(part, rows, end - 9, values, modality, finished)
                assert row is not None
                logits = self.forward(part._replace(block_table=other_table))
                self.assert_likeliest(row.audio, logits.audio[0, : ids.eosp + 1], rows, 1)
                if modality is Modality.AUDIO:
                    assert row.text == ids.modality_pad
                else:
                    self.assert_likeliest(row.text, logits.text[0], rows, 0)
                rows.append(row)
                finished = ()

    def assert_likeliest(
        self, found: int, scores: torch.Tensor, rows: list[Row], channel: int
    ) -> None:
        for seen in {row[channel] for row in rows}:
            if seen < len(scores):
                scores[seen] *= 2.0 if scores[seen] < 0 else 0.5
        assert scores[found] >= scores.max() - 2 * self.drift

    def test_a_step_draws_allowed_text_only(self) -> None:
        rows, table = self.rows(9), self.table(9)
        greedy = ChannelSampling(0.0, 0, 1.0, 1.0)
        warm = ChannelSampling(1.0, 20, 1.0, 1.1)
        part = self.part(rows, table, 0, 9)
        for values, allowed in (
            (greedy, (11, 12)),
            (greedy, (13,)),
            (warm, (11, 12)),
            (warm, (9,)),
        ):
            given = (values, Modality.TEXT, ("sequence",), allowed)
            (row,) = self.step(part, rows, 0, *given)
            assert row is not None and row.text in allowed

    def test_a_step_without_samples_draws_nothing(self) -> None:
        batch = ScheduledBatch((self.part(self.rows(5), self.table(5), 0, 5, sample=False),))
        special = self.model.config.special
        assert self.runtime.step(batch, BatchSampling((), special, ("sequence",))) == []

    def step(
        self,
        part: ScheduledSequence,
        rows: list[Row],
        num_reply_rows: int,
        values: ChannelSampling,
        modality: Modality,
        finished: tuple[str, ...],
        allowed_text: tuple[int, ...] | None = None,
    ) -> list[Row | None]:
        sampling = Sampling(values, values, max_rows=100, min_rows=0, seed=3)
        drawn = SequenceSampling("sequence", rows, num_reply_rows, sampling, modality, allowed_text)
        special = self.model.config.special
        return self.runtime.step(
            ScheduledBatch((part,)), BatchSampling((drawn,), special, finished)
        )

    def rows(self, num_rows: int) -> list[Row]:
        """Text and audio rows in spans, with values in the channel that does not count."""
        config = self.model.config
        rows = []
        while len(rows) < num_rows:
            in_audio = self.random.random() < 0.5
            for _ in range(self.random.randrange(1, 6)):
                text = (
                    config.modality_pad_token_id
                    if in_audio
                    else self.random.randrange(7, config.vocab_size)
                )
                rows.append(Row(text, self.random.randrange(config.eosp_token_id)))
        return rows[:num_rows]

    def table(self, num_rows: int) -> tuple[int, ...]:
        """A table of blocks that no other table of this test has, while there are enough."""
        num_blocks = -(-num_rows // self.runtime.limits.block_size)
        if len(self.free) < num_blocks:
            self.free = self.random.sample(
                range(self.runtime.limits.num_blocks), self.runtime.limits.num_blocks
            )
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        return tuple(taken)

    @staticmethod
    def part(
        rows: Sequence[Row], table: tuple[int, ...], start: int, end: int, *, sample: bool = True
    ) -> ScheduledSequence:
        return ScheduledSequence(tuple(rows[start:end]), start, table, sample)

    def forward(self, *parts: ScheduledSequence) -> Logits:
        logits = self.runtime.forward(ScheduledBatch(parts))
        return Logits(logits.text.cpu().clone(), logits.audio.cpu().clone())

    def whole(self, rows: Sequence[Row]) -> Logits:
        """Logits of the last row when all rows are run in one step."""
        return self.forward(self.part(rows, self.table(len(rows)), 0, len(rows)))

    @torch.inference_mode()
    def reference(self, rows: Sequence[Row]) -> Logits:
        """The float32 network's logits of every row."""
        states = self.model(torch.tensor(rows), torch.arange(len(rows)), causal_attend)
        return Logits(self.model.text_lm_head(states.text), self.model.audio_lm_head(states.audio))

    def fill(self, rows: Sequence[Row], table: tuple[int, ...], end: int) -> None:
        """Run the rows before `end` in the largest steps that the limits allow."""
        size = self.runtime.limits.max_step_rows
        for start in range(0, end, size):
            self.forward(self.part(rows, table, start, min(start + size, end), sample=False))

    def in_steps(
        self, rows: Sequence[Row], steps: Sequence[int], table: tuple[int, ...] | None = None
    ) -> Logits:
        """Logits of the last row when the rows are run in steps of these sizes."""
        table = table or self.table(len(rows))
        done = 0
        logits = None
        for step in steps:
            logits = self.forward(self.part(rows, table, done, done + step))
            done += step
        assert logits is not None and done == len(rows)
        return logits

    @staticmethod
    def pick(logits: Logits, i: int) -> Logits:
        return Logits(logits.text[i : i + 1], logits.audio[i : i + 1])

    @staticmethod
    def assert_close(found: Logits, expected: Logits, tolerance: float) -> None:
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max() <= tolerance


class FourBits(RuntimeContract):
    """For a folder in 4 bits (heads in 8), whose reference has the same, rounded values."""

    @pytest.fixture(scope="class")
    @classmethod
    def tiny_checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("packed")
        write_checkpoint(folder / "whole")
        quantize_folder(folder / "whole", folder / "four", 4, [], 8, "cpu", wide=0.0)
        return folder / "four"
