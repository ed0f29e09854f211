"""Listeners in front of replicas: `python -m scripts.bench --replicas N`, or --ray-address ADDRESS.

The closed loop of `scripts.bench` through a page's `ClusterService`: listeners that ask again as
soon as their reply has ended. The last line is everything as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator

from moss_engine.api.events import Event
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import stream
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.service import ClusterService
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.options import add_options, from_args
from scripts.bench.common.load import Load, load_table, run_load
from scripts.sentences import sentence


async def load(
    service: ClusterService, info: ServiceInfo, level: int, concurrency: int, replies: int
) -> Load:
    """One level; the conversation of every listener is one of its own."""

    def ask(request: Request) -> AsyncGenerator[Event, None]:
        return stream(service, request)

    def question(listener: int, number: int) -> Request:
        sampling = dataclasses.replace(info.sampling, seed=number)
        messages = (Message("user", Text(sentence(100_000 * level + number))),)
        session_id = f"{level}-{listener}"
        mode = info.default_mode.name
        return Request(f"{session_id} {number}", session_id, messages, mode, sampling)

    return await run_load(ask, question, concurrency, replies)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--concurrency", default="1,2,4", metavar="N,N,...", help="at a time")
    parser.add_argument("--replies", type=int, default=30, metavar="N", help="of each level (30)")
    add_options(parser, EngineConfig)
    add_options(parser, ClusterConfig)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    args = parse(argv)
    config, cluster = from_args(EngineConfig, args), from_args(ClusterConfig, args)
    fleet = open_fleet(config, TalkConfig(recogniser="none"), cluster)
    service = ClusterService(fleet)
    loads = []
    try:
        service.start()
        info = asyncio.run(service.describe())
        num_replicas = cluster.replicas or len(asyncio.run(service.replicas()))
        asyncio.run(load(service, info, 0, num_replicas, 2 * num_replicas))  # warms up
        for level, concurrency in enumerate(map(int, args.concurrency.split(",")), 1):
            loads.append(asyncio.run(load(service, info, level, concurrency, args.replies)))
            print(load_table(loads[-1]), flush=True)
        stats = asyncio.run(service.stats())
    finally:
        service.close()
    assert stats.cluster is not None
    found = {
        "replicas": num_replicas,
        "load": [dataclasses.asdict(level) for level in loads],
        "cluster": dataclasses.asdict(stats.cluster),
    }
    print(json.dumps(found))
