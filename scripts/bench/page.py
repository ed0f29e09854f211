"""Chromium visits the page, which this process serves.

A scripted service says a known signal, and a tap listens at the end of the audio graph:

    first_paint, usable   first contentful paint, and the moment at which a question can be sent
    server_to_ear         from a chunk being ready on the server to its first sample reaching the
                          graph's destination, on one clock; the sound card comes on top
    exact_runs            replies of which every sample heard equals the int16 that was sent
    blocked               replies while which the main thread was held for longer than 50 ms
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from moss_engine.audio.pcm import to_pcm16
from scripts.bench.browser import served, tools
from scripts.bench.common import Report, count, machine, spread

SECONDS, CHUNK_S, RTF = 3.0, 0.1, 0.3
WATCH = """(() => {
  const seen = (window.seen = { tasks: [], usable: null });
  new PerformanceObserver((list) => {
    for (const { startTime } of list.getEntries()) seen.tasks.push(startTime);
  }).observe({ type: "longtask", buffered: true });
  const look = () => {
    if (window.liveAudio?.ready && document.body.dataset.input) seen.usable = performance.now();
    else requestAnimationFrame(look);
  };
  look();
})()"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--visits", type=count, default=10, metavar="N",
                        help="of each service, after one that warms up (10)")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), visits=args.visits)
    browsing, support = tools()
    service = support.FakeService(support.Script(seconds=SECONDS, chunk_s=CHUNK_S, rtf=RTF))
    with served(service, scripted=True) as url, browsing.chromium() as browser:
        visits = [visited(browser, url, service) for _ in range(args.visits + 1)][1:]
    for name in ("first_paint", "usable", "server_to_ear"):
        report.add(**spread(name, [visit[name] for visit in visits]))
    report.add(**{
        f"{name}_runs" if name == "exact" else name: sum(visit[name] for visit in visits)
        for name in ("exact", "underruns", "blocked")
    })  # fmt: skip


def visited(browser: Any, url: str, service: Any) -> dict[str, float]:
    """One visit with a whole reply."""
    browsing, support = tools()
    service.reset(service.script)
    tab = browsing.Visit(browser, url, init=WATCH)
    tab.page.wait_for_function("seen.usable")
    asked_ms = tab.page.evaluate("performance.now()")
    tab.ask("Say something.")
    tab.wait("done")
    heard = tab.sound() * 32768
    seed = service.requests[-1].sampling.seed % 50
    sent = np.trim_zeros(to_pcm16(support.signal(SECONDS, seed)), "f")
    seen = tab.page.evaluate("seen")
    found = {
        "first_paint": tab.page.evaluate(PAINTED),
        "usable": seen["usable"],
        "server_to_ear": tab.page.evaluate("tap.firstAt") - 1000 * service.chunk_ready_s[0],
        "exact": bool(np.array_equal(heard[: len(sent)], sent)),
        "underruns": tab.state("underruns"),
        "blocked": any(start_ms > asked_ms for start_ms in seen["tasks"]),
    }
    tab.close()
    return found
