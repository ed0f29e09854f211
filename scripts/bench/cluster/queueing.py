"""A simulation of many listeners at many replicas: `python -m scripts.bench.cluster.queueing`.

Visitors ask, listen, think and ask again; each reply holds a place for as long as it is heard.
Replicas are chosen by the program's own placement, with loads as old as the push makes them, or by
hashing alone for comparison. No model runs: a replica is a number of places. JSON on stdout.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from moss_engine.cluster.placement import Candidate, in_order, preferred

PUSH_S = 0.1
REPLY_S = 12.0
"""Of sound; of the measured arrivals at one H200 the mean reply is as long."""
THINK_S = 20.0


@dataclass
class Replica:
    """`told` is what its last push said."""

    places: int
    running: int = 0
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    told: int = 0


@dataclass
class Outcome:
    """Of all replies after the warm-up."""

    replies: int = 0
    at_once: int = 0
    preferred: int = 0
    rejected: int = 0
    waits_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0


class Simulation:
    """`own_admission`: the placement of moss_engine.cluster; else every conversation stays at its
    replica, come what may. `share` is the offered load: speaking listeners by places."""

    def __init__(
        self, num_replicas: int, places: int, share: float, *, own_admission: bool, seed: int = 0
    ):
        self._replicas = {f"r{i}": Replica(places) for i in range(num_replicas)}
        self._places = places
        self._own_admission = own_admission
        self._random = random.Random(seed)
        self._visitors = round(share * num_replicas * places * (REPLY_S + THINK_S) / REPLY_S)
        self._homes = {v: preferred(f"s{v}", list(self._replicas)) for v in range(self._visitors)}
        self._events: list[tuple[float, int, str, int, str]] = []
        self._number = 0
        self.outcome = Outcome()

    def run(self, seconds: float, warm_up_s: float) -> Outcome:
        for visitor in range(self._visitors):
            self._at(self._random.uniform(0, REPLY_S + THINK_S), "ask", visitor)
        self._at(PUSH_S, "push")
        for now_s, kind, visitor, name in self._next_until(seconds):
            counted = now_s > warm_up_s
            if kind == "push":
                for replica in self._replicas.values():
                    replica.told = replica.running + len(replica.waiting)
                self._at(now_s + PUSH_S, "push")
            elif kind == "ask":
                self._ask(visitor, now_s, counted)
            else:
                self._end(self._replicas[name], visitor, now_s, counted)
        return self.outcome

    def _ask(self, visitor: int, now_s: float, counted: bool) -> None:
        name = self._choose(visitor)
        self.outcome.replies += counted
        if name is None:
            self.outcome.rejected += counted
            self._think(visitor, now_s)
            return
        replica = self._replicas[name]
        replica.told += 1  # the page counts what it sent
        self.outcome.preferred += counted and name == self._homes[visitor]
        if replica.running < replica.places:
            self.outcome.at_once += counted
            self._begin(replica, name, visitor, now_s, 0.0, counted)
        else:
            replica.waiting.append((now_s, visitor))

    def _choose(self, visitor: int) -> str | None:
        if not self._own_admission:
            return self._homes[visitor]
        candidates = [
            Candidate(name, replica.told, replica.places, self._places)
            for name, replica in self._replicas.items()
        ]
        order = in_order(f"s{visitor}", candidates)
        return order[0] if order else None

    def _begin(
        self, replica: Replica, name: str, visitor: int, now_s: float, wait_s: float, counted: bool
    ) -> None:
        replica.running += 1
        if counted:
            self.outcome.waits_s.append(wait_s)
        length_s = self._random.gammavariate(4.0, REPLY_S / 4.0)
        self.outcome.busy_s += length_s if counted else 0.0
        self._at(now_s + length_s, "end", visitor, name)

    def _end(self, replica: Replica, visitor: int, now_s: float, counted: bool) -> None:
        name = next(name for name, other in self._replicas.items() if other is replica)
        replica.running -= 1
        self._think(visitor, now_s)
        if replica.waiting:
            asked_s, waiting = replica.waiting.popleft()
            self._begin(replica, name, waiting, now_s, now_s - asked_s, counted)

    def _think(self, visitor: int, now_s: float) -> None:
        self._at(now_s + self._random.expovariate(1 / THINK_S), "ask", visitor)

    def _at(self, time_s: float, kind: str, visitor: int = 0, name: str = "") -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, kind, visitor, name))

    def _next_until(self, seconds: float) -> Iterator[tuple[float, str, int, str]]:
        while self._events and self._events[0][0] <= seconds:
            time_s, _, kind, visitor, name = heapq.heappop(self._events)
            yield time_s, kind, visitor, name


def figures(
    num_replicas: int, places: int, share: float, seconds: float, *, own_admission: bool
) -> dict[str, Any]:
    warm_up_s = seconds / 3
    simulation = Simulation(num_replicas, places, share, own_admission=own_admission)
    outcome = simulation.run(seconds, warm_up_s)
    waits_s = sorted(outcome.waits_s)
    replies = max(1, outcome.replies)
    return {
        "replicas": num_replicas,
        "offered": share,
        "placement": "own admission" if own_admission else "hashing alone",
        "replies": outcome.replies,
        "at_once": round(outcome.at_once / replies, 4),
        "at_preferred": round(outcome.preferred / replies, 4),
        "rejected": round(outcome.rejected / replies, 4),
        "wait_p95_s": round(waits_s[int(0.95 * len(waits_s))], 2) if waits_s else None,
        "wait_p99_s": round(waits_s[int(0.99 * len(waits_s))], 2) if waits_s else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.cluster.queueing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--places", type=int, default=200, help="real-time places a replica (200)")
    parser.add_argument("--replicas", default="1,2,4,16", help="how many replicas (1,2,4,16)")
    parser.add_argument("--offered", default="0.7,0.8,0.9", help="load by places (0.7,0.8,0.9)")
    parser.add_argument("--seconds", type=float, default=180.0, help="simulated for each (180)")
    args = parser.parse_args()
    found = [
        figures(int(replicas), args.places, float(share), args.seconds, own_admission=own)
        for replicas in args.replicas.split(",")
        for share in args.offered.split(",")
        for own in (True, False)
    ]
    print(
        json.dumps(
            {"places": args.places, "reply_s": REPLY_S, "think_s": THINK_S, "runs": found}, indent=1
        )
    )


if __name__ == "__main__":
    main()
