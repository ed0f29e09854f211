"""Listeners of several replicas beside those of one service, a death and an upgrade under load:
`python -m scripts.bench.cluster.gpus --gpus 2 --out FILE`, or on a CPU with `--checkpoint DIR`.

Listeners play every reply out and ask again. First they grow in number in front of one service in a
process of its own, then in front of the replicas, until chunks come late; then so many stay as the
shares of --parts say, of what N single services hold:

    alone           one service; by `alone:SHARE`, too, so many of its listeners
    grow            listeners come until chunks are late
    hold:SHARE      nothing happens
    kill:SHARE      a replica is killed
    upgrade:SHARE   all replicas are replaced, one after another

The listeners of replicas are in --pages page processes; `PART@N` uses only N of these.

On GPUs the network has the full size and random weights. What is found is written at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.build import settled
from moss_engine.cluster.service import ClusterService
from moss_engine.config import EngineConfig, TalkConfig
from scripts.bench.cluster.pages import Page
from scripts.bench.cluster.runs import ClusterRun, Run
from scripts.bench.common.machine import cpu_name
from scripts.bench.common.timing import Report

TTFA_BAR_MS, SCALING_BAR, SILENCE_BAR_S = 15.0, 0.95, 0.5
BEGUN_S = time.monotonic()
PART_S = 150.0
SAFE = 0.9
"""Of the listeners at whom the first chunk came late: so many are held without one."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.cluster.gpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gpus", type=int, default=2, help="replicas, one a GPU (2)")
    add("--checkpoint", type=Path, metavar="DIR",
        help="serve this folder on the CPU instead of random weights")  # fmt: skip
    add("--paced", action="store_true",
        help="replicas compute nothing and speak at the pace of a GPU")  # fmt: skip
    add("--parts", default="alone,grow,hold:1,kill:0.5", metavar="PART,...",
        help="run in this order (alone,grow,hold:1,kill:0.5)")  # fmt: skip
    add("--first", type=int, default=160, help="listeners of one service to begin with (160)")
    add("--most", type=int, default=600, help="listeners of one service at the most (600)")
    add("--per-s", type=float, default=12.0, help="listeners that join each second (12)")
    add("--ramp-s", type=float, default=8.0, help="seconds in which the first ones join (8)")
    add("--hold-s", type=float, default=15.0, help="seconds for which listeners stay (15)")
    add("--pages", type=int, default=4, help="page processes (4)")
    add("--until-s", type=float, default=1e9,
        help="begin no part later than so many seconds after the start")  # fmt: skip
    add("--one", type=int, help="listeners that one service holds, where alone was run before")
    add("--codes", type=int, default=128, help="codes of every random reply (128)")
    add("--wait", action="store_true", help="begin when a line comes on standard input")
    add("--places", type=int, default=256, help="replies of one step in a replica (256)")
    add("--out", type=Path, required=True, metavar="FILE", help="JSON file for the figures")
    return parser.parse_args(argv)


def alone(args: argparse.Namespace, report: Report) -> None:
    """One service in this process."""
    service = _local(args)
    report.say("one service is ready")
    service.start()
    if args.wait:
        sys.stdin.readline()
    try:
        run = Run(args, service)
        asyncio.run(run.warm_up(8 if args.checkpoint is None else 1))
        found = report.values["alone"] = asyncio.run(run.grow(1))
        report.say(f"alone: {json.dumps(found)}")
        report.save()
        count = max(1, round(SAFE * found["at_first_late_chunk"]))
        for share in ("1", *args.parts[0].split(":")[1:]):
            held = asyncio.run(run.hold(max(1, round(float(share) * count))))
            found["hold" if share == "1" else f"hold:{share}"] = held
            report.say(f"alone, {share}: {json.dumps(held)}")
            report.save()
    finally:
        service.close()


def _local(args: argparse.Namespace) -> Any:
    if args.paced:
        from scripts.bench.cluster.paced import PacedService

        return PacedService()
    if args.checkpoint is None:
        from scripts.bench.cluster.random_service import Size, make_service

        return make_service(Size(args.places, codes=args.codes))[0]
    from moss_engine.build import build_listening_service

    return build_listening_service(_config(args), TalkConfig(recogniser="none"))


def _config(args: argparse.Namespace) -> EngineConfig:
    return EngineConfig(checkpoint=args.checkpoint, device="cpu", max_sessions=8)


def application(args: argparse.Namespace, version: int) -> Any:
    """The replicas; those of another version replace them."""
    from moss_engine.cluster.serve import deployment

    on_gpu = args.checkpoint is None and not args.paced
    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(on_gpu)}
    if args.paced:
        from scripts.bench.cluster.paced import MOST, PacedReplica

        return deployment.as_deployment(PacedReplica, args.gpus, MOST, resources).bind(version)
    if args.checkpoint is not None:
        config = replace(_config(args), max_waiting=16 + version)
        talk = TalkConfig(recogniser="none")
        config = settled(config)
        return deployment.application(
            args.gpus, config, talk, clones_voices=False, actor_options=resources
        )
    from scripts.bench.cluster.random_service import RandomReplica, Size

    size = Size(args.places, codes=args.codes)
    most = 5 * args.places
    return deployment.as_deployment(RandomReplica, args.gpus, most, resources).bind(size, version)


def clustered(args: argparse.Namespace, report: Report) -> None:
    """Replicas on this machine; one service alone gets ready beside them, and is measured before
    they are asked."""
    from moss_engine.cluster.serve.connect import serve_here, start_machine

    alone_part = args.parts[0] if args.parts[0].startswith("alone") else None
    beside = _begin_alone(args, alone_part) if alone_part else None
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        start_machine(args.gpus, 0 if args.checkpoint or args.paced else args.gpus, Path(folder))
        service = ClusterService(serve_here(application(args, 0)))
        report.say("the replicas are ready")
        pages: list[Page] = []
        try:
            service.start()
            pages += open_pages(args)
            report.say("the pages are ready")
            one = _end_alone(beside, args, report) if beside else args.one
            run = ClusterRun(args, service, pages)
            asyncio.run(run.warm_up((8 if args.checkpoint is None else 1) * args.gpus))
            for version, part in enumerate(args.parts, 1):
                if part != alone_part:
                    found = report.values[part] = _part(run, part, one, version)
                    report.say(f"{part}: {json.dumps(found)}")
                    report.save()
            report.values["stats"] = asdict(asyncio.run(service.stats()))
            report.save()
            report.say("everything is measured")
        finally:
            for page in pages:
                page.close()
            service.close()
            report.say("closed")


def open_pages(args: argparse.Namespace) -> list[Page]:
    """As many as --pages says, in front of the replicas of this machine."""
    import ray

    address = ray.get_runtime_context().gcs_address
    pages = [Page(args, address) for _ in range(args.pages)]
    for page in pages:
        page.wait()
    return pages


def _part(run: ClusterRun, part: str, one: int, version: int) -> dict[str, Any]:
    """One of --parts, or why it could not be measured: the others can be all the same."""
    if time.monotonic() - BEGUN_S > run.args.until_s:
        return {"failed": "no time was left"}
    part, _, num_pages = part.partition("@")
    run.use_pages(int(num_pages) if num_pages else None)
    name, _, share = part.partition(":")
    count = max(1, round(float(share or 1) * run.args.gpus * one))
    replace_all = partial(_replace_all, run.args, version)
    works = {
        "grow": lambda: run.grow(run.args.gpus),
        "hold": lambda: run.hold(count),
        "kill": lambda: run.kill(count),
        "upgrade": lambda: run.upgrade(count, replace_all),
    }
    try:
        return asyncio.run(asyncio.wait_for(works[name](), PART_S))
    except (AssertionError, RuntimeError, MossError, asyncio.TimeoutError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _replace_all(args: argparse.Namespace, version: int) -> None:
    from ray import serve

    from moss_engine.cluster.serve.deployment import NAME

    serve.run(application(args, version), name=NAME, route_prefix=None)


def _begin_alone(args: argparse.Namespace, part: str) -> subprocess.Popen[bytes]:
    """In a process of its own, which sees one GPU, knows nothing of Ray, and waits until all are
    ready."""
    command = [sys.executable, "-m", "scripts.bench.cluster.gpus", "--parts", part]
    for name in ("checkpoint", "first", "most", "per_s", "ramp_s", "hold_s", "codes", "places"):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    command += ["--paced"] * args.paced
    command += ["--wait", "--out", str(args.out.with_suffix(".alone.json"))]
    return subprocess.Popen(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}, stdin=subprocess.PIPE
    )


def _end_alone(beside: subprocess.Popen[bytes], args: argparse.Namespace, report: Report) -> int:
    """Listeners that one service holds, which is measured now."""
    beside.communicate(b"\n")
    if beside.returncode:
        sys.exit("One service alone could not be measured.")
    path = args.out.with_suffix(".alone.json")
    found = report.values["alone"] = json.loads(path.read_text(encoding="utf-8"))["alone"]
    path.unlink()
    report.save()
    return args.one or found["hold"]["listeners"]


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    args.parts = args.parts.split(",")
    values: dict[str, Any] = {
        "replicas": args.gpus,
        "pages": args.pages,
        "checkpoint": str(args.checkpoint or "full size, random weights"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "bars": {
            "scaling": SCALING_BAR,
            "ttfa_p95_more_ms": TTFA_BAR_MS,
            "silence_s": SILENCE_BAR_S,
        },
    }
    if args.checkpoint is None and not args.paced:
        import torch

        values |= {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    report = Report(values, args.out)
    if len(args.parts) == 1 and args.parts[0].startswith("alone"):
        alone(args, report)
    else:
        clustered(args, report)


if __name__ == "__main__":
    main()
