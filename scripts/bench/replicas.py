"""Replicas on Ray under listeners, on the GPUs of this machine or with --checkpoint on its CPU.

Listeners play every reply out and ask again. First measure one service without Ray, by --alone;
then N replicas with the same --out, which holds what one service carries (or give --one):

    grow            listeners come until --most of each service are there
    hold:SHARE      so many stay as this share of what N single services carry
    kill:SHARE      a replica is killed under them
    upgrade:SHARE   all replicas are replaced under them, one after another
    deaths:ROUNDS   so often: --one listeners of each service ask once, a replica is killed under
                    them, and its successor is waited for

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
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, replace
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
from scripts.bench.common import Report, count, cpu_name, cpu_s, machine, names_of
from scripts.bench.listeners import Crowd, Heard, crowd, hear
from scripts.sentences import sentence

PARTS = ("grow", "hold", "kill", "upgrade", "deaths")
REPLACED_S, SETTLE_S, WINDOW_S = 110.0, 4.0, 2.0
SENTENCES = 5
"""Of a question that is asked once: about 15 s of speech."""
SAFE = 0.9
"""Of the listeners at whom the first chunk came late: so many are held without one."""
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
    add("--most", type=count, default=200, help="listeners of one service at the most (200)")
    add("--per-s", type=float, default=12.0, help="listeners of one that join each second (12)")
    add("--hold-s", type=float, default=15.0, help="seconds for which listeners stay (15)")
    add("--pages", type=count, default=4, help="page processes (4)")
    add("--places", type=count,
        help="replies of one step in a replica (256, on a CPU those of the program)")  # fmt: skip
    add("--prompt-rows", type=count, default=96, help="rows of random prompts (96)")
    add("--codes", type=count, default=128, help="codes of random replies (128)")


def parts(text: str) -> list[str]:
    """The type of an option such as grow,hold:0.5."""
    found = text.split(",")
    names_of(PARTS)(",".join(part.partition(":")[0] for part in found))
    return found


def run(args: argparse.Namespace, report: Report) -> None:
    report.go_on()
    report.add(machine=machine(), cpu=cpu_name(), cores=os.cpu_count())
    args.places = args.places or (EngineConfig().max_sessions if args.checkpoint else 256)
    if args.alone:
        service = make_service(args)
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


def make_service(size: argparse.Namespace) -> StartableService:
    """On the first GPU that this process sees, or on the CPU; not started."""
    if size.checkpoint:
        return build_service(cpu_config(size.checkpoint, size.places))
    import torch

    from moss_engine.models.config import PUBLISHED
    from scripts.bench.full_size import make_codec
    from scripts.bench.gpu import make_runtime
    from scripts.bench.random_weights import random_service

    device, rows_each = torch.device("cuda"), -(-(size.prompt_rows + size.codes) // 16) * 16
    # As many replies again may be far ahead of their listeners, and those of a lost replica come on
    # top.
    kv_rows, step_rows = (3 * size.places + 1) * rows_each, max(512, size.places)
    runtime = make_runtime(PUBLISHED, size.places, kv_rows, "bfloat16", step_rows, device=device)
    codec = make_codec("moss", 16, device)
    return random_service(PUBLISHED, runtime, codec, size.prompt_rows, size.codes)


def cpu_config(checkpoint: Path, places: int) -> EngineConfig:
    return EngineConfig(checkpoint=checkpoint, device="cpu", max_sessions=places)


def application(size: argparse.Namespace, version: int) -> Any:
    """The replicas; those of another version replace them."""
    from ray import serve

    from moss_engine.cluster.fleet import Card
    from moss_engine.cluster.replica import ReplicaServer
    from moss_engine.cluster.serve.deployment import Replica, as_deployment
    from moss_engine.cluster.serve.deployment import application as of_checkpoint

    class RandomReplica(Replica):
        async def __init__(self, size: argparse.Namespace, version: int) -> None:
            self._service: Any = make_service(size)
            self._service.start()
            self._name = serve.get_replica_context().replica_id.unique_id
            card = Card(self._name, "random", f"version {version}", os.getpid())
            self._server = ReplicaServer(self._service, await self._service.describe(), card)

    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(size.checkpoint is None)}
    if size.checkpoint:
        config = settled(
            replace(cpu_config(size.checkpoint, size.places), max_waiting=16 + version)
        )
        talk = TalkConfig(recogniser="none")
        return of_checkpoint(size.gpus, config, talk, clones_voices=False, actor_options=resources)
    most = 5 * size.places
    return as_deployment(RandomReplica, size.gpus, most, resources).bind(size, version)


def question(
    size: argparse.Namespace, info: ServiceInfo, listener: int, number: int, sentences: int = 1
) -> Request:
    """No two have the same session, nor do those of two pages; random replies are as long."""
    seed = 1000 * listener + number
    text = " ".join(sentence(seed + i) for i in range(sentences))
    request = request_of(info, Text(text), f"{os.getpid()}-{listener}", seed=seed)
    if size.checkpoint:
        return request
    sampling = replace(request.sampling, max_rows=size.codes, min_rows=size.codes + 2)
    return replace(request, sampling=sampling)


class Run:
    """Listeners of one service in this process, or of replicas in page processes."""

    def __init__(self, args: argparse.Namespace, service: StartableService, pages: Any = None):
        self.args, self.service = args, service
        self._pages: ProcessPoolExecutor | None = pages
        self.gpus = args.gpus if pages else 1
        self.per_s = args.per_s * self.gpus

    def begin(self, num: int, stay_s: float) -> Sequence[Future[Crowd]]:
        """Let them come; every page has its share."""
        per_s = self.per_s
        if self._pages is None:
            done: Future[Crowd] = Future()
            done.set_result(asyncio.run(listen(self.service, self.args, num, per_s, stay_s)))
            return [done]
        pages = self.args.pages
        shares = [num // pages + (i < num % pages) for i in range(pages)]
        return [
            self._pages.submit(on_page, listen, self.args, share, per_s / pages, stay_s)
            for share in shares
        ]

    def ask_once(self, num: int, number: int) -> Sequence[Future[list[Heard]]]:
        """A long reply for each of so many listeners, from the first page."""
        assert self._pages is not None
        return [self._pages.submit(on_page, listen_once, self.args, num, number)]

    def busiest(self) -> Any:
        """The card of the replica with the most replies."""
        cluster = asyncio.run(self.service.stats()).cluster
        assert cluster is not None
        running = {replica.name: replica.running for replica in cluster.replicas}
        return max(self.cards(), key=lambda card: running.get(card.name, 0))

    def cards(self) -> list[Any]:
        assert isinstance(self.service, ClusterService)
        return list(asyncio.run(self.service.replicas()))


def merged(parts: Sequence[Future[Crowd]]) -> Crowd:
    found = Crowd()
    for part in parts:
        one = part.result()
        found.heard += one.heard
        found.arrivals_s += one.arrivals_s
        found.refused += one.refused
    return found


async def listen(
    service: StartableService, size: argparse.Namespace, num: int, per_s: float, stay_s: float
) -> Crowd:
    info = await service.describe()
    found = await crowd(
        service.submit,
        lambda listener, number: question(size, info, listener, number),
        num, per_s, stay_s, seed=os.getpid(),
    )  # fmt: skip
    for heard in found.heard:
        heard.end = None  # it holds all rows, which need not travel
    return found


async def listen_once(
    service: StartableService, size: argparse.Namespace, num: int, number: int
) -> list[Heard]:
    """So many long replies, all asked for at once."""
    info = await service.describe()
    asked = [question(size, info, index, number, SENTENCES) for index in range(num)]
    found = await asyncio.gather(*(hear(service.submit, request) for request in asked))
    for heard in found:
        heard.end = None
    return list(found)


_page: ClusterService | None = None


def open_page(address: str) -> None:
    """The life of a page process begins."""
    global _page
    from moss_engine.cluster.serve.connect import join_fleet

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    _page = ClusterService(join_fleet(address))
    _page.start()


def on_page(what: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> Any:
    assert _page is not None
    return asyncio.run(what(_page, *given))


def replicated(args: argparse.Namespace, one: int, report: Report) -> None:
    """Replicas on this machine, each part in turn; one that fails leaves the others."""
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
        with ProcessPoolExecutor(args.pages, spawn, open_page, (address,)) as pages:
            run_ = Run(args, service, pages)
            merged(run_.begin(2 * args.gpus, 10.0))  # what is made at first use is made here
            for version, part in enumerate(args.parts, 1):
                name, _, share = part.partition(":")
                num = max(1, round(float(share or 1) * args.gpus * one))
                if name == "grow":
                    found = grow(run_)
                elif name == "hold":
                    found = hold(run_, num)
                elif name == "kill":
                    found = kill(run_, num)
                elif name == "deaths":
                    found = deaths(run_, args.gpus * one, int(share))
                else:
                    new = application(args, version)
                    found = upgrade(run_, num, lambda: serve.run(new, name=NAME, route_prefix=None))  # noqa: B023
                report.say(f"{part}: {json.dumps(found)}")
                report.add(**{part: found})
        report.add(replicas=args.gpus, stats=asdict(asyncio.run(service.stats())))
        service.close()


def grow(run: Run) -> dict[str, Any]:
    """Listeners come one by one, and chunks come late at last."""
    num = run.args.most * run.gpus
    found = merged(run.begin(num, SETTLE_S))
    first, one_percent = capacity(found)
    return {
        "listeners": num,
        "refused": found.refused,
        "at_first_late_chunk": first,
        "at_one_percent_late": one_percent,
        "ttfa_ms": ttfa_ms(found.heard, 0.0, time.monotonic()),
    }


def hold(run: Run, num: int) -> dict[str, Any]:
    """So many listeners, and what they meet and cost once all are there."""
    pids = [card.pid for card in run.cards()] if run.gpus > 1 else [os.getpid()]
    before = [cpu_s(pid) for pid in pids]
    begun_s = time.monotonic()
    found = merged(run.begin(num, run.args.hold_s))
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
    """The death of a replica under so many listeners."""
    coming = run.begin(num, SETTLE_S + run.args.hold_s)
    time.sleep(num / run.per_s + SETTLE_S)
    doomed, killed_s = run.cards()[0], time.monotonic()
    os.kill(doomed.pid, signal.SIGKILL)
    heard = merged(coming).heard
    end_s = time.monotonic()
    theirs = [h for h in heard if h.replica_at(killed_s) == doomed.name]
    known = {id(h) for h in theirs}
    resumed_ms = [1000 * (t - killed_s) for h in theirs for t, _ in h.replicas if t > killed_s]
    return {
        "listeners": num,
        "of_the_dead": lateness(theirs, killed_s, end_s),
        "resumed": len(resumed_ms),
        "last_resumed_ms": round(max(resumed_ms, default=0)),
        "others": lateness([h for h in heard if id(h) not in known], killed_s, end_s),
    }


def deaths(run: Run, num: int, rounds: int) -> dict[str, Any]:
    """One death a round, that of the busier replica, under so many replies that were begun
    together."""
    found = []
    for number in range(rounds):
        while len(run.cards()) < run.gpus:
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        hearing = run.ask_once(num, number)
        time.sleep(SETTLE_S)
        doomed, killed_s = run.busiest(), time.monotonic()
        os.kill(doomed.pid, signal.SIGKILL)
        heard = [one for page in hearing for one in page.result()]
        theirs = [h for h in heard if h.replica_at(killed_s) == doomed.name]
        found.append(
            {
                "of_the_dead": len(theirs),
                "longest_silence_s": round(max(h.longest_gap_s(killed_s) for h in heard), 3),
                "theirs_s": [round(h.longest_gap_s(killed_s), 3) for h in theirs],
                "placed_again_ms": [
                    [round(1000 * (since_s - killed_s)) for since_s, _ in h.replicas[1:]]
                    for h in theirs
                ],
                "cut": sum(h.ending not in WHOLE for h in heard),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return {
        "listeners": num,
        "longest_silence_s": max(one["longest_silence_s"] for one in found),
        "cut": sum(one["cut"] for one in found),
        "rounds": found,
    }


def upgrade(run: Run, num: int, replace_all: Any) -> dict[str, Any]:
    """All replicas are replaced under so many listeners."""
    coming = run.begin(num, SETTLE_S + REPLACED_S)
    time.sleep(num / run.per_s + SETTLE_S)
    old, begun_s = {card.name for card in run.cards()}, time.monotonic()
    replace_all()
    while {card.name for card in run.cards()} & old and time.monotonic() < begun_s + REPLACED_S:
        time.sleep(0.2)
    end_s = time.monotonic()
    found = merged(coming)
    return {
        "listeners": num,
        "refused": found.refused,
        "took_s": round(end_s - begun_s, 1),
        **lateness(found.heard, begun_s, end_s),
        "moved": sum(len(h.replicas) > 1 for h in found.heard),
    }


def capacity(crowd: Crowd) -> tuple[int, int | None]:
    """Listeners who were there when the first chunk came late, and, where it happened, when more
    than LATE_SHARE of the chunks of WINDOW_S did; all of them where none came late."""
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
    """Median and 95th percentile of the replies that were asked for between two times."""
    asked = [h.first_s for h in heard if start_s <= h.asked_s < end_s]
    values = [1000 * first_s for first_s in asked if first_s is not None]
    if not values:
        return {"replies": 0}
    p50, p95 = np.percentile(values, (50, 95))
    return {"replies": len(values), "p50": round(float(p50), 1), "p95": round(float(p95), 1)}


def lateness(heard: Iterable[Heard], start_s: float, end_s: float) -> dict[str, Any]:
    """Chunks that came between two times, those that were late, the longest silence of one reply,
    and replies that are over, but not at their end."""
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
