"""The seam between the cluster service and what carries its calls to replicas, and the values that
cross it beside those of the service.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moss_engine.api.errors import MossError
from moss_engine.api.events import Event
from moss_engine.api.info import ServiceStats


@dataclass(frozen=True)
class Card:
    """Who a replica is: process `pid` on the machine `host`. Replies move only between replicas of
    the same `fingerprint`."""

    name: str
    fingerprint: str
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Load:
    """How busy a replica is, and how many replies it runs (`places`) and lets wait (`queue`) at the
    most. `stats.state` is "draining" where it is about to stop."""

    stats: ServiceStats
    places: int
    queue: int


@dataclass(frozen=True)
class Refusal:
    """A request was not accepted, or its reply cannot go on."""

    request_id: str
    error: MossError


Parcel = list[Event | Refusal]
"""News of all replies that a page hears from a replica, in order."""


class ReplicaLostError(Exception):
    """A replica died, or is out of reach; what it was asked may or may not have happened."""


class ReplicaAwayError(ReplicaLostError):
    """Calls meant for a replica reach another: it is dead, or being stopped and still at work."""


class Remote(Protocol):
    """A replica in another process. Every method raises ReplicaLostError."""

    def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        """The replica's load, ten times a second while it changes and at least twice, and the
        events of the page's replies. The stream ends now and then, and is to be opened again;
        leaving it stops these replies."""
        ...

    async def invoke(self, method: str, *arguments: Any) -> Any:
        """What a method of its `ReplicaServer` returns: `ask`, `note` or `call`."""
        ...


class Fleet(Protocol):
    """The replicas that there are. Used on one event loop."""

    async def cards(self) -> Sequence[Card]:
        """The replicas that take requests now; raises ReplicaLostError while that is not known."""
        ...

    async def size(self) -> int:
        """How many replicas there should be, including those that are still starting; raises
        ReplicaLostError where nobody can say."""
        ...

    def remote(self, name: str) -> Remote: ...

    def close(self) -> None:
        """Give up the connection; blocks."""
        ...
