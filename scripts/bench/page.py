"""Chromium visits the page, which this process serves.

A scripted service says a known signal, and a tap listens at the end of the audio graph:

    first_paint, usable   first contentful paint, and the moment at which a question can be sent
    server_to_ear         from a chunk being ready on the server to its first sample reaching the
                          graph's destination, on one clock; the sound card comes on top
"""

from __future__ import annotations

import argparse
from typing import Any

from scripts.bench.browser import served, tools
from scripts.bench.common import Report, count, machine, spread

SECONDS, CHUNK_S, RTF = 3.0, 0.1, 0.3
WATCH = """(() => {
  const look = () => {
    if (window.liveAudio && document.body.dataset.input) window.usableMs = performance.now();
    else requestAnimationFrame(look);
  };
  look();
})()"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--visits", type=count, default=10, metavar="N",
                        help="after one that warms up (10)")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), visits=args.visits)
    browsing, support = tools()
    service = support.FakeService(support.Script(seconds=SECONDS, chunk_s=CHUNK_S, rtf=RTF))
    with served(service, scripted=True) as url, browsing.chromium() as browser:
        visits = [visited(browser, url, service) for _ in range(args.visits + 1)][1:]
    for name in visits[0]:
        report.add(**spread(name, [visit[name] for visit in visits]))


def visited(browser: Any, url: str, service: Any) -> dict[str, float]:
    """One visit with a whole reply; milliseconds."""
    service.reset(service.script)
    tab = tools()[0].Visits(browser).make(url, init=WATCH)
    tab.page.wait_for_function("window.usableMs")
    tab.ask("Say something.")
    tab.wait("done")
    found = {
        "first_paint": tab.page.evaluate(PAINTED),
        "usable": tab.page.evaluate("usableMs"),
        "server_to_ear": tab.page.evaluate("tap.firstAt") - 1000 * service.chunk_ready_s[0],
    }
    tab.context.close()
    return found
