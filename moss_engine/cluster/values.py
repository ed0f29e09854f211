"""Values that pages and replicas exchange beside those of the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moss_engine.api.errors import MossError
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
    """A request was not accepted; nothing began."""

    error: MossError


@dataclass(frozen=True)
class Answer:
    """What a call returned, or the error that it raised."""

    value: Any = None
    error: MossError | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value
