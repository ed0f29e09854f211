"""How soon the page is there and whether it stays responsive, JSON on stdout:
`python -m scripts.bench.service.page_load [VISITS]`.

Chromium visits the real page, which a scripted service serves from this machine. Measured are the
first contentful paint, the moment at which a question can be typed and sent, how soon the
conversation is back after a reload in the middle of a reply, and every task that blocked the main
thread for longer than 50 ms while a reply spoke.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.ui.config import PageConfig
from scripts.bench.service.page import tools

RUNS = 5
FIRST_PAINT_MS, INTERACTIVE_MS, BACK_MS, BLOCKED_MS = 1000.0, 2500.0, 1000.0, 50.0
WATCH = """(() => {
  const seen = (window.seen = { tasks: [], interactive: null, back: null });
  new PerformanceObserver((list) => {
    for (const { startTime, duration } of list.getEntries()) seen.tasks.push([startTime, duration]);
  }).observe({ type: "longtask", buffered: true });
  const look = () => {
    if (document.querySelector("#chat li")) seen.back ??= performance.now();
    const usable = window.liveAudio?.ready && document.body.dataset.input;
    if (usable) seen.interactive ??= performance.now();
    if (seen.interactive === null || seen.back === null) requestAnimationFrame(look);
  };
  look();
})()"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else RUNS
    if count < 1:
        raise ConfigError("Give a number of visits from 1 on.")
    runs = measure(count)
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    longest = max(run["longest_task_ms"] for run in runs)
    print(
        json.dumps(
            {
                "median": medians,
                "longest_task_ms": longest,
                "passed": medians["first_paint_ms"] <= FIRST_PAINT_MS
                and medians["interactive_ms"] <= INTERACTIVE_MS
                and medians["back_ms"] <= BACK_MS
                and longest <= BLOCKED_MS,
                "runs": runs,
            },
            indent=1,
        )
    )


def measure(count: int) -> list[dict[str, float]]:
    """One dict a visit; the first one is not among them. `longest_task_ms` is 0 where no task took
    50 ms."""
    browsing, support = tools()
    from moss_engine.ui.server import launch

    service = support.FakeService(support.Script(seconds=8.0, chunk_s=0.1, rtf=0.3))
    port = support.free_port()
    page = launch(service, PageConfig(port=port))
    try:
        with browsing.chromium() as browser:
            return [visited(browsing, service, browser, port) for _ in range(count + 1)][1:]
    finally:
        page.close(verbose=False)


def visited(browsing: Any, service: Any, browser: Any, port: int) -> dict[str, float]:
    """One visit: a whole reply, and a reload in the middle of another one."""
    service.reset(service.script)
    visit = browsing.Visit(browser, f"http://127.0.0.1:{port}/", init=WATCH)
    page = visit.page
    found = {
        "first_paint_ms": page.evaluate(PAINTED),
        "interactive_ms": page.evaluate("seen.interactive"),
    }
    begun_ms = page.evaluate("performance.now()")
    visit.ask("Eight seconds of sound, with captions, figures and tokens all the way to the end.")
    visit.wait("done")
    tasks = [ms for start_ms, ms in page.evaluate("seen.tasks") if start_ms > begun_ms]
    found["longest_task_ms"] = max(tasks, default=0.0)
    visit.ask("Left in the middle.")
    page.wait_for_function("liveAudio.heard > 24000")
    page.reload()
    page.wait_for_function("window.seen?.back")
    found["back_ms"] = page.evaluate("seen.back")
    visit.close()
    return found


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
