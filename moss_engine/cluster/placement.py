"""Which replica serves a conversation: the one whose caches know it, unless it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class Candidate:
    """A replica that takes requests: how many replies run or wait there, and may."""

    name: str
    num_replies: int
    places: int
    queue: int

    @property
    def is_full(self) -> bool:
        return self.num_replies >= self.places + self.queue


def preferred(session_id: str, names: Sequence[str]) -> str:
    """The replica of a session by rendezvous hashing: the same on every page, and when a replica
    comes or goes only its own sessions move."""
    return max(names, key=lambda name: blake2b(f"{session_id} {name}".encode()).digest())


def in_order(
    session_id: str, candidates: Sequence[Candidate], *, full_too: bool = False
) -> list[str]:
    """The replicas to ask, best first, without the full ones unless `full_too`.

    The preferred one while a reply would start there at once, else the least loaded; among equals
    the preferred one.
    """
    if not candidates:
        return []
    own = preferred(session_id, [candidate.name for candidate in candidates])

    def rank(candidate: Candidate) -> tuple[bool, float, bool]:
        is_own, load = candidate.name == own, candidate.num_replies / max(1, candidate.places)
        return not (is_own and load < 1), load, not is_own

    ranked = sorted(candidates, key=rank)
    return [candidate.name for candidate in ranked if full_too or not candidate.is_full]
