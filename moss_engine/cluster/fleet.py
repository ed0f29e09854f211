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
    """Who a replica is: process `pid` of the machine `host`. Replies move only between replicas of
    one `fingerprint`."""

    name: str
    fingerprint: str
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Load:
    """What a replica is doing, and how many replies it runs (`places`) and lets wait (`queue`).

    `stats.state` is "draining" where it is to be left.
    """

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
    """Calls to a replica are led elsewhere: it is dead, or it is being stopped and still works."""


class Remote(Protocol):
    """A replica from afar. Every method raises ReplicaLostError."""

    def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        """The replica's load, ten times a second while it changes, and at least twice, and what
        there is of the page's replies. It ends now and then, to be asked for again; leaving it
        stops these replies."""
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
        """How many replicas there are to be, those that are still starting among them; raises
        ReplicaLostError where nobody says so."""
        ...

    def remote(self, name: str) -> Remote: ...

    def close(self) -> None:
        """Give up the connection; blocks."""
        ...
