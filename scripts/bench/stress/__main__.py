"""The service and the program under attack: `python -m scripts.bench.stress --out FILE`.

Parts: newcomers beside long readings, cancels at random moments, damaged folders (in this process);
fuzzed calls, malformed recordings, half-sent requests at few file handles, listeners who take
nothing, kill -9 (the program itself).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.service.local import LocalService
from scripts.bench.common.machine import cpu_name
from scripts.bench.stress.calls import measure_calls, measure_recordings, measure_sockets
from scripts.bench.stress.cancels import measure_cancels
from scripts.bench.stress.damage import measure_damage
from scripts.bench.stress.endings import measure_kills, measure_never_readers
from scripts.bench.stress.newcomer import measure_newcomers
from scripts.bench.stress.program import plain, running

FILES = 256


def with_service(measure: Callable[[LocalService], Any]) -> Any:
    service = build_service(EngineConfig())
    service.start()
    try:
        return asyncio.run(measure(service))
    finally:
        service.close()


def with_program(measure: Callable[[Any], Any], port: int, files: int | None = None) -> Any:
    with running(port, files=files) as program:
        return asyncio.run(measure(program))


def parts(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """What each part does, by its name."""
    port = options.port
    return {
        "newcomers": lambda: with_service(lambda s: measure_newcomers(s, options.newcomers)),
        "cancels": lambda: with_service(lambda s: measure_cancels(s, options.cancels)),
        "damage": lambda: measure_damage(options.folders),
        "calls": lambda: with_program(lambda p: measure_calls(p, options.calls), port),
        "recordings": lambda: with_program(
            lambda p: measure_recordings(p, options.recordings), port
        ),
        "never_readers": lambda: measure_never_readers(port),
        "kills": lambda: measure_kills(port),
        "sockets": lambda: with_program(lambda p: measure_sockets(p, options.sockets), port, FILES),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.stress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default="", metavar="A,B", help="only these (default: all)")
    for name, count in (
        ("newcomers", 20),
        ("cancels", 1000),
        ("folders", 200),
        ("calls", 10_000),
        ("recordings", 60),
        ("sockets", 200),
    ):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"({count})")
    parser.add_argument("--port", type=int, default=7991, help="port for the program (7991)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to add the parts to")
    options = parser.parse_args(argv)
    known = parts(options)
    wanted = options.parts.split(",") if options.parts else list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"There is no part {unknown[0]!r}; choose of {', '.join(known)}.")
    found: dict[str, Any] = {"cpu": cpu_name()}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    for name in wanted:
        figures = known[name]()
        print(json.dumps({name: figures}, indent=1), flush=True)
        found |= {f"{name}_{figure}": plain(value) for figure, value in figures.items()}
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
