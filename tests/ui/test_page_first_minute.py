"""The first minute of somebody who knows nothing of the page, and what it says in plain words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.api.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING
from moss_engine.ui.config import PageConfig
from tests.ui.page_support import INFO, FakeService, Script, free_port, until

pytestmark = pytest.mark.browser


def headline(tab) -> list[str]:
    return tab.page.locator(".la-headline p").all_inner_texts()


def test_one_click_is_enough_to_hear_what_this_is(service, tab):
    service.script = Script(seconds=3.0, rtf=0.2)
    assert (
        tab.page.locator(".la-start p").inner_text().startswith("MOSS-Speech is a language model")
    )
    assert tab.page.evaluate("liveAudio.scope.columns.length") > 150, "the scope is empty"
    tab.buffer_whole_replies()
    tab.page.wait_for_function("liveAudio.player.sink?.ready")
    tab.page.get_by_role("button", name="Hear an example").click()
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.state.heardAfterMs > 0")
    tab.wait("done")
    tab.assert_heard(service.sent())
    assert (
        tab.page.locator(".la-text").inner_text() == service.requests[0].messages[-1].content.text
    )
    assert not tab.page.locator(".la-start").is_visible()
    own = ("http://127.0.0.1:", "blob:", "data:")
    assert tab.problems == [] and all(url.startswith(own) for url in tab.requests)


def test_three_figures_say_how_it_went_in_words(service, tab):
    service.script = Script(seconds=2.0, rtf=0.2)
    tab.ask("How did it go?")
    tab.wait("done")
    said = tab.state("underruns") or headline(tab)
    after_s = f"{tab.state('heardAfterMs') / 1000:.2f} s"
    assert until(
        lambda: headline(tab)[0].split("\n") == [after_s, "from your press to the first sound"]
    )
    assert headline(tab)[1].split("\n")[1] == "faster than it is spoken"
    if isinstance(said, list):
        assert headline(tab)[2].split("\n") == ["No gaps", "the sound never had to wait"]


def test_a_gap_is_admitted_in_words(service, tab):
    service.script = Script(seconds=1.0, rtf=0.2, stall_s=4.0)
    tab.ask("There is a hole in this.")
    tab.wait("done")
    assert until(lambda: "gap" in headline(tab)[2] and "had to wait" in headline(tab)[2])


def test_the_one_button_sends_and_stops(service, tab):
    service.script = Script(seconds=20.0, rtf=0.3)
    send, stop = tab.page.locator("#send"), tab.page.locator("#stop")
    assert send.is_visible() and not stop.is_visible()
    tab.text.fill("A long one.")
    place = send.bounding_box()
    send.click()
    tab.wait("speaking")
    assert stop.is_visible() and not send.is_visible()
    assert abs(stop.bounding_box()["y"] - place["y"]) < 6
    tab.page.wait_for_timeout(600)
    stop.click()
    tab.wait("stopped")
    assert send.is_visible() and not stop.is_visible()


def test_engine_details_are_open_where_there_is_room_and_the_choice_is_kept(service, visit):
    narrow, wide = visit(viewport={"width": 700, "height": 900}), visit()
    opener = ".details-open"
    assert narrow.page.locator(opener).get_attribute("aria-expanded") == "false"
    assert wide.page.locator(opener).get_attribute("aria-expanded") == "true"
    narrow.page.locator(opener).click()
    narrow.page.reload()
    narrow.page.wait_for_function("window.liveAudio?.ready")
    assert narrow.page.locator(opener).get_attribute("aria-expanded") == "true"
    assert narrow.page.locator("#panel .facts").is_visible()


def test_what_was_read_stands_once_with_what_was_said_differently(service, tab):
    tab.ask("Read me.")
    tab.wait("done")
    item = tab.page.locator("#chat li")
    tab.page.wait_for_selector("#chat .clip")
    assert item.count() == 1 and item.inner_text().count("Read me.") == 1
    assert tab.page.locator(".said-name").inner_text() == "Reading list"
    service.script = Script(seconds=0.6, spoken="twenty-five dollars")
    tab.ask("$25")
    tab.wait("done")
    assert until(
        lambda: (
            tab.page.locator(".tr-spoken").all_inner_texts() == ["spoken as “twenty-five dollars”"]
        )
    )
    tab.page.locator("#mode label", has_text="Small talk").click()
    service.script = Script(seconds=0.6, spoken="Hello.")
    tab.ask("Who are you?")
    tab.wait("done")
    assert until(lambda: item.count() == 4), "a talk is of two"
    assert tab.page.locator(".said-name").inner_text() == "Conversation"


def test_the_length_of_a_text_is_counted_before_it_is_too_long(visit):
    tab = visit()
    counter = tab.page.locator(".counter")
    tab.text.fill("a" * 400)
    assert not counter.is_visible()
    tab.text.fill("a" * 999)
    assert counter.inner_text() == "999 of 1,000 characters"
    tab.text.fill("a" * 1001)
    assert "over" in counter.get_attribute("class")


def test_about_says_what_this_is_and_asks_nobody(visit):
    tab = visit()
    before = len(tab.requests)
    tab.page.get_by_role("button", name="About", exact=True).click()
    about = tab.page.get_by_role("dialog")
    assert about.get_by_role("link").get_attribute("href").startswith("https://github.com/")
    tab.page.keyboard.press("Escape")
    assert not about.is_visible() and tab.requests[before:] == [] and tab.problems == []


@pytest.fixture(scope="module")
def moss():
    from moss_engine.ui.server import launch

    info = replace(INFO, modes=PUBLISHED_MODES.modes, sampling=PUBLISHED_SAMPLING)
    service, port = FakeService(info=info), free_port()
    page = launch(service, PageConfig(port=port))
    yield service, f"http://127.0.0.1:{port}/"
    page.close(verbose=False)


@pytest.fixture
def talk(browser, moss):
    from tests.ui.page_browser import Visit

    moss[0].reset()
    tab = Visit(browser, moss[1])
    tab.page.wait_for_function("document.body.dataset.input === 'speech'")
    yield tab
    tab.close()


def press(tab, switch: str) -> None:
    tab.page.locator(".switches label", has_text=switch).click()


def test_two_switches_choose_among_four_modes_and_talking_comes_first(moss, talk):
    assert not talk.page.locator("#mode").is_visible()
    assert talk.page.get_by_role("group", name="You").get_by_role("radio").count() == 2
    assert talk.page.locator(".rec-talk").is_visible() and not talk.text.is_visible()
    press(talk, "type")
    talk.ask("Typed and heard.")
    talk.wait("done")
    press(talk, "written")
    talk.ask("Typed and read.")
    assert until(lambda: len(moss[0].requests) == 2)
    talk.wait("done")
    assert [request.mode for request in moss[0].requests] == ["text-to-speech", "text-to-text"]
    talk.page.reload()
    talk.page.wait_for_function(
        "window.liveAudio?.ready && document.querySelector('[name=output][value=text]')?.checked"
    )
    assert talk.text.is_visible(), "the choice is forgotten"


def test_an_example_is_typed_whatever_the_switches_say(moss, talk):
    talk.page.wait_for_timeout(300)
    talk.page.get_by_role("button", name="Hear an example").click()
    talk.wait("speaking")
    assert moss[0].requests[0].mode == "text-to-speech"
    assert moss[0].requests[0].messages[-1].content.text == "Hello! Who are you?"
