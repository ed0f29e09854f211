"""How soon the page is there and whether it stays responsive, JSON on stdout:
`python -m scripts.bench.service.page_load [VISITS]`.

Chromium visits the real page, which a scripted service serves from this machine. Measured are the
first contentful paint, the moment at which a question can be typed and sent, how soon the
conversation is back after a reload in the middle of a reply, and every task that blocked the main
thread for longer than 50 ms, by what the reply did when it began (`sent` until it was accepted,
`speaking` until its last sample was heard), with what ran in the longest of them. Then the built-in
voice is visited, and its example heard by one click.

    longest_task_ms  for each phase, of all visits; 0 where none took 50 ms
    in_it            the scripts of the longest frame while it was speaking, with their places
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.config import EngineConfig
from moss_engine.ui.config import PageConfig
from scripts.bench.service.page import how_many, machine_now, tools

RUNS = 5
FIRST_PAINT_MS, INTERACTIVE_MS, BACK_MS, BLOCKED_MS = 1000.0, 2500.0, 1000.0, 50.0
FIRST_SOUND_S = 2.0
PHASES = ("before", "idle", "sent", "waiting", "thinking", "speaking", "done")
USABLE = "window.liveAudio?.ready && document.body.dataset.input"
WATCH = """(() => {
  const seen = (window.seen = { tasks: [], interactive: null, back: null });
  new PerformanceObserver((list) => {
    for (const { startTime, duration } of list.getEntries()) seen.tasks.push([startTime, duration]);
  }).observe({ type: "longtask", buffered: true });
  seen.phases = [[0, "before"]];
  const note = () => seen.phases.push([performance.now(), document.body.dataset.livePhase]);
  const attributeFilter = ["data-live-phase"];
  document.addEventListener("DOMContentLoaded", () => {
    new MutationObserver(note).observe(document.body, { attributeFilter });
  });
  seen.frames = [];
  new PerformanceObserver((list) => {
    for (const { startTime, duration, scripts } of list.getEntries()) {
      const place = ({ sourceURL, sourceCharPosition }) =>
        `${sourceURL.split("/").at(-1)}:${sourceCharPosition}`;
      const name = (one) => `${one.invoker} ${one.sourceFunctionName} ${place(one)}`;
      const ran = scripts.map((one) => `${name(one)} ${Math.round(one.duration)} ms`);
      seen.frames.push([startTime, duration, ran.join(", ")]);
    }
  }).observe({ type: "long-animation-frame", buffered: true });
  const look = () => {
    if (document.querySelector("#chat li")) seen.back ??= performance.now();
    const usable = window.liveAudio?.ready && document.body.dataset.input;
    if (usable) seen.interactive ??= performance.now();
    if (seen.interactive === null || seen.back === null) requestAnimationFrame(look);
  };
  look();
})()"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def parse(argv: list[str] | None = None) -> int:
    """How many visits to make."""
    return how_many("page_load", __doc__ or "", "visits", RUNS, argv)


def main() -> None:
    count = parse()
    machine = machine_now()
    runs, first_s = measure(count), first_use(count)
    names = ("first_paint_ms", "interactive_ms", "back_ms")
    median = {name: round(statistics.median(run[name] for run in runs), 1) for name in names}
    worst = max(runs, key=lambda run: run["longest_task_ms"]["speaking"])
    longest = {name: max(run["longest_task_ms"][name] for run in runs) for name in PHASES}
    sounds_s = round(statistics.median(first_s), 3)
    report = {
        "machine": machine,
        "visits": len(runs),
        **{f"{name}_median": value for name, value in median.items()},
        **{f"{name}_worst": round(max(run[name] for run in runs), 1) for name in names},
        "replies_with_a_task_over_50_ms_while_speaking": sum(
            run["longest_task_ms"]["speaking"] > BLOCKED_MS for run in runs
        ),
        "longest_task_ms": longest,
        "in_it": worst["in_it"],
        "click_to_first_sound_s_median": sounds_s,
        "click_to_first_sound_s_worst": round(max(first_s), 3),
        "passed": median["first_paint_ms"] <= FIRST_PAINT_MS
        and median["interactive_ms"] <= INTERACTIVE_MS
        and median["back_ms"] <= BACK_MS
        and longest["speaking"] <= BLOCKED_MS
        and max(first_s) <= FIRST_SOUND_S,
    }
    print(json.dumps(report, indent=1))


def first_use(count: int) -> list[float]:
    """Seconds from the first click of a new visitor, on the example, to the first sound."""
    browsing, support = tools()
    from moss_engine.build import build_service
    from moss_engine.ui.server import launch

    service = build_service(EngineConfig())
    service.start()
    port = support.free_port()
    page = launch(service, PageConfig(port=port))
    found = []
    try:
        with browsing.chromium() as browser:
            for _ in range(count + 1):
                visit = browsing.Visit(browser, f"http://127.0.0.1:{port}/")
                visit.page.wait_for_function(USABLE)
                visit.page.locator(".la-example").click()
                visit.page.wait_for_function("liveAudio.state.heardAfterMs > 0")
                found.append(visit.state("heardAfterMs") / 1000)
                visit.close()
    finally:
        page.close(verbose=False)
        service.close()
    return found[1:]


def measure(count: int) -> list[dict[str, Any]]:
    """One dict a visit; the first one is not among them."""
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


def visited(browsing: Any, service: Any, browser: Any, port: int) -> dict[str, Any]:
    """One visit: a whole reply, and a reload in the middle of another one."""
    service.reset(service.script)
    visit = browsing.Visit(browser, f"http://127.0.0.1:{port}/", init=WATCH)
    page = visit.page
    found: dict[str, Any] = {
        "first_paint_ms": page.evaluate(PAINTED),
        "interactive_ms": page.evaluate("seen.interactive"),
    }
    begun_ms = page.evaluate("performance.now()")
    visit.ask("Eight seconds of sound, with captions, figures and tokens all the way to the end.")
    visit.wait("done")
    tasks, frames, phases = page.evaluate("[seen.tasks, seen.frames, seen.phases]")
    found["longest_task_ms"] = longest_of(tasks, phases, begun_ms)
    spoke = [frame for frame in frames if phase_at(frame[0], phases) == "speaking"]
    blocked = found["longest_task_ms"]["speaking"] > 0 and spoke
    found["in_it"] = max(spoke, key=lambda frame: frame[1])[2] if blocked else ""
    visit.ask("Left in the middle.")
    page.wait_for_function("liveAudio.heard > 24000")
    page.reload()
    page.wait_for_function("window.seen?.back")
    found["back_ms"] = page.evaluate("seen.back")
    visit.close()
    return found


def longest_of(
    tasks: Sequence[tuple[float, float]], phases: Sequence[tuple[float, str]], begun_ms: float
) -> dict[str, float]:
    """Milliseconds of the longest task of each phase, of those [start, ms] that began later."""
    longest: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for start_ms, ms in tasks:
        if start_ms > begun_ms:
            name = phase_at(start_ms, phases)
            longest[name] = max(longest[name], ms)
    return longest


def phase_at(time_ms: float, phases: Sequence[tuple[float, str]]) -> str:
    """What a reply did; "before" the page was there."""
    return [name for start_ms, name in phases if start_ms <= time_ms][-1]


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
