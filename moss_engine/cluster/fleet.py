"""The seam between the cluster service and what carries its calls to replicas, and the values that
cross it beside those of the service.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moss_engine.api.errors import MossError
from moss_engine.api.events import Event
from moss_engine.api.info import ServiceStats
from moss_engine.api.request import Request


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


@dataclass(frozen=True)
class Answer:
    """What a call returned, or the error that it raised."""

    value: Any = None
    error: MossError | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class ReplicaLostError(Exception):
    """A replica died, or is out of reach; what it was asked may or may not have happened."""


class ReplicaAwayError(ReplicaLostError):
    """Calls to a replica are led elsewhere: it is dead, or it is being stopped and still works."""


class CutOffError(ReplicaLostError):
    """What leads to all replicas is gone; `Fleet.rejoin` opens another way."""


class Remote(Protocol):
    """A replica from afar. Every method raises ReplicaLostError. `page` names who calls, whose
    replies end when nothing is heard from it for `ServiceInfo.lease_s`."""

    def news(self, page: str) -> AsyncGenerator[Load | Parcel, None]:
        """The replica's load, ten times a second while it changes, and at least twice, and what
        there is of the page's replies. It ends now and then, to be asked for again; leaving it
        stops these replies."""
        ...

    async def ask(self, page: str, request: Request) -> None:
        """Begin a reply: a `Refusal`, or all its events, are among the news."""
        ...

    async def note(self, page: str, taken: Mapping[str, int], stopped: Sequence[str]) -> None:
        """The page is alive; its listeners have taken so many samples of these replies in all, and
        want no more of those."""
        ...

    async def call(self, page: str, method: str, *arguments: Any) -> Answer:
        """A method of `SpeechService` that answers with one value."""
        ...


class Fleet(Protocol):
    """The replicas that there are. Used on one event loop."""

    async def cards(self) -> Sequence[Card]:
        """The replicas that take requests now; raises ReplicaLostError while that is not known,
        and CutOffError where it will not be known again without `rejoin`."""
        ...

    async def size(self) -> int:
        """How many replicas there are to be, those that are still starting among them; raises
        ReplicaLostError where nobody says so."""
        ...

    async def rejoin(self) -> None:
        """Give up the connection, and come back when there is one again. Remotes from before are
        of no use from then on."""
        ...

    def remote(self, name: str) -> Remote: ...

    def close(self) -> None:
        """Give up the connection; blocks."""
        ...
