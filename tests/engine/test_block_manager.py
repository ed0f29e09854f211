"""The block pool against an independent model: not its counts are modelled, but what a sequence
finds in its blocks.

`Pool` drives a BlockManager as the engine does and keeps what was last written to every place of
every block: like a key or a value, that depends on the row and on all rows before it. Whatever
happens, each owner must read its own back through its table.
"""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moss_engine.engine.block_manager import BlockManager

NUM_BLOCKS, BLOCK_SIZE = 12, 4


def contents(rows: list[int]) -> list[int]:
    """What stands in the pool for each row: it tells the row and everything before it."""
    return list(accumulate(rows, lambda before, row: hash((before, row)), initial=0))[1:]


class Pool:
    """A pool with its contents, and the owners that use it."""

    def __init__(self, manager: BlockManager):
        self.manager = manager
        self.memory: dict[tuple[int, int], int] = {}
        self.rows: dict[str, list[int]] = {}  # by owner: prompt and reply so far
        self.max_rows: dict[str, int] = {}
        self.num_computed: dict[str, int] = {}
        # of whole blocks, ever computed by anybody
        self.computed_prefixes: set[tuple[int, ...]] = set()

    def start(self, owner: str, prompt: list[int], max_rows: int) -> bool:
        """Reserve and allocate; whether there was room."""
        room = NUM_BLOCKS - sum(-(-rows // BLOCK_SIZE) for rows in self.max_rows.values())
        accepted = self.manager.reserve(owner, max_rows)
        assert accepted == (-(-max_rows // BLOCK_SIZE) <= room), (
            "admission is exactly by the sum of worst cases"
        )
        if accepted:
            self.max_rows[owner] = max_rows
            self.begin(owner, prompt)
        return accepted

    def begin(self, owner: str, prompt: list[int]) -> None:
        cached = self.manager.allocate(owner, prompt)
        assert cached % BLOCK_SIZE == 0 and cached < len(prompt)
        assert not cached or tuple(prompt[:cached]) in self.computed_prefixes, (
            "a hit on rows that nobody computed"
        )
        self.rows[owner], self.num_computed[owner] = list(prompt), cached
        self.check_rows(owner)

    def compute(self, owner: str, count: int) -> None:
        """Write the next `count` pending rows into the pool, as a forward pass does."""
        rows, start = self.rows[owner], self.num_computed[owner]
        end = min(len(rows), start + count)
        self.manager.append(owner, end)
        table = self.manager.table(owner)
        for position, content in enumerate(contents(rows[:end])):
            if position >= start:
                self.memory[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = content
        self.num_computed[owner] = end
        self.manager.commit(owner, rows, end)
        self.computed_prefixes |= {tuple(rows[:n]) for n in range(BLOCK_SIZE, end + 1, BLOCK_SIZE)}

    def grow(self, owner: str, row: int) -> None:
        if len(self.rows[owner]) < self.max_rows[owner]:
            self.rows[owner].append(row)

    def stop(self, owner: str) -> None:
        self.manager.free(owner)
        for book in (self.rows, self.max_rows, self.num_computed):
            book.pop(owner, None)

    def check_rows(self, owner: str) -> None:
        table = self.manager.table(owner)
        assert len(set(table)) == len(table)
        found = [
            self.memory.get((table[p // BLOCK_SIZE], p % BLOCK_SIZE))
            for p in range(self.num_computed[owner])
        ]
        assert found == contents(self.rows[owner][: self.num_computed[owner]]), (
            "another sequence's rows in the blocks"
        )

    def check(self) -> None:
        manager = self.manager
        manager.check_integrity()
        for owner in self.rows:
            self.check_rows(owner)
        blocks = [set(manager.table(owner)) for owner in self.rows]
        used = len(set().union(*blocks))
        worst = sum(-(-rows // BLOCK_SIZE) for rows in self.max_rows.values())
        assert manager.owners == self.rows.keys()
        assert (manager.num_used, manager.num_used + manager.num_cached + manager.num_free) == (
            used,
            NUM_BLOCKS,
        )
        assert manager.num_reserved == worst - sum(map(len, blocks))
        assert manager.num_free + manager.num_cached >= manager.num_reserved
        if not self.rows:
            assert manager.num_free + manager.num_cached == NUM_BLOCKS and manager.num_reserved == 0


OWNERS = st.sampled_from([f"owner {i}" for i in range(4)])
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=20)


class BlockManagerMachine(RuleBasedStateMachine):
    """Any order of operations, found and shrunk by Hypothesis."""

    def __init__(self):
        super().__init__()
        self.pool = Pool(BlockManager(NUM_BLOCKS, BLOCK_SIZE))

    @rule(owner=OWNERS, prompt=PROMPTS, reply_rows=st.integers(1, 30))
    def start(self, owner: str, prompt: list[int], reply_rows: int):
        if owner not in self.pool.rows:
            self.pool.start(owner, prompt, len(prompt) + reply_rows)

    @precondition(lambda self: self.pool.rows)
    @rule(data=st.data(), count=st.integers(1, 20))
    def compute(self, data: st.DataObject, count: int):
        self.pool.compute(data.draw(st.sampled_from(sorted(self.pool.rows))), count)

    @precondition(lambda self: self.pool.rows)
    @rule(data=st.data(), row=st.integers(1, 2))
    def grow(self, data: st.DataObject, row: int):
        self.pool.grow(data.draw(st.sampled_from(sorted(self.pool.rows))), row)

    @precondition(lambda self: self.pool.rows)
    @rule(data=st.data(), prompt=PROMPTS)
    def next_segment(self, data: st.DataObject, prompt: list[int]):
        owner = data.draw(st.sampled_from(sorted(self.pool.rows)))
        if len(prompt) <= self.pool.max_rows[owner]:
            self.pool.begin(owner, prompt)

    @rule(owner=OWNERS)
    def free(self, owner: str):
        self.pool.stop(owner)
        self.pool.stop(owner)  # twice is as good as once, and an unknown owner is no error

    @precondition(lambda self: self.pool.rows)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject):
        """`reserve`, `append` and `commit` change nothing the second time."""
        owner = data.draw(st.sampled_from(sorted(self.pool.rows)))
        manager, computed = self.pool.manager, self.pool.num_computed[owner]
        before = manager.table(owner), manager.num_reserved, manager.num_cached
        assert manager.reserve(owner, self.pool.max_rows[owner])
        manager.append(owner, computed)
        manager.commit(owner, self.pool.rows[owner], computed)
        assert before == (manager.table(owner), manager.num_reserved, manager.num_cached)

    @invariant()
    def sound(self):
        self.pool.check()


BlockManagerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestAnyOrder = BlockManagerMachine.TestCase


def finish(manager: BlockManager, owner: str, rows: list[int]) -> None:
    """One whole sequence, computed and given back."""
    assert manager.reserve(owner, len(rows))
    manager.allocate(owner, rows)
    manager.commit(owner, rows, len(rows))
    manager.free(owner)


@pytest.mark.parametrize(("prefix", "found"), [([1, 2, 3], 1), ([4, 5, 6], 3), ([7, 8], 2)])
def test_the_least_recently_used_prefix_is_evicted_first_and_its_tail_before_its_head(
    prefix: list[int], found: int
):
    manager = BlockManager(6, 1)
    finish(manager, "old", [1, 2, 3])
    finish(manager, "new", [4, 5, 6])
    assert manager.num_cached == 6
    finish(manager, "another", [7, 8])
    assert manager.reserve("reader", 4)
    assert manager.allocate("reader", [*prefix, 0]) == found


def test_no_more_is_kept_than_may_be_and_the_same_blocks_are_taken_again():
    manager, taken = BlockManager(100, 1, max_cached=3), set()
    for turn in range(20):
        rows = [10 * turn + row for row in range(4)]
        assert manager.reserve("turn", 4) and manager.allocate("turn", rows) == 0
        taken |= set(manager.table("turn"))
        manager.commit("turn", rows, 4)
        manager.free("turn")
        manager.check_integrity()
        assert manager.num_cached == 3
    assert len(taken) <= 7
    assert manager.reserve("again", 5) and manager.allocate("again", [190, 191, 192, 193, 0]) == 3
