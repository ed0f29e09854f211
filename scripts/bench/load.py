"""A checkpoint on this machine under listeners, through the whole service.

Listeners have English sentences read out, and ask again as soon as their reply has ended. Replicas
are measured by the bench `replicas`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import platform
from typing import Any

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import Request, Text
from moss_engine.api.service import SpeechService, request_of
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.options import add_options as add_config
from moss_engine.options import from_args
from scripts.bench.common import Report, cpu_name, whole_numbers
from scripts.bench.listeners import Load, closed_loop, load_line
from scripts.command import count
from scripts.sentences import sentence


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--concurrency", type=whole_numbers, default=[1, 2, 4], metavar="N,...",
        help="listeners at a time (1,2,4)")  # fmt: skip
    add("--replies", type=count, default=30, metavar="N", help="timed replies of each level (30)")
    add("--warm-ups", type=count, default=5, metavar="N", help="replies before them (5)")
    add_config(parser, EngineConfig, groups=("model", "capacity"))


def run(args: argparse.Namespace, report: Report) -> None:
    config = from_args(EngineConfig, args)
    most = max(config.max_sessions, *args.concurrency)
    config = dataclasses.replace(config, max_sessions=most)
    service = build_service(config)
    service.start()
    try:
        info = asyncio.run(service.describe())
        report.add(machine=machine(info.runtime, config), load=[])
        asyncio.run(level(service, 0, 1, args.warm_ups))
        for number, many in enumerate(args.concurrency, 1):
            load = asyncio.run(level(service, number, many, args.replies))
            report.say(load_line(load))
            report.add(load=[*report.values["load"], dataclasses.asdict(load)])
    finally:
        service.close()


async def level(service: SpeechService, number: int, many: int, replies: int) -> Load:
    """One level of load; every listener is a session of its own."""
    info = await service.describe()

    def question(listener: int, index: int) -> Request:
        seed = 100_000 * number + index
        return request_of(info, Text(sentence(seed)), f"{number}-{listener}", seed=seed)

    return await closed_loop(service.submit, question, many, replies)


def machine(info: RuntimeInfo, config: EngineConfig) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "runtime": info.name,
        "version": info.version,
        "device": info.device,
        "dtype": info.dtype,
        "threads": config.threads,
        "checkpoint": config.checkpoint.name,
        **({"engine": info.engine_digest} if info.engine_digest else {}),
    }
