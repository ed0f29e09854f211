"""Keys that belong to somebody else: to an open dialog, or to whoever spells a word."""

from __future__ import annotations

import pytest

from tests.ui.page_support import Script

pytestmark = pytest.mark.browser

COUNT = """() => {
  window.stops = 0;
  document.getElementById("stop").addEventListener("click", () => (stops += 1));
}"""
SPELLED = """(box) => { // the key that ends the choice among Chinese words
  box.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", isComposing: true, bubbles: true }));
}"""


@pytest.fixture
def speaking(service, tab):
    service.script = Script(seconds=60.0, rtf=0.2)
    tab.ask("Nobody wants this to end.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    tab.page.evaluate(COUNT)
    return tab


def assert_only_escape_stops(tab) -> None:
    assert tab.page.evaluate("[stops, liveAudio.state.phase]") == [0, "speaking"]
    tab.text.press("Escape")
    tab.wait("stopped")
    assert tab.page.evaluate("stops") == 1 and tab.problems == []


@pytest.mark.parametrize("opener", [".about-open", ".programs-open"])
def test_escape_that_closes_a_dialog_stops_no_reply(speaking, opener):
    speaking.page.locator(opener).click()
    dialog = speaking.page.get_by_role("dialog")
    dialog.wait_for()
    speaking.page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert_only_escape_stops(speaking)


def test_escape_that_ends_the_spelling_of_a_word_stops_no_reply(speaking):
    speaking.text.evaluate(SPELLED)
    assert_only_escape_stops(speaking)
