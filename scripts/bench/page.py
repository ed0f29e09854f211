"""Chromium visits the page, which this process serves.

A scripted service says a known signal, and a tap listens at the end of the audio graph:

    first_paint, usable   first contentful paint, and the moment at which a question can be sent
    server_to_ear         from a chunk being ready on the server to its first sample reaching the
                          graph's destination, on one clock; the sound card comes on top
    blocked               visits in whose reply the main thread was held for longer than 50 ms
    cold                  what the very first visitor's browser fetches until it rests
    slow_3g               first visits at 400 ms and 500 kbit/s: the box, and all of the page
"""

from __future__ import annotations

import argparse
from typing import Any

from scripts.bench.browser import page_browser, page_support, served
from scripts.bench.common import Report, machine, spread
from scripts.command import count

SECONDS, CHUNK_S, RTF = 3.0, 0.1, 0.3
SLOW_VISITS, SETTLED_MS = 3, 1000
WATCH = """(() => {
  const seen = (window.seen = { tasks: [], usable: null, box: null });
  new PerformanceObserver((list) => {
    for (const { startTime } of list.getEntries()) seen.tasks.push(startTime);
  }).observe({ type: "longtask", buffered: true });
  const look = () => {
    if (window.first) seen.box ??= performance.now();
    if (window.liveAudio && document.body.dataset.input) seen.usable = performance.now();
    else requestAnimationFrame(look);
  };
  look();
})()"""
SLOW_3G = {
    "offline": False,
    "latency": 400,
    "downloadThroughput": 500_000 / 8,
    "uploadThroughput": 500_000 / 8,
}
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--visits", type=count, default=10, metavar="N",
                        help="of each service, after one that warms up (10)")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), visits=args.visits)
    script = page_support.Script(seconds=SECONDS, chunk_s=CHUNK_S, rtf=RTF)
    service = page_support.FakeService(script)
    with served(service, scripted=True) as url, page_browser.chromium() as browser:
        first = loaded(browser, url)
        report.add(cold_bytes=first["bytes"], cold_requests=first["requests"])
        visits = [visited(browser, url, service) for _ in range(args.visits + 1)][1:]
        slow = [loaded(browser, url, SLOW_3G) for _ in range(SLOW_VISITS)]
    for name in ("first_paint", "usable", "server_to_ear"):
        report.add(**spread(name, [visit[name] for visit in visits]))
    for name in ("box", "usable"):
        report.add(**spread(f"slow_3g_{name}", [visit[name] for visit in slow]))
    report.add(blocked=sum(visit["blocked"] for visit in visits))


def loaded(browser: Any, url: str, link: dict[str, Any] | None = None) -> dict[str, float]:
    """One visit with an empty cache, which lasts until nothing is fetched any more."""
    context = page_browser.new_context(browser)
    page = context.new_page()
    cdp = context.new_cdp_session(page)
    cdp.send("Network.enable")
    if link:
        cdp.send("Network.emulateNetworkConditions", link)
    sizes: list[float] = []
    cdp.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.add_init_script(WATCH)
    page.goto(url, wait_until="commit")
    page.wait_for_function("window.seen?.usable")
    page.wait_for_timeout(SETTLED_MS)
    seen = page.evaluate("seen")
    context.close()
    return {**seen, "bytes": round(sum(sizes)), "requests": len(sizes)}


def visited(browser: Any, url: str, service: Any) -> dict[str, float]:
    """One visit in which a whole reply is heard."""
    service.reset(service.script)
    tab = page_browser.Visit(browser, url, init=WATCH)
    tab.page.wait_for_function("seen.usable")
    asked_ms = tab.page.evaluate("performance.now()")
    tab.ask("Say something.")
    tab.wait("done")
    seen = tab.page.evaluate("seen")
    found = {
        "first_paint": tab.page.evaluate(PAINTED),
        "usable": seen["usable"],
        "server_to_ear": tab.page.evaluate("tap.firstAt") - 1000 * service.chunk_ready_s[0],
        "blocked": any(start_ms > asked_ms for start_ms in seen["tasks"]),
    }
    tab.context.close()
    return found
