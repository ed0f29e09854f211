"""Replicas on Ray under listeners, on the GPUs of this machine or with --checkpoint on its CPU.

Listeners play every reply out and ask again. First measure one service without Ray, by --alone;
then N replicas with the same --out, which holds what one service carries (or give --one):

    grow            listeners come until there are 200 for each service
    hold:SHARE      listeners stay, this share of as many as N single services carry
    kill:SHARE      a replica is killed under them, --rounds times, when all are there again
    upgrade:SHARE   all replicas are replaced under them, one after another

The listeners of replicas are in --pages page processes. On GPUs the network has the full size and
random weights. Times are those of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import ConfigError
from moss_engine.api.events import FinishReason
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Request, Text
from moss_engine.api.service import StartableService, request_of
from moss_engine.build import build_service, settled
from moss_engine.cluster.service import ClusterService
from moss_engine.config import EngineConfig, TalkConfig
from scripts.bench.common import Report, cpu_name, cpu_s, machine, names_of
from scripts.bench.listeners import Crowd, Heard, crowd
from scripts.command import count
from scripts.sentences import sentence

PARTS = ("grow", "hold", "kill", "upgrade")
PLACES, PROMPT_ROWS, NUM_CODES = 256, 96, 128
"""With random weights: most replies of a step, rows of each prompt, and codes of each reply."""
MOST, PER_S = 200, 12.0
"""Listeners of one service at the most, and how many join each second."""
HOLD_S = 15.0
"""For how long listeners stay."""
REPLACED_S, SETTLE_S, WINDOW_S = 110.0, 4.0, 2.0
SENTENCES = 5
"""Sentences of each reply of a checkpoint: about 15 s of speech."""
SAFE = 0.9
"""A single service has to hold this share of the listeners at whom the first chunk came late."""
LATE_SHARE = 0.01
WHOLE = {"", FinishReason.STOP.value, FinishReason.LENGTH.value}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--alone", action="store_true", help="one service in this process, without Ray")
    add("--one", type=count, metavar="N", help="listeners that one service carries")
    add("--gpus", type=count, default=2, help="replicas, one a GPU (2)")
    add("--checkpoint", type=Path, metavar="DIR",
        help="serve this folder on the CPU instead of random weights")  # fmt: skip
    add("--parts", type=parts, metavar="PART,...",
        default="grow,hold:0.95,hold:0.5,upgrade:0.45,kill:0.5",
        help="run in this order (grow,hold:0.95,hold:0.5,upgrade:0.45,kill:0.5)")  # fmt: skip
    add("--rounds", type=count, default=1, metavar="N", help="of kill (1)")
    add("--pages", type=count, default=4, help="page processes (4)")


def parts(text: str) -> list[str]:
    """The type of an option such as grow,hold:0.5."""
    found = text.split(",")
    names_of(PARTS)(",".join(part.partition(":")[0] for part in found))
    return found


def run(args: argparse.Namespace, report: Report) -> None:
    report.go_on()
    report.add(machine=machine(), cpu=cpu_name(), cores=os.cpu_count())
    if args.alone:
        service = make_service(args.checkpoint)
        service.start()
        try:
            found = grow(Run(args, service))
            report.add(alone=found)
            held = max(1, round(SAFE * found["at_first_late_chunk"]))
            report.add(alone=found | {"hold": hold(Run(args, service), held)})
        finally:
            service.close()
    else:
        one = args.one or report.values.get("alone", {}).get("hold", {}).get("listeners")
        if not one:
            raise ConfigError("How many one service carries is not known; run --alone first.")
        replicated(args, one, report)


def make_service(checkpoint: Path | None) -> StartableService:
    """A service of the checkpoint on the CPU or, without one, of random weights on the first GPU
    that this process sees; not started."""
    if checkpoint:
        return build_service(EngineConfig(checkpoint=checkpoint, device="cpu"))
    from scripts.bench.random_weights import published_service

    # As many replies again may be far ahead of their listeners, and those of a lost replica come on
    # top.
    kv_rows = (3 * PLACES + 1) * -(-(PROMPT_ROWS + NUM_CODES) // 16) * 16
    return published_service(PLACES, kv_rows, PROMPT_ROWS, NUM_CODES)


def application(args: argparse.Namespace, version: int) -> Any:
    """The replicas as an application of Ray Serve; running one of another version replaces them."""
    from ray import serve

    from moss_engine.cluster.fleet import Card
    from moss_engine.cluster.replica import ReplicaServer
    from moss_engine.cluster.serve.deployment import Replica, as_deployment
    from moss_engine.cluster.serve.deployment import application as of_checkpoint

    class RandomReplica(Replica):
        async def __init__(self, version: int) -> None:
            self._service: Any = make_service(None)
            self._service.start()
            self._name = serve.get_replica_context().replica_id.unique_id
            card = Card(self._name, "random", f"version {version}", os.getpid())
            self._server = ReplicaServer(self._service, await self._service.describe(), card)

    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(args.checkpoint is None)}
    if args.checkpoint:
        config = EngineConfig(
            checkpoint=args.checkpoint, device="cpu", max_waiting=EngineConfig.max_waiting + version
        )
        talk = TalkConfig(recogniser="none")
        return of_checkpoint(
            args.gpus, settled(config), talk, clones_voices=False, actor_options=resources
        )
    return as_deployment(RandomReplica, args.gpus, 5 * PLACES, resources).bind(version)


def question(info: ServiceInfo, listener: int, number: int) -> Request:
    """A listener's next request; each listener of each page process is a session of its own."""
    seed = 1000 * listener + number
    text = " ".join(sentence(seed + i) for i in range(SENTENCES))
    return request_of(info, Text(text), f"{os.getpid()}-{listener}", seed=seed)


async def listen(service: StartableService, num: int, per_s: float, stay_s: float) -> Crowd:
    info = await service.describe()
    ask = partial(question, info)
    found = await crowd(service.submit, ask, num, per_s, stay_s, seed=os.getpid())
    for heard in found.heard:
        heard.end = None  # it holds all rows, which need not travel
    return found


@cache
def page_of(address: str) -> ClusterService:
    """The page's service in a page process, made once and kept for as long as the process lives."""
    from moss_engine.cluster.serve.connect import join_fleet

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    page = ClusterService(join_fleet(address))
    page.start()
    return page


def on_page(address: str, *given: Any) -> Crowd:
    return asyncio.run(listen(page_of(address), *given))


@dataclass
class Run:
    """Who serves, and whose listeners are in this process, or for replicas in page processes."""

    args: argparse.Namespace
    service: StartableService
    pages: ProcessPoolExecutor | None = None
    address: str = ""

    @property
    def gpus(self) -> int:
        return self.args.gpus if self.pages else 1

    def meet(self, num: int, stay_s: float, happens: Callable[[], None] = lambda: None) -> Crowd:
        """`num` listeners come, equally many to each page; once all are there, `happens` runs."""
        per_s = PER_S * self.gpus
        if self.pages is None:
            return asyncio.run(listen(self.service, num, per_s, stay_s))
        pages = self.args.pages
        shares = [num // pages + (i < num % pages) for i in range(pages)]
        coming = [
            self.pages.submit(on_page, self.address, share, per_s / pages, stay_s)
            for share in shares
        ]
        time.sleep(num / per_s + SETTLE_S)
        happens()
        found = [page.result() for page in coming]
        return Crowd(
            [heard for one in found for heard in one.heard],
            [at_s for one in found for at_s in one.arrivals_s],
            sum(one.refused for one in found),
        )

    def cards(self) -> list[Any]:
        assert isinstance(self.service, ClusterService)
        return list(asyncio.run(self.service.replicas()))

    def busiest(self) -> Any:
        """The card of the replica with the most replies."""
        cluster = asyncio.run(self.service.stats()).cluster
        assert cluster is not None
        running = {replica.name: replica.running for replica in cluster.replicas}
        return max(self.cards(), key=lambda card: running.get(card.name, 0))


def replicated(args: argparse.Namespace, one: int, report: Report) -> None:
    """Start replicas on this machine and measure one part after the other."""
    import ray
    from ray import serve

    from moss_engine.cluster.serve.connect import serve_here, start_machine
    from moss_engine.cluster.serve.deployment import NAME

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        start_machine(args.gpus, 0 if args.checkpoint else args.gpus, Path(folder))
        service = ClusterService(serve_here(application(args, 0)))
        service.start()
        address = ray.get_runtime_context().gcs_address
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(args.pages, spawn) as pages:
            run_ = Run(args, service, pages, address)
            run_.meet(2 * args.gpus, 10.0)  # what is made at first use is made here
            for version, part in enumerate(args.parts, 1):
                name, _, share = part.partition(":")
                num = max(1, round(float(share or 1) * args.gpus * one))
                if name == "grow":
                    found = grow(run_)
                elif name == "hold":
                    found = hold(run_, num)
                elif name == "kill":
                    found = [kill(run_, num) for _ in range(args.rounds)]
                else:
                    new = application(args, version)
                    found = upgrade(run_, num, lambda: serve.run(new, name=NAME, route_prefix=None))  # noqa: B023
                report.say(f"{part}: {json.dumps(found)}")
                report.add(**{part: found})
        report.add(replicas=args.gpus, stats=asdict(asyncio.run(service.stats())))
        service.close()


def grow(run: Run) -> dict[str, Any]:
    """Listeners come one by one until chunks come late: how many there were then."""
    num = MOST * run.gpus
    found = run.meet(num, SETTLE_S)
    first, one_percent = capacity(found)
    return {
        "listeners": num,
        "refused": found.refused,
        "at_first_late_chunk": first,
        "at_one_percent_late": one_percent,
        "ttfa_ms": ttfa_ms(found.heard, 0.0, time.monotonic()),
    }


def hold(run: Run, num: int) -> dict[str, Any]:
    """What `num` listeners meet once all are there, and how many cores a replica takes for them."""
    pids = [card.pid for card in run.cards()] if run.gpus > 1 else [os.getpid()]
    before = [cpu_s(pid) for pid in pids]
    begun_s = time.monotonic()
    found = run.meet(num, HOLD_S)
    end_s = time.monotonic()
    cores = [(cpu_s(pid) - b) / (end_s - begun_s) for pid, b in zip(pids, before, strict=True)]
    start_s = max(found.arrivals_s) + SETTLE_S
    return {
        "listeners": num,
        "refused": found.refused,
        "ttfa_ms": ttfa_ms(found.heard, start_s, end_s),
        **lateness(found.heard, start_s, end_s),
        "replica_cores": [round(core, 2) for core in cores],
    }


def kill(run: Run, num: int) -> dict[str, Any]:
    """The busiest replica is killed under `num` listeners: what its own and the others meet."""
    while len(run.cards()) < run.gpus:
        time.sleep(0.2)
    time.sleep(SETTLE_S)
    killed: list[tuple[float, str]] = []

    def die() -> None:
        doomed = run.busiest()
        killed.append((time.monotonic(), doomed.name))
        os.kill(doomed.pid, signal.SIGKILL)

    heard = run.meet(num, SETTLE_S + HOLD_S, die).heard
    end_s, (killed_s, name) = time.monotonic(), killed[0]
    theirs = [h for h in heard if h.replica_at(killed_s) == name]
    others = [h for h in heard if h.replica_at(killed_s) != name]
    resumed_ms = [1000 * (t - killed_s) for h in theirs for t, _ in h.replicas if t > killed_s]
    return {
        "listeners": num,
        "of_the_dead": lateness(theirs, killed_s, end_s),
        "resumed": len(resumed_ms),
        "last_resumed_ms": round(max(resumed_ms, default=0)),
        "others": lateness(others, killed_s, end_s),
    }


def upgrade(run: Run, num: int, replace_all: Any) -> dict[str, Any]:
    """All replicas are replaced under `num` listeners: what these meet meanwhile."""
    times_s: list[float] = []

    def renew() -> None:
        old, begun_s = {card.name for card in run.cards()}, time.monotonic()
        replace_all()
        while {card.name for card in run.cards()} & old and time.monotonic() < begun_s + REPLACED_S:
            time.sleep(0.2)
        times_s.extend((begun_s, time.monotonic()))

    found = run.meet(num, SETTLE_S + REPLACED_S, renew)
    begun_s, end_s = times_s
    return {
        "listeners": num,
        "refused": found.refused,
        "took_s": round(end_s - begun_s, 1),
        **lateness(found.heard, begun_s, end_s),
        "moved": sum(len(h.replicas) > 1 for h in found.heard),
    }


def capacity(crowd: Crowd) -> tuple[int, int | None]:
    """How many listeners were there when the first chunk came late, all if none did; and when more
    than LATE_SHARE of the chunks within WINDOW_S were late, None if that never happened."""
    chunks = sorted(chunk for heard in crowd.heard for chunk in heard.chunks)
    first = next((came_s for came_s, gap_s in chunks if gap_s > 0), float("inf"))
    times = np.array([came_s for came_s, _ in chunks])
    late = np.cumsum([0, *(gap_s > 0 for _, gap_s in chunks)])
    for end, came_s in enumerate(times, 1):
        start = int(np.searchsorted(times, came_s - WINDOW_S))
        if came_s - times[0] > WINDOW_S and late[end] - late[start] > LATE_SHARE * (end - start):
            return present(crowd, first), present(crowd, float(came_s) - WINDOW_S)
    return present(crowd, first), None


def present(crowd: Crowd, at_s: float) -> int:
    return sum(came_s < at_s for came_s in crowd.arrivals_s)


def ttfa_ms(heard: Iterable[Heard], start_s: float, end_s: float) -> dict[str, float]:
    """Time to first audio, median and 95th percentile, of replies asked for between two times."""
    asked = [h.first_s for h in heard if start_s <= h.asked_s < end_s]
    values = [1000 * first_s for first_s in asked if first_s is not None]
    if not values:
        return {"replies": 0}
    p50, p95 = np.percentile(values, (50, 95))
    return {"replies": len(values), "p50": round(float(p50), 1), "p95": round(float(p95), 1)}


def lateness(heard: Iterable[Heard], start_s: float, end_s: float) -> dict[str, Any]:
    """What came late between two times: of how many chunks, the longest silence within a reply, and
    how many replies were cut off before their end."""
    heard = list(heard)
    chunks = [gap for h in heard for came_s, gap in h.chunks if start_s <= came_s < end_s]
    silences = [h.silence_s(start_s, end_s) for h in heard]
    return {
        "replies": len([h for h in heard if h.end_s > start_s and h.asked_s < end_s]),
        "chunks": len(chunks),
        "late_chunks": sum(gap > 0 for gap in chunks),
        "replies_with_silence": sum(silence > 0 for silence in silences),
        "longest_silence_s": round(max(silences, default=0.0), 3),
        "cut": sum(h.ending not in WHOLE for h in heard),
    }
