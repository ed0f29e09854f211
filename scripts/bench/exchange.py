"""A fast visitor asks the built-in voice, which this process serves, in Chromium.

Times are taken from outside the page's own code: from the event of the key to the first block of
sound at the end of the audio graph, both on the machine's clock. The sound card comes on top.

    from_rest      nothing is being said
    over           a reply is being said: it falls silent, and the new one begins
    fade           from the key until the old reply is silent
    page_off       how far the page's own figure is from this measurement
    nodes          how many elements the page has gained with the replies
    four_gaps      gaps in the replies of four pages that ask at once
    quick_lost     sentences that got lost when they were typed and sent at 20 a second: neither
                   asked nor refused, nor still in the box
"""

from __future__ import annotations

import argparse
from typing import Any

from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from scripts.bench.browser import page_browser, served
from scripts.bench.common import Report, machine, spread
from scripts.command import count

LONG = "This is sentence number {}, which goes on for some seconds, so that somebody can cut in."
SHORT = "And this is question number {}."
REST_MS, OVER_MS = 700, 1500  # of silence before, and of the reply that is interrupted
PAGES, QUICK, QUICK_MS = 4, 200, 50
WATCH = """(() => {
  const seen = (window.seen = { key: 0 });
  addEventListener("keydown", (event) => {
    if (event.key === "Enter") seen.key = performance.timeOrigin + event.timeStamp;
  }, true);
})()"""
# Sound begins where a block sounds behind one that does not.
ONSETS = """() => {
  const keep = tap.blocks.push.bind(tap.blocks);
  Object.assign(tap, { onsets: [], silentAt: 0, sounding: false });
  tap.blocks.push = (samples) => {
    const sounding = samples.some((sample) => sample !== 0);
    const now = Date.now();
    if (sounding && !tap.sounding) tap.onsets.push(tap.lastAt);
    if (!sounding && tap.sounding) tap.silentAt = now;
    tap.sounding = sounding;
    return tap.blocks.length;
  };
}"""
HEARD = """(fade) => {
  const onset = tap.onsets.find((at) => at > seen.key + fade);
  return onset === undefined ? null : onset - seen.key;
}"""
FADE_MS = 40  # in which the old reply falls silent; an answer may begin soon after it


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replies", type=count, default=20, metavar="N",
                        help="from rest, and as many over a running one (20)")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), replies=args.replies)
    with served(build_service(EngineConfig())) as url, page_browser.chromium() as browser:
        tab = visit(browser, url)
        ask(tab, "Good morning.")  # Python's first time is not the visitor's
        fast(tab, args.replies, report)
        tab.context.close()
        report.add(four_gaps=four(browser, url, report))
        report.add(quick_lost=quick(browser, url, report))


def visit(browser: Any, url: str) -> Any:
    tab = page_browser.Visit(browser, url, init=WATCH)
    tab.page.evaluate(ONSETS)
    return tab


def ask(tab: Any, text: str, *, over: bool = False) -> float:
    """Milliseconds from the key to the first sound."""
    tab.text.fill(text)
    tab.page.evaluate("tap.onsets.length = 0")
    tab.text.press("Enter")
    return float(
        tab.page.wait_for_function(HEARD, arg=FADE_MS if over else 0, polling=5).json_value()
    )


def fast(tab: Any, replies: int, report: Report) -> None:
    found: dict[str, list[float]] = {"from_rest": [], "over": [], "fade": [], "page_off": []}
    nodes = tab.page.evaluate("document.querySelectorAll('*').length")
    for number in range(replies):
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_timeout(REST_MS)
        found["from_rest"].append(ask(tab, LONG.format(number)))
        found["page_off"].append(abs(shown_ms(tab) - found["from_rest"][-1]))
        tab.page.wait_for_timeout(OVER_MS)
        found["over"].append(ask(tab, SHORT.format(number), over=True))
        found["fade"].append(tab.page.evaluate("tap.silentAt - seen.key"))
        found["page_off"].append(abs(shown_ms(tab) - found["over"][-1]))
        report.say(f"{number + 1} of {replies}")
    for name, values in found.items():
        report.add(**spread(name, values))
    report.add(nodes=tab.page.evaluate("document.querySelectorAll('*').length") - nodes)


def shown_ms(tab: Any) -> float:
    """The page's own figure, without what it adds for the sound card."""
    tab.page.wait_for_function("liveAudio.state.heardAfterMs > 0")
    return tab.page.evaluate("liveAudio.state.heardAfterMs - liveAudio.state.latencyMs")


def four(browser: Any, url: str, report: Report) -> int:
    """Gaps in 60 replies of as many pages at once."""
    tabs = [visit(browser, url) for _ in range(PAGES)]
    gaps = 0
    for number in range(60 // PAGES):
        for tab in tabs:
            tab.text.fill(LONG.format(number))
        for tab in tabs:
            tab.text.press("Enter")
        for tab in tabs:
            tab.page.wait_for_function(
                "liveAudio.state.ended && liveAudio.state.phase === 'done' && !liveAudio.asking"
            )
            gaps += tab.state("underruns")
        report.say(f"{PAGES * (number + 1)} replies of {PAGES} pages, {gaps} gaps")
    for tab in tabs:
        tab.context.close()
    return gaps


def quick(browser: Any, url: str, report: Report) -> int:
    """How many of the sentences that were sent in quick succession got lost."""
    tab = visit(browser, url)
    for number in range(QUICK):
        tab.text.type(f"N{number}.")
        tab.text.press("Enter")
        tab.page.wait_for_timeout(QUICK_MS)
    tab.page.wait_for_function("liveAudio.state.phase === 'done' && !liveAudio.asking")
    tab.page.wait_for_timeout(1000)
    offered = tab.page.locator("#problem").inner_text()
    said = tab.page.locator(".tr-list").inner_text() + tab.text.input_value() + offered
    lost = sum(f"N{number}." not in said for number in range(QUICK))
    report.say(f"{lost} of {QUICK} are nowhere; the page says {offered!r}")
    tab.context.close()
    return lost
