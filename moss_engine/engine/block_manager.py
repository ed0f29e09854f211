"""KV blocks: who owns which, what can be found again, and what is promised. No tensors.

A block of the pool is in exactly one place: *used* (in the table of one or more owners), *cached*
(owned by nobody, but found again by the hash of its rows) or *free*. An owner reserves its worst
case once, before anything is computed; every block it takes later comes out of that quota, so a
sequence that has started never waits for memory. Quotas ignore sharing: an owner whose first blocks
are shared needs fewer than it reserved, never more.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

ROOT = b"\0" * 16


def block_hash(parent: bytes, ids: Sequence[int]) -> bytes:
    """Hash of a full block: that of the block before it (ROOT for the first), chained with its
    rows' effective ids.

    Cryptographic, because a hit hands one visitor's keys and values to another: equal hashes must
    mean equal rows.
    """
    return blake2b(parent + array("q", ids).tobytes(), digest_size=16).digest()


@dataclass
class _Owner:
    quota: int
    table: tuple[int, ...] = ()
    # of the leading full blocks whose rows are computed
    hashes: list[bytes] = field(default_factory=list)


class BlockManager:
    """Tables and counts for a pool of `num_blocks` blocks of `block_size` rows each; not
    thread-safe. At most `max_cached` blocks keep what nobody owns any more, None being no limit.

    One owner's life: `reserve`, then `allocate` for each of its sequences (one at a time), `append`
    and `commit` as rows come, and `free`. `reserve`, `append`, `commit` and `free` may be repeated
    without effect.
    """

    def __init__(self, num_blocks: int, block_size: int, max_cached: int | None = None):
        assert num_blocks > 0 and block_size > 0
        self._max_cached = num_blocks if max_cached is None else max_cached
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # next to be evicted first
        self._num_owners = [0] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._owners: dict[str, _Owner] = {}
        self._promised = 0  # sum of all quotas

    @property
    def num_free(self) -> int:
        """Blocks without owner and without content."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without owner whose rows can be found again; evicted when a block is needed."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_reserved(self) -> int:
        """Blocks promised to owners and not yet taken; part of the free and cached ones."""
        return self._promised - sum(len(owner.table) for owner in self._owners.values())

    @property
    def owners(self) -> frozenset[str]:
        return frozenset(self._owners)

    def blocks_for(self, num_rows: int) -> int:
        return -(-num_rows // self.block_size)

    def has_room(self, max_rows: int) -> bool:
        """Whether a new owner's longest possible sequence can be promised its blocks."""
        return self._promised + self.blocks_for(max_rows) <= self.num_blocks

    def reserve(self, owner: str, max_rows: int) -> bool:
        """Promise `owner` the blocks of its longest possible sequence; False if others hold too
        many promises."""
        quota = self.blocks_for(max_rows)
        standing = self._owners.get(owner)
        if standing is not None:
            assert standing.quota == quota, "an owner's reservation does not change"
            return True
        if not self.has_room(max_rows):
            return False
        self._owners[owner] = _Owner(quota)
        self._promised += quota
        return True

    def allocate(self, owner: str, ids: Sequence[int]) -> int:
        """Start a sequence with the rows `ids` (effective ids), giving up the owner's previous one.

        Returns how many leading rows are in shared blocks, hence computed already: whole blocks,
        and never the last row, whose logits are wanted.
        """
        state = self._owners[owner]
        assert ids, "a sequence has at least one row"
        self._release(state.table)
        state.table, state.hashes = (), []
        shared, parent = list[int](), ROOT
        for start in range(0, len(ids) - self.block_size, self.block_size):
            parent = block_hash(parent, ids[start : start + self.block_size])
            block = self._block_of.get(parent)
            if block is None:
                break
            self._cached.pop(block, None)
            self._num_owners[block] += 1
            shared.append(block)
            state.hashes.append(parent)
        state.table = tuple(shared)
        num_cached = len(shared) * self.block_size
        self.append(owner, len(ids))
        return num_cached

    def append(self, owner: str, num_rows: int) -> None:
        """Make the owner's table cover its first `num_rows` rows."""
        state = self._owners[owner]
        if num_rows <= len(state.table) * self.block_size:
            return
        needed = self.blocks_for(num_rows)
        assert needed <= state.quota, "a sequence outgrew its reservation"
        taken = [self._take() for _ in range(needed - len(state.table))]
        for block in taken:
            self._num_owners[block] = 1
        state.table += tuple(taken)

    def commit(self, owner: str, ids: Sequence[int], num_rows: int) -> None:
        """Rows `ids[:num_rows]` are computed: their full blocks may be found by other sequences
        from now on."""
        state = self._owners[owner]
        for index in range(len(state.hashes), num_rows // self.block_size):
            start = index * self.block_size
            parent = state.hashes[-1] if state.hashes else ROOT
            digest = block_hash(parent, ids[start : start + self.block_size])
            state.hashes.append(digest)
            if digest not in self._block_of:
                self._block_of[digest] = state.table[index]
                self._hash_of[state.table[index]] = digest

    def free(self, owner: str) -> None:
        """Take back everything the owner has or was promised; does nothing for an unknown owner."""
        state = self._owners.pop(owner, None)
        if state is not None:
            self._promised -= state.quota
            self._release(state.table)

    def table(self, owner: str) -> tuple[int, ...]:
        return self._owners[owner].table

    def _take(self) -> int:
        return self._free.pop() if self._free else self._evict()

    def _evict(self) -> int:
        """The cached block that was asked for least recently, without its content."""
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def _release(self, table: Sequence[int]) -> None:
        # Last block first: of a cached prefix the tail is evicted before the head, without which it
        # is of no use.
        for block in reversed(table):
            self._num_owners[block] -= 1
            if self._num_owners[block] == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)
        while len(self._cached) > self._max_cached:
            self._free.append(self._evict())

    def check_integrity(self) -> None:
        """Assert every invariant of the pool; costs time proportional to its size."""
        held = Counter(block for owner in self._owners.values() for block in owner.table)
        free, cached, used = set(self._free), set(self._cached), set(held)
        assert len(free) == len(self._free), "a block is free twice"
        assert not (free & cached or free & used or cached & used), "a block is in two places"
        assert len(free) + len(cached) + len(used) == self.num_blocks, "a block is lost"
        assert all(self._num_owners[block] == held[block] for block in range(self.num_blocks)), (
            "a wrong owner count"
        )
        assert all(len(set(o.table)) == len(o.table) <= o.quota for o in self._owners.values()), (
            "a wrong table"
        )
        assert self._promised == sum(o.quota for o in self._owners.values()), (
            "a wrong sum of promises"
        )
        assert 0 <= self.num_reserved <= self.num_free + self.num_cached, (
            "more is promised than there is"
        )
        assert cached <= self._hash_of.keys(), "a cached block without a hash"
        assert not free & self._hash_of.keys(), "a free block with a hash"
        assert {block: digest for digest, block in self._block_of.items()} == self._hash_of, (
            "hash maps disagree"
        )
        assert len(self._block_of) == len(self._hash_of), "two hashes of one block"
