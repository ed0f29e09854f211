"""A slow link: the sound comes compressed, in time, and the page says so; a fast one carries every
sample."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ui.page_support import RATE_HZ, Script, until

pytestmark = pytest.mark.browser

TILE = '[data-key="buffered"] .tile-value small'
LINK_BITS_S, DELAY_MS = 300_000, 200
MEASURED_SLOW, ONLY_THE_PAGE_CAME = (
    f"""(() => {{
  const entries = performance.getEntriesByType.bind(performance);
  const load = {{ transferSize: 400_000, responseStart: 0, responseEnd: {400_000 * 8000 / LINK_BITS_S} }};
  const cached = {{ transferSize: 0, responseStart: 0, responseEnd: 10 }};
  const told = {{ {measured} }};
  performance.getEntriesByType = (type) => told[type] ?? entries(type);
}})()"""
    for measured in ("resource: [load], navigation: []", "resource: [cached], navigation: [load]")
)


def slow_down(tab) -> list[int]:
    """The link from now on, and how many bytes each piece of data has that comes over it."""
    session, received = tab.context.new_cdp_session(tab.page), []
    session.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))
    session.send("Network.enable")
    speed = {"downloadThroughput": LINK_BITS_S / 8, "uploadThroughput": LINK_BITS_S / 8}
    session.send(
        "Network.emulateNetworkConditions", {"offline": False, "latency": DELAY_MS, **speed}
    )
    return received


def test_a_slow_link_carries_compressed_sound_at_a_fraction_of_its_rate(service, tab):
    tab.buffer_whole_replies()
    service.script = Script(seconds=8.0, rtf=0.3)
    tab.page.evaluate(MEASURED_SLOW)
    received = slow_down(tab)
    tab.ask("Eight seconds of sound for somebody far away, with words all the way to the end.")
    tab.wait("done")
    assert tab.state("sound") == "opus" and tab.state("underruns") == 0
    tab.page.wait_for_timeout(500)  # for what follows a reply
    assert sum(received) * 8 / 8.0 < 80_000, "all of it, figures and tokens, in bits a second"
    assert tab.page.locator(".la-way").is_visible()
    assert tab.page.locator(TILE).inner_text() == "s of Opus"
    heard, sent = np.trim_zeros(tab.sound(), "b"), service.sent() / 32768
    assert abs(len(heard) - len(sent)) < 0.06 * RATE_HZ
    body = slice(RATE_HZ, 7 * RATE_HZ)
    shares = [np.corrcoef(heard[body], np.roll(sent, lag)[body])[0, 1] for lag in range(-3, 4)]
    assert max(shares) > 0.95 and abs(int(np.argmax(shares)) - 3) <= 1, "captions are out of step"
    assert tab.problems == []


def test_who_comes_back_over_a_slow_link_hears_compressed_sound(service, tab):
    tab.page.evaluate(ONLY_THE_PAGE_CAME)
    tab.ask("Its files lie in the browser's cache.")
    tab.wait("done")
    assert tab.state("sound") == "opus"


def test_a_fast_link_carries_every_sample(service, tab):
    tab.buffer_whole_replies()
    tab.ask("Every sample as it was made.")
    tab.wait("done")
    assert tab.state("sound") == "pcm" and not tab.page.locator(".la-way").is_visible()
    assert tab.page.locator(TILE).inner_text() == "s of exact PCM"
    tab.assert_heard(service.sent())


def test_a_compressed_reply_can_be_stopped_replaced_and_heard_again(service, tab):
    tab.page.evaluate(MEASURED_SLOW)
    service.script = Script(seconds=60.0, rtf=0.3)
    tab.ask("Stopped in the middle.")
    tab.page.wait_for_function("liveAudio.heard > 20000")
    tab.text.press("Escape")
    tab.wait("stopped")
    tab.assert_silent()
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.ask("Heard twice.")
    tab.wait("done")
    assert abs(tab.state("total") - 1.2 * RATE_HZ) < 0.06 * RATE_HZ
    tab.page.locator(".la-pause").click()
    tab.wait("speaking")
    tab.wait("done")
    assert until(lambda: not service.open) and tab.problems == []
