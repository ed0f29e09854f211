"""What a runtime that was made for deferred text branches must do, as a test class to inherit from."""

from __future__ import annotations

from collections.abc import Sequence

from moss_engine.runtime.base import Logits, ScheduledSequence, TextBranch
from moss_engine.tokens import Row
from tests.runtime_contract import RuntimeContract


class DeferredTextContract(RuntimeContract):
    """The contract of every runtime, and that what was deferred and made up for is what was never deferred.

    `drift` bounds the difference: keys and values come out of products of many rows instead of one.
    """

    def test_made_up_for_is_never_deferred(self) -> None:
        """Over more rows than one step may have, with several replies at once."""
        self.check_lengths([(20, 25), (90, 240), (7, 1)])

    def test_speaking_and_writing_replies_may_share_steps(self) -> None:
        """A step runs the text branch for all as soon as one needs it; what it leaves behind for the others is void."""
        speaking, writing = self.rows(40), self.rows(40)
        tables = [self.table(40), self.table(40)]
        whole = [self.forward(self.part(rows, self.table(40), 0, 40)) for rows in (speaking, writing)]
        for rows, table in zip((speaking, writing), tables, strict=True):
            self.fill(rows, table, 20)
        for end in range(21, 40):
            step = [self.deferred(speaking, tables[0], end - 1, end - 21),
                    self.part(writing, tables[1], end - 1, end)]
            self.forward(*(step if end % 3 else step[:1]))
            if not end % 3:
                self.forward(step[1])
        last = ScheduledSequence(tuple(speaking[39:]), 39, tables[0], True, TextBranch.SAMPLED, 19)
        logits = self.forward(last, self.part(writing, tables[1], 39, 40))
        self.assert_close(self.pick(logits, 0), whole[0], self.drift)
        self.assert_close(self.pick(logits, 1), whole[1], self.drift)

    def test_made_up_for_before_several_rows(self) -> None:
        rows, table = self.rows(50), self.table(50)
        whole = self.forward(self.part(rows, self.table(50), 0, 50))
        self.fill(rows, table, 20)
        for start in range(20, 30):
            self.forward(self.deferred(rows, table, start, start - 20))
        logits = self.forward(ScheduledSequence(tuple(rows[30:]), 30, table, True, TextBranch.SAMPLED, 10))
        self.assert_close(logits, whole, self.drift)

    def check_lengths(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Prompt rows and deferred rows of every sequence."""
        sequences = [self.rows(prompt + deferred + 1) for prompt, deferred in lengths]
        tables = [self.table(len(rows)) for rows in sequences]
        for rows, table, (prompt, deferred) in zip(sequences, tables, lengths, strict=True):
            self.fill(rows, table, prompt)
            for index in range(deferred):
                logits = self.forward(self.deferred(rows, table, prompt + index, index))
                assert logits.text.isfinite().all()
            expected = self.forward(self.part(rows[: prompt + deferred], self.table(len(rows)), 0, prompt + deferred)) \
                if prompt + deferred <= self.runtime.limits.max_step_rows else None
            if expected is not None:
                self.assert_close(Logits(expected.text, logits.audio), expected, self.drift)
        together = self.forward(*(
            ScheduledSequence(tuple(rows[-1:]), len(rows) - 1, table, True, TextBranch.SAMPLED, deferred)
            for rows, table, (_, deferred) in zip(sequences, tables, lengths, strict=True)))
        for i, rows in enumerate(sequences):
            table = self.table(len(rows))
            self.fill(rows, table, len(rows) - 1)
            whole = self.forward(self.part(rows, table, len(rows) - 1, len(rows)))
            self.assert_close(self.pick(together, i), whole, self.drift)

    @staticmethod
    def deferred(rows: Sequence[Row], table: tuple[int, ...], start: int, num_deferred: int) -> ScheduledSequence:
        """Row `start` of a speaking reply, after `num_deferred` that were deferred."""
        return ScheduledSequence(tuple(rows[start : start + 1]), start, table, True, TextBranch.DEFERRED, num_deferred)
