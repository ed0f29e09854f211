"""A microphone that dies while it is listened to: what was said counts, the page says what to do,
and the next one is as good as new."""

from __future__ import annotations

import pytest

from moss_engine.audio.turn_taking import RATE_HZ
from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import Script, until

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed"),
]
DIES = """() => {
  const [track] = recorder.capture.stream.getTracks();
  track.stop();
  track.dispatchEvent(new Event("ended"));
}"""
DIES_IN_A_SENTENCE = f"""() => {{
  window.asks = 0;
  document.addEventListener("asked", () => (asks += 1));
  document.addEventListener("recorder", ({{ detail }}) => {{
    if (window.before !== undefined || detail.state !== "hearing" || detail.seconds < 0.8) return;
    window.before = asks;
    ({DIES})();
  }});
}}"""
DEAF = "recorder.capture.listener = () => {}"  # the microphone gives no sound at all
SAID = "The microphone was disconnected"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing.chromium_that_hears(SAMPLE, tmp_path_factory.mktemp("microphone")) as browser:
        yield browser


@pytest.fixture
def tab(visit, service):
    service.script = Script(seconds=0.5, rtf=0.1)
    tab = visit(permissions=["microphone"])
    tab.page.wait_for_function("window.recorder?.ready")
    tab.page.locator("#mode label", has_text="Speak to it").click()
    tab.page.wait_for_selector(".rec-talk:visible")
    return tab


def shown(tab, state: str) -> None:
    tab.page.wait_for_function(f"recorder.state === '{state}'")


def told(tab) -> str:
    return tab.page.locator("#problem").inner_text()


def closed(tab) -> bool:
    free = tab.page.locator(".rec-free input")
    return not free.is_checked() and not tab.page.evaluate("recorder.capture.open")


def test_what_was_recorded_is_asked_and_the_next_recording_works(service, tab):
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.seconds >= 0.6")
    tab.page.evaluate(DIES)
    tab.wait("done")
    assert until(lambda: told(tab).startswith(SAID)), "what to do is not said any more"
    wave, rate_hz = service.encoded[-1]
    assert rate_hz == RATE_HZ and len(wave) >= 0.6 * RATE_HZ
    assert closed(tab) and len(service.requests) == 1
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.state === 'recording' && recorder.seconds >= 0.5")
    assert told(tab) == ""
    tab.page.locator(".rec-talk").click()
    assert until(lambda: len(service.requests) == 2)
    assert tab.problems == []


def test_hands_free_asks_what_was_said_so_far_ends_and_can_be_started_again(service, tab):
    pytest.importorskip("silero_vad")
    tab.page.evaluate(DIES_IN_A_SENTENCE)
    tab.page.locator(".rec-free").click()
    tab.page.wait_for_function("window.asks === window.before + 1")
    tab.wait("done")
    assert until(lambda: told(tab).startswith(SAID)) and len(service.encoded) >= 1
    shown(tab, "off")
    assert closed(tab)
    tab.page.locator(".rec-free").click()
    shown(tab, "hearing")
    assert told(tab) == "" and tab.problems == []


def test_where_nothing_was_said_hands_free_ends_with_the_sentence(service, tab):
    pytest.importorskip("silero_vad")
    tab.page.evaluate(DEAF)
    tab.page.locator(".rec-free").click()
    shown(tab, "listening")
    tab.page.evaluate(DIES)
    shown(tab, "off")
    assert until(lambda: told(tab).startswith(SAID))
    assert closed(tab) and service.requests == []


def test_a_recording_too_short_to_be_sent_says_what_became_of_the_microphone(service, tab):
    tab.page.evaluate(DEAF)
    tab.page.locator(".rec-talk").click()
    shown(tab, "recording")
    tab.page.evaluate(DIES)
    shown(tab, "off")
    assert until(lambda: told(tab).startswith(SAID)) and service.requests == []


def test_a_microphone_that_stays_muted_is_told_until_it_is_not(tab):
    tab.page.locator(".rec-talk").click()
    shown(tab, "recording")
    mute = """(muted) => {
      const [track] = recorder.capture.stream.getTracks();
      Object.defineProperty(track, "muted", { value: muted, configurable: true });
      track.dispatchEvent(new Event(muted ? "mute" : "unmute"));
    }"""
    tab.page.evaluate(mute, True)
    assert until(lambda: told(tab).startswith("The microphone is muted"))
    tab.page.evaluate(mute, False)
    assert until(lambda: told(tab) == "")
    assert tab.page.evaluate("recorder.state") == "recording" and tab.problems == []
