"""The first minute of somebody who knows nothing of the page, what it says in plain words, and the
way in for programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.api.request import Text
from moss_engine.text.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING
from tests.ui.page_support import INFO, FakeService, Script, until

pytestmark = pytest.mark.browser


def headline(tab) -> list[str]:
    return tab.page.locator(".la-headline p").all_inner_texts()


def test_one_click_is_enough_to_hear_what_this_is(service, tab):
    service.script = Script(seconds=2.0, rtf=0.1)
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


def test_three_figures_say_how_it_went_in_words_and_a_gap_is_admitted(service, tab):
    service.script = Script(seconds=1.6, rtf=0.2)
    tab.ask("How did it go?")
    tab.wait("done")
    after_s = f"{tab.state('heardAfterMs') / 1000:.2f} s"
    assert until(
        lambda: headline(tab)[0].split("\n") == [after_s, "from your press to the first sound"]
    )
    assert headline(tab)[1].split("\n")[1] == "faster than it is spoken"
    if not tab.state("underruns"):
        assert headline(tab)[2].split("\n") == ["No gaps", "the sound never had to wait"]
    service.script = Script(seconds=1.0, rtf=0.2, stall_s=3.0)
    tab.ask("There is a hole in this.")
    tab.wait("speaking")
    tab.wait("done")
    assert until(lambda: "gap" in headline(tab)[2] and "had to wait" in headline(tab)[2])
    late = "{ ...liveAudio.state, underruns: 2, figures: { rtf: 0.5, audio_s: 2 } }"
    tab.page.evaluate(f"document.dispatchEvent(new CustomEvent('liveaudio', {{ detail: {late} }}))")
    assert headline(tab)[1].split("\n") == ["2.0×", "made faster than it is spoken; it came late"]


def test_a_written_answer_shows_nothing_that_plays(service, tab):
    tab.page.locator("#mode label", has_text="Write").click()
    tab.ask("In writing, please.")
    tab.wait("done")
    player = tab.page.locator(".la-scope, .la-pause, .la-time, .la-speed, .la-save")
    assert not any(part.is_visible() for part in player.all())
    (told,) = tab.page.locator(".la-headline p:visible").all_inner_texts()
    assert told.endswith("from your question to the first word")


def test_what_was_read_stands_once_with_what_was_said_differently(service, tab):
    tab.ask("Read me.")
    tab.wait("done")
    item = tab.page.locator("#chat li")
    tab.page.wait_for_selector("#chat .clip")
    assert item.count() == 1 and item.inner_text().count("Read me.") == 1
    assert tab.page.locator("#said-name").inner_text() == "Reading list"
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
    assert tab.page.locator("#said-name").inner_text() == "Conversation"


def test_about_says_what_this_is_and_asks_nobody(tab):
    before = len(tab.requests)
    tab.page.get_by_role("button", name="About", exact=True).click()
    about = tab.page.get_by_role("dialog")
    assert about.get_by_role("link").get_attribute("href").startswith("https://github.com/")
    tab.page.keyboard.press("Escape")
    assert not about.is_visible() and tab.requests[before:] == [] and tab.problems == []


@pytest.fixture(scope="module")
def moss(serve):
    info = replace(INFO, modes=PUBLISHED_MODES.modes, sampling=PUBLISHED_SAMPLING)
    service = FakeService(info=info)
    return service, serve(service)


@pytest.fixture
def talk(visit, moss):
    moss[0].reset()
    tab = visit(moss[1])
    tab.page.wait_for_function("document.body.dataset.input === 'speech'")
    return tab


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


def test_programs_are_told_this_address_and_one_click_copies(url, tab):
    """Also where the browser has no clipboard to write to, as on plain http."""
    page = tab.page
    page.evaluate("""() => document.addEventListener("copy", () => {
      window.copied = String(getSelection());
    })""")
    page.click(".programs-open")
    ways = page.eval_on_selector_all("code.way", "all => all.map((one) => one.textContent)")
    assert len(ways) == 3 and all(f"{url}v1" in way for way in ways)
    assert not any("@" in way for way in ways)
    script = ways[2].rpartition("\n")[0]
    assert page.evaluate(f"async () => {{ {script} return answer.status; }}") == 200
    for number, clipboard in enumerate(
        ("undefined", "{ writeText: async (text) => { window.copied = text; } }")
    ):
        page.evaluate(
            f"() => Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard}, configurable: true }})"
        )
        page.locator(".way-copy").nth(number).click()
        page.locator(".way-copy").nth(number).filter(has_text="Copied").wait_for()
        assert page.evaluate("() => window.copied.trim()") == ways[number].strip()


def test_listening_comes_first_and_the_engine_is_a_press_away(visit, url):
    tab = visit(url, view="")
    engine = [tab.page.locator(part) for part in ("#panel", "#sampling", ".la-axes")]
    assert not any(part.is_visible() for part in engine)
    tab.page.get_by_role("button", name="Engine", exact=True).click()
    assert engine[0].is_visible() and tab.page.locator(".views [aria-pressed=true]").count() == 1
    tab.page.goto("about:blank")
    tab.page.goto(url)
    tab.page.wait_for_selector("#panel")
    assert tab.page.evaluate("document.body.dataset.view") == "engine", "the choice is remembered"
    tab.page.goto(f"{url}#listen")
    tab.page.wait_for_function("document.body.dataset.view === 'listen'")
    assert tab.problems == []


def test_each_voice_is_a_card_that_can_be_heard(visit, serve):
    service = FakeService(info=replace(INFO, voices=("ada", "ben")))
    tab = visit(serve(service), view="listen")
    cards = tab.page.locator("#voice label")
    assert [name.strip() for name in cards.all_inner_texts()] == ["Ada", "Ben"]
    tab.text.fill("Not yet.")
    service.reset()
    cards.nth(1).get_by_role("button", name="Hear this voice").click()
    tab.wait("done")
    assert service.requests[-1].voice == "ben" and tab.text.input_value() == "Not yet."
    assert tab.page.locator("#voice label.selected").inner_text().strip() == "Ada", "not chosen"
    cards.nth(1).locator("span").click()
    tab.text.press("Enter")
    assert until(lambda: len(service.requests) == 2)
    assert service.requests[-1].messages[-1].content == Text("Not yet.")
    assert service.requests[-1].voice == "ben" and tab.problems == []
