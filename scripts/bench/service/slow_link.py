"""The page over slow links: `python -m scripts.bench.service.slow_link`, JSON on stdout.

The built-in voice is served from this machine, and Chromium visits it through a link of so many
bits a second and so long a round trip, which carries everything: the page itself, questions, sound
and figures. For each link the page is loaded at the first rate and loaded again, as a visitor
does who comes back; then the link gets its own rate and replies are heard.

    page_ready_s          until the page is ready for a question, page_again_s: loaded again;
                          *_plain_*: with a document that travels as it is, *_share: of those
    sound                 how it came: "opus", compressed, or "pcm", every sample
    underruns, silent_ms  what was heard: gaps in the sound
    voice_underruns       of them, those that a listener without a link would have heard, as this
                          machine did not speak in time
    heard_after_ms        from the key press to the first sound
    bits_s                that came over the link for each second of sound, everything included
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.ui.config import PageConfig
from moss_engine.ui.entrance import compressed
from scripts.bench.common.link import Link
from scripts.bench.common.sentences import sentence
from scripts.bench.service.page import machine_now, tools

RATES_BITS_S = (300_000, 128_000, 64_000)
ROUND_TRIP_S = 0.2
REPLIES = 3
SENTENCES = 2  # of a reply
PATIENCE_MS = 180_000  # for a reply


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.slow_link",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--replies", type=int, default=REPLIES, metavar="N", help=f"over each link ({REPLIES})"
    )
    parser.add_argument(
        "--rates",
        type=lambda text: tuple(int(1000 * float(rate)) for rate in text.split(",")),
        default=RATES_BITS_S,
        metavar="KBITS",
        help="kbit/s of the links, with commas between; pages are loaded at the first (300,128,64)",
    )
    options = parser.parse_args()
    if options.replies < 1 or min(options.rates) < 8000:
        raise ConfigError("Give --replies from 1 on and --rates from 8 kbit/s on.")
    machine = machine_now()
    (plain_s, plain_again_s), links = measure(options.rates, options.replies)
    first = links[0]
    report = {
        "machine": machine,
        "round_trip_ms": round(1000 * ROUND_TRIP_S),
        "replies_each": options.replies,
        "page_ready_plain_s": round(plain_s, 1),
        "page_again_plain_s": round(plain_again_s, 1),
        "page_ready_share": round(first["page_ready_s"] / plain_s, 2),
        "page_again_share": round(first["page_again_s"] / plain_again_s, 2),
        "links": links,
        "passed": first["sound"] == ["opus"] and not first["underruns"],
    }
    print(json.dumps(report, indent=1))


def measure(
    rates: tuple[int, ...], replies: int
) -> tuple[tuple[float, float], list[dict[str, Any]]]:
    """The seconds of the two loads at the first rate as they would be if the document travelled as
    it is, and a dict for each link, in the order of `rates`."""
    browsing, support = tools()
    from moss_engine.ui.server import launch

    service = build_service(EngineConfig())
    service.start()
    port = support.free_port()
    page = launch(service, PageConfig(port=port))
    try:
        with browsing.chromium() as browser, Link(port, rates[0], ROUND_TRIP_S) as link:
            link.bits_s, links = rates[0], []
            with uncompressed():
                visit, plain = loaded(browsing, browser, link)
                visit.close()
            for rate in rates:
                links.append(visited(browsing, browser, link, rates[0], rate, replies))
                print(links[-1], file=sys.stderr)
            return plain, links
    finally:
        page.close(verbose=False)
        service.close()


def visited(
    browsing: Any, browser: Any, link: Link, load_bits_s: float, bits_s: float, replies: int
) -> dict[str, Any]:
    """One visitor: the page twice, and then replies over the link at its own rate."""
    link.bits_s = load_bits_s
    visit, (first_s, again_s) = loaded(browsing, browser, link)
    link.bits_s = bits_s
    try:
        heard = [asked(visit, link, number) for number in range(replies)]
    finally:
        visit.close()
    return {
        "kbits_s": bits_s / 1000,
        "page_loaded_at_kbits_s": load_bits_s / 1000,
        "page_ready_s": round(first_s, 1),
        "page_again_s": round(again_s, 1),
        "sound": sorted({one["sound"] for one in heard}),
        "underruns": sum(one["underruns"] for one in heard),
        "silent_ms": round(sum(one["silent_ms"] for one in heard)),
        "voice_underruns": sum(one["voice_underruns"] for one in heard),
        "heard_after_ms_median": round(statistics.median(one["heard_after_ms"] for one in heard)),
        "heard_after_ms_worst": round(max(one["heard_after_ms"] for one in heard)),
        "bits_s": round(sum(one["bits"] for one in heard) / sum(one["sound_s"] for one in heard)),
        "sound_s": round(sum(one["sound_s"] for one in heard), 1),
    }


def loaded(browsing: Any, browser: Any, link: Link) -> tuple[Any, tuple[float, float]]:
    """A visit, and how many seconds the page took at first, and again."""
    began_s = time.monotonic()
    visit = browsing.Visit(browser, f"http://127.0.0.1:{link.port}/", link="")
    first_s, began_s = time.monotonic() - began_s, time.monotonic()
    visit.page.reload()
    visit.page.wait_for_function("window.liveAudio?.ready && document.body.dataset.input")
    return visit, (first_s, time.monotonic() - began_s)


@contextmanager
def uncompressed() -> Iterator[None]:
    """The page's document travels as it is."""
    usual, compressed.MIN_BYTES = compressed.MIN_BYTES, sys.maxsize
    try:
        yield
    finally:
        compressed.MIN_BYTES = usual


def asked(visit: Any, link: Link, number: int) -> dict[str, Any]:
    """One reply, heard to its end."""
    before = link.received_bytes
    visit.ask(" ".join(sentence(10 * number + i) for i in range(SENTENCES)))
    visit.wait("speaking", "failed", "lost")
    over = "['done', 'failed', 'lost'].includes(liveAudio.state.phase)"
    visit.page.wait_for_function(over, timeout=PATIENCE_MS)
    state = visit.page.evaluate("({ ...liveAudio.state, pieces: null, ids: null })")
    if state["phase"] != "done":
        raise ConfigError(f"The reply ended as {state['phase']}: {state['note']}")
    return {
        "sound": state["sound"],
        "underruns": state["underruns"],
        "silent_ms": 1000 * state["starved"] / state["rate"],
        "voice_underruns": state["figures"]["underruns"],
        "heard_after_ms": state["heardAfterMs"],
        "bits": 8 * (link.received_bytes - before),
        "sound_s": state["total"] / state["rate"],
    }


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
