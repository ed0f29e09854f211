"""Latency from server to ear: `python -m scripts.bench.service.page`, JSON on stdout.

A scripted service says a known signal; Chromium visits the real page and a tap listens at the end
of the audio graph. Measured is the time from a chunk being ready on the server to its first sample
reaching the graph's destination, on one clock (both run on this machine; the sound card's own
latency comes on top and is reported beside it). A run counts as exact when every sample heard
equals the int16 that was sent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from importlib import import_module
from typing import Any

import numpy as np

from moss_engine.api.errors import ConfigError, MissingPackageError, MossError
from moss_engine.audio.pcm import to_pcm16
from moss_engine.config import REPO_ROOT
from moss_engine.ui.config import PageConfig

BAR_MS = 15.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--runs", type=int, default=10, metavar="N", help="replies after the one that warms up (10)"
    )
    parser.add_argument(
        "--chunk-ms", type=float, default=100.0, metavar="MS", help="sound of one chunk (100)"
    )
    parser.add_argument(
        "--rtf", type=float, default=0.3, help="pace at which the service makes sound (0.3)"
    )
    parser.add_argument("--port", type=int, default=7961, help="port for the page (7961)")
    options = parser.parse_args()
    if options.runs < 1 or not 10 <= options.chunk_ms <= 2000 or not 0 < options.rtf < 1:
        raise ConfigError(
            "Give --runs from 1, --chunk-ms from 10 to 2000 and --rtf between 0 and 1."
        )
    runs = measure(options.runs, options.chunk_ms / 1000, options.rtf, options.port)
    ready = [run["ready_to_graph_ms"] for run in runs]
    print(
        json.dumps(
            {
                "machine": machine_now(),
                "replies": len(runs),
                "bar_ms": BAR_MS,
                "median_ms": statistics.median(ready),
                "min_ms": min(ready),
                "max_ms": max(ready),
                "exact_runs": sum(run["exact"] for run in runs),
                "underruns": sum(run["underruns"] for run in runs),
                "passed": statistics.median(ready) <= BAR_MS and all(run["exact"] for run in runs),
            },
            indent=1,
        )
    )


def how_many(command: str, about: str, what: str, default: int, argv: list[str] | None) -> int:
    """The one argument of a measurement beside this one; raises ConfigError for less than 1."""
    parser = argparse.ArgumentParser(
        prog=f"python -m scripts.bench.service.{command}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "count",
        nargs="?",
        type=int,
        default=default,
        metavar=what.upper(),
        help=f"how many ({default})",
    )
    count: int = parser.parse_args(argv).count
    if count < 1:
        raise ConfigError(f"Give a number of {what} from 1 on.")
    return count


def machine_now() -> str:
    """The machine, and how busy it was before."""
    busy = os.getloadavg()[0]
    return f"{platform.machine()}, {os.cpu_count()} cores, {busy:.1f} of them busy before"


def tools() -> tuple[Any, Any]:
    """The page tests' browser and scripted service; raises MissingPackageError without them."""
    sys.path.insert(0, str(REPO_ROOT))
    try:
        browsing, support = (
            import_module("tests.ui.page_browser"),
            import_module("tests.ui.page_support"),
        )
    except ImportError as error:
        raise MissingPackageError(
            f"{error.name} is not installed; run: bash scripts/test.sh --version"
        ) from None
    if browsing.CHROMIUM is None:
        raise MissingPackageError(
            "Chromium is not installed; on Debian and Ubuntu: apt-get install chromium"
        )
    return browsing, support


def measure(count: int, chunk_s: float, rtf: float, port: int) -> list[dict[str, float]]:
    """One dict a run; the first reply is not among them."""
    browsing, support = tools()
    from moss_engine.ui.server import launch

    service = support.FakeService(support.Script(seconds=3.0, chunk_s=chunk_s, rtf=rtf))
    page = launch(service, PageConfig(port=port))
    runs = []
    try:
        with browsing.chromium() as browser:
            for _ in range(count + 1):
                service.reset(service.script)
                visit = browsing.Visit(browser, f"http://127.0.0.1:{port}/")
                visit.ask("Say something.")
                visit.wait("done")
                heard = visit.sound() * 32768
                sent = np.trim_zeros(
                    to_pcm16(support.signal(3.0, service.requests[-1].sampling.seed % 50)), "f"
                )
                runs.append(
                    {
                        "ready_to_graph_ms": visit.page.evaluate("tap.firstAt")
                        - 1000 * service.chunk_ready_s[0],
                        "heard_after_ms": visit.state("heardAfterMs"),
                        "output_latency_ms": visit.state("latencyMs"),
                        "exact": bool(np.array_equal(heard[: len(sent)], sent)),
                        "underruns": visit.state("underruns"),
                    }
                )
                visit.close()
    finally:
        page.close(verbose=False)
    return runs[1:]


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
