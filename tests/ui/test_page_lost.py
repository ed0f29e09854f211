"""What a visitor meets when something goes away in the middle of an answer: network, reply, sound
or page."""

from __future__ import annotations

import pytest

from moss_engine.ui.config import PageConfig
from tests.ui.page_support import FakeService, Script, free_port, until
from tests.ui.wire import Wire

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed"),
]

LONG = Script(seconds=60.0, rtf=0.9)
SENTENCE = "The connection to the server was lost"
WAITS = f"{SENTENCE}. This page waits for it and then comes back by itself, with what you typed."


@pytest.fixture(scope="module")
def served():
    from moss_engine.ui.server import launch

    service, port = FakeService(), free_port()
    page = launch(service, PageConfig(port=port, host="0.0.0.0"))
    wire = Wire(port)
    yield service, wire
    wire.cut()
    page.close(verbose=False)


@pytest.fixture
def wire(served):
    return served[1]


@pytest.fixture
def service(served):
    served[0].reset()
    return served[0]


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium("--host-resolver-rules=MAP speech.test 127.0.0.1") as browser:
        yield browser


@pytest.fixture
def tab(browser, served, request):
    host = getattr(request, "param", "127.0.0.1")
    tab = browsing.Visit(browser, f"http://{host}:{served[1].port}/")
    yield tab
    tab.close()


def status(tab) -> str:
    return tab.page.locator(".la-status").inner_text()


def arrived(tab) -> None:
    tab.page.wait_for_function("window.liveAudio?.ready")
    tab.page.wait_for_selector("#mode input:checked", state="attached")


def test_a_cut_connection_is_said_and_the_page_comes_back_with_what_was_typed(service, wire, tab):
    service.script = LONG
    tab.ask("This answer is cut off.")
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.heard > 12000")
    wire.cut()
    try:
        tab.wait("lost")
        assert (
            status(tab) == "Cut off"
            and SENTENCE in tab.page.locator("#problem [role=alert]").inner_text()
        )
        assert until(lambda: not service.open), "the reply goes on for nobody"
        tab.assert_silent()
        tab.page.locator(".la-pause").click()
        tab.wait("speaking")
        tab.wait("done")
        tab.text.fill("And this one is heard.")
        tab.page.evaluate("window.before = true")
    finally:
        wire.mend()
    tab.page.wait_for_function("!window.before")
    arrived(tab)
    assert until(
        lambda: tab.page.wait_for_timeout(50) or tab.text.input_value() == "And this one is heard."
    )
    service.reset()
    tab.text.press("Enter")
    tab.wait("done")
    assert tab.page.locator(".la-text").inner_text() == "And this one is heard."
    assert not tab.page.locator("#problem p").is_visible()


@pytest.mark.parametrize(
    "tab", ["127.0.0.1", "speech.test"], indirect=True, ids=["worklet", "scheduled"]
)
def test_an_answer_that_silently_breaks_off_is_said_and_the_next_one_is_heard(service, wire, tab):
    service.script = LONG
    tab.ask("Nobody says that this is over.")
    tab.wait("speaking")
    wire.swallow()
    tab.wait("lost")
    assert SENTENCE in tab.page.locator("#problem").inner_text()


@pytest.mark.parametrize("noticed", [False, True], ids=["at_once", "noticed_while_typing"])
def test_a_question_that_cannot_leave_is_said_and_kept(service, tab, noticed):
    problem = tab.page.locator("#problem")
    tab.page.mouse.click(5, 5)
    tab.text.fill("Nobody takes")
    tab.context.set_offline(True)
    if noticed:  # what is asked about a text while it is typed finds nobody; Gradio sends no more
        until(lambda: tab.page.wait_for_timeout(50) or problem.inner_text())
        assert problem.inner_text() == WAITS
        tab.text.fill("Nobody takes th")
        assert problem.inner_text() == WAITS
    tab.ask("Nobody takes this.")
    tab.wait("lost")
    assert until(lambda: tab.page.wait_for_timeout(50) or SENTENCE in problem.inner_text())
    assert tab.text.input_value() == "Nobody takes this." and service.requests == []


def test_a_slow_server_is_not_taken_for_a_lost_one(service, tab):
    service.script = Script(seconds=1.2, first_s=9.0)
    tab.ask("Take your time.")
    tab.wait("speaking", "lost")
    assert tab.state("phase") == "speaking"
    tab.wait("done")


def test_sound_that_the_browser_takes_away_waits_for_the_visitor(service, tab):
    service.script = Script(seconds=4.0, rtf=0.05)
    tab.page.mouse.click(5, 5)
    tab.buffer_whole_replies()
    tab.ask("A telephone rings in the middle of this.")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 12000")
    tab.page.evaluate("liveAudio.player.context.suspend()")
    tab.page.wait_for_selector(".la-paused")
    heard = tab.page.evaluate("liveAudio.heard")
    tab.page.wait_for_timeout(600)
    assert tab.page.evaluate("liveAudio.heard") == heard, "the caption runs on without the sound"
    assert status(tab) == "Paused" and tab.state("phase") == "speaking"
    tab.page.locator(".la-pause").click()
    tab.page.wait_for_function("liveAudio.player.context.state === 'running'")
    tab.page.wait_for_selector(".la-paused", state="detached")
    assert status(tab) == "Speaking"
    tab.wait("done")
    tab.assert_heard(service.sent())


def test_a_page_left_in_the_middle_of_an_answer_ends_it(service, tab):
    service.script = LONG
    tab.ask("Left in the middle.")
    tab.wait("speaking")
    tab.page.reload()
    arrived(tab)
    assert until(lambda: not service.open), "the reply goes on for nobody"
    tab.problems.clear()  # Gradio takes its own end for an error of the reply
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.ask("Here again.")
    tab.wait("done")
    assert tab.problems == []


def test_after_stop_the_panel_shows_the_blocks_as_they_are(service, tab):
    service.script = LONG
    tab.ask("Stopped in the middle.")
    tab.wait("speaking")
    blocks = tab.page.locator('[data-key="blocks"] b')
    assert until(lambda: blocks.inner_text().startswith("12 /"))
    tab.page.locator("#stop").click()
    tab.wait("stopped")
    assert until(lambda: tab.page.wait_for_timeout(50) or blocks.inner_text() == "0 / 1024")
    kept = tab.page.locator('[data-key="blocks"] .tile-value small')
    assert kept.inner_text() == "40 kept", "what is kept until it is needed is free"
