"""The scope: all of a finished reply is in sight, and every place of it can be heard."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ui.page_support import RATE_HZ, Script, until

pytestmark = pytest.mark.browser

PAGE = "({span: liveAudio.scope.span, start: liveAudio.scope.pageStart, total: liveAudio.scope.seconds})"


OVERPRINTED = """() => {
  const { axes, width, height } = liveAudio.scope;
  const ratio = axes.width / axes.clientWidth;
  const painted = (x, across) => axes.getContext("2d")
    .getImageData(x * ratio, 0, across * ratio, (height - 18) * ratio).data.some((value) => value > 0);
  return [painted(0, width), painted(width, axes.clientWidth - width)];
}"""


def made(service, tab, seconds: float) -> None:
    """A reply that is there as a whole before it is heard."""
    service.script = Script(seconds=seconds, rtf=0.01)
    tab.page.mouse.click(5, 5)
    tab.page.wait_for_function("liveAudio.player.sink?.ready")
    tab.buffer_whole_replies()
    tab.ask("Everything at once.")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 2000")


def test_a_reply_that_fits_turns_no_page(service, tab):
    made(service, tab, 28.4)
    assert tab.page.evaluate(PAGE) == {"span": 32, "start": 0, "total": 28.4}
    tab.page.locator(".la-scope").press("End")
    tab.wait("done")
    assert until(lambda: tab.page.evaluate(PAGE) == {"span": 28.4, "start": 0, "total": 28.4})


def test_a_long_reply_is_shown_as_a_whole_when_it_is_over(service, tab):
    made(service, tab, 70.0)
    assert tab.page.evaluate(PAGE)["span"] == 32
    tab.page.locator("#stop").click()
    tab.wait("stopped")
    assert until(lambda: tab.page.evaluate(PAGE) == {"span": 70, "start": 0, "total": 70})


def test_a_reply_that_fills_the_scope_is_not_overprinted(service, tab):
    made(service, tab, 1.6)
    tab.wait("done")
    assert until(lambda: tab.page.evaluate(PAGE)["span"] == 1.6)
    over_sound, beside_it = tab.page.evaluate(OVERPRINTED)
    assert beside_it and not over_sound, "its frequencies stand on the sound"


def test_a_press_on_the_scope_is_heard_from_there(service, tab):
    made(service, tab, 1.6)
    tab.wait("done")
    assert until(lambda: tab.page.evaluate(PAGE)["span"] == 1.6)
    box = tab.page.locator(".la-scope").bounding_box()
    tab.forget()
    tab.page.mouse.click(box["x"] + box["width"] / 8, box["y"] + 40)
    tab.wait("speaking")
    tab.wait("done")
    heard, sent = np.trim_zeros(tab.captured(), "b"), service.sent()
    start = len(sent) - len(heard)
    assert abs(start - 1.6 * RATE_HZ / 8) < RATE_HZ * 0.1
    assert np.array_equal(heard, sent[start:])


def test_the_keyboard_goes_back_and_on(service, tab):
    made(service, tab, 6.0)
    scope = tab.page.locator(".la-scope")
    scope.press("ArrowRight")
    tab.page.wait_for_function("liveAudio.heard > 24000")
    scope.press("PageDown")
    tab.page.wait_for_function("liveAudio.heard < 20000")
    assert scope.get_attribute("aria-valuemax") == "6.0"
    scope.press("End")
    tab.wait("done")
    assert until(lambda: scope.get_attribute("aria-valuenow") == "6.0")
    assert tab.state("underruns") == 0 and tab.problems == []


def test_going_back_in_a_reply_that_is_still_made_loses_nothing(service, tab):
    service.script = Script(seconds=5.0, rtf=0.5)
    tab.ask("Once more, while it goes on.")
    tab.page.wait_for_function("liveAudio.heard > 30000")
    tab.page.locator(".la-scope").press("Home")
    tab.page.wait_for_function("liveAudio.heard < 10000")
    tab.forget()
    tab.wait("done")
    assert tab.state("total") == 5 * RATE_HZ and tab.state("lost") == 0
    heard = tab.page.evaluate("liveAudio.state.furthest")
    assert heard > 30000, "how far the ear came is forgotten"
