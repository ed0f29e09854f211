"""Impatient visitors in a real browser: pressing twice, asking before the answer is over, and Stop
at every moment; and the transcript that is left of it."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from moss_engine.audio.pcm import to_pcm16
from moss_engine.ui.config import PageConfig
from tests.ui.page_support import INFO, FakeService, Script, free_port, until

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed"),
]

HELD = "**/gradio_api/queue/join*"
AT_POINT = "([x, y]) => document.elementFromPoint(x, y)?.closest('#problem') ?? false"


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def served():
    from moss_engine.ui.server import launch

    service, port = FakeService(info=replace(INFO, max_text_chars=1000)), free_port()
    page = launch(service, PageConfig(port=port))
    yield service, port
    page.close(verbose=False)


@pytest.fixture
def service(served):
    served[0].reset()
    return served[0]


@pytest.fixture
def tab(browser, served):
    tab = browsing.Visit(browser, f"http://127.0.0.1:{served[1]}/")
    yield tab
    assert tab.problems == [], "the page complained"
    tab.close()


def said(tab, who: str) -> list[str]:
    return tab.page.locator(f"#chat .tr-{who}").all_inner_texts()


def test_two_presses_at_once_ask_once(service, tab):
    tab.text.fill("Only once.")
    tab.page.locator("#send").dblclick()
    tab.wait("done")
    tab.text.fill("And once more.")
    tab.text.press("Enter")
    tab.text.press("Enter")
    tab.wait("sent", "waiting", "thinking", "speaking")
    tab.wait("done")
    assert [request.messages[-1].content.text for request in service.requests] == [
        "Only once.",
        "And once more.",
    ]
    assert not tab.page.locator("#problem p").is_visible()


def test_a_question_replaces_the_answer_before_it(service, tab):
    service.script = Script(seconds=20.0, rtf=0.3)
    tab.ask("A long story.")
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.heard > 12000")
    service.script = Script(seconds=1.5, rtf=0.2)
    for _ in range(4):
        tab.page.locator(".chip:visible").first.click()
        tab.page.wait_for_function(
            "liveAudio.state.phase === 'speaking' && liveAudio.state.total < 24000 * 2"
        )
        tab.wait("done")
        if tab.state("underruns") == 0:
            break
    assert len(service.cancelled) == 1 and not service.open
    assert tab.state("lost") == 0, "a message of the new answer was overwritten by one of the old"
    assert tab.state("total") == round(1.5 * 24_000)
    assert until(
        lambda: "Stopped." in said(tab, "reading")[0] and "Stopped." not in said(tab, "reading")[-1]
    )


def test_a_question_over_an_answer_waits_for_no_time_limit(service, tab):
    service.script = Script(seconds=20.0, rtf=0.3)
    tab.ask("A long story.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    service.script = Script(seconds=0.6)
    tab.text.fill("A short one.")
    waited_ms = tab.page.evaluate("""async () => {
      const since = performance.now();
      const left = new Promise((leave) => document.addEventListener("liveaudio", function heard() {
        if (liveAudio.asking || liveAudio.state.total > 24000 || !liveAudio.state.total) return;
        document.removeEventListener("liveaudio", heard);
        leave(performance.now() - since);
      }));
      document.querySelector("#send").click();
      return left;
    }""")
    assert waited_ms < 1500, "the last message of the answer before was not noticed"
    tab.wait("done")


def test_what_is_typed_after_the_press_is_the_next_question(service, tab):
    """From rest and over an answer: the question is the text at the key, the box what came after."""
    service.script = Script(seconds=8.0, rtf=0.3)
    for number, first in enumerate(["From rest.", "Over an answer."], start=1):
        tab.text.fill(first)
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.type("And then")
        assert until(lambda n=number: tab.page.wait_for_timeout(20) or len(service.requests) == n)
        assert service.requests[-1].messages[-1].content.text == first
        tab.wait("speaking")
        assert tab.text.input_value() == "And then"
    tab.page.keyboard.press("Escape")


def test_many_quick_questions_are_each_asked_or_offered_again(service, tab):
    service.script = Script(seconds=0.3, rtf=0.2)
    texts = [f"Sentence number {number}." for number in range(30)]
    for text in texts:
        tab.text.fill(text)
        tab.page.keyboard.press("Enter")
    tab.wait("done")
    asked = {request.messages[-1].content.text for request in service.requests}
    offered = set(tab.page.locator(".unasked .chip").all_inner_texts())
    assert asked | offered | {tab.text.input_value()} >= set(texts)
    assert texts[-1] in asked, "the last one replaces those before it"


def test_a_refused_question_stays_beside_what_was_typed_meanwhile(service, tab):
    held = []
    tab.page.route(HELD, lambda route: held.append(route))
    tab.text.fill("Je ne sais pas où est la gare.")
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.type("Something else")
    assert until(lambda: tab.page.wait_for_timeout(20) or held)
    held[0].continue_()
    offer = tab.page.locator(".unasked .chip")
    offer.wait_for()
    assert offer.inner_text() == "Je ne sais pas où est la gare."
    assert tab.text.input_value() == "Something else" and service.requests == []
    assert "French" in tab.page.locator("#problem p").inner_text()
    tab.problems.clear()  # the browser's own word on the refusal


@pytest.mark.parametrize("pause_ms", [0, 20, 60, 150])
def test_stop_right_after_asking(service, tab, pause_ms):
    service.script = Script(seconds=20.0, rtf=0.3, first_s=1.0)
    tab.ask("Never mind.")
    tab.page.wait_for_timeout(pause_ms)
    tab.text.press("Escape")
    tab.wait("stopped")
    assert until(lambda: len(service.cancelled) == len(service.requests) and not service.open), (
        "nobody stopped it"
    )
    tab.page.wait_for_timeout(400)
    assert tab.state("phase") == "stopped" and not tab.sound().any()
    service.script = Script(seconds=0.6)
    tab.ask("But this.")
    tab.wait("speaking")
    tab.wait("done")
    assert tab.state("lost") == 0


def test_stop_before_the_question_has_reached_the_server(service, tab):
    held = []
    tab.page.route(HELD, lambda route: held.append(route))
    tab.ask("Too slow.")
    tab.page.wait_for_function("liveAudio.state.phase === 'sent'")
    assert until(lambda: tab.page.wait_for_timeout(20) or held)
    with tab.page.expect_response("**/gradio_api/run/predict"):  # Stop has reached the server
        tab.page.locator("#stop").click()
    tab.wait("stopped")
    for route in held:
        with tab.page.expect_response(HELD) as answer:
            route.continue_()
        assert answer.value.ok
    tab.page.wait_for_timeout(600)
    assert service.requests == [] and tab.state("phase") == "stopped"
    assert tab.text.input_value() == "Too slow." and said(tab, "reading") == []


def test_a_long_text_is_refused_whole_and_never_cut(service, tab):
    text = "too long " * 200
    tab.text.fill(text)
    tab.text.press("Enter")
    refusal = tab.page.locator("#problem p")
    refusal.wait_for(state="visible", timeout=10_000)
    assert (
        refusal.inner_text()
        == "The text has 1,800 characters, the limit is 1,000; send it in parts."
    )
    box, composer = refusal.bounding_box(), tab.page.locator("#composer").bounding_box()
    assert (
        box["width"] > 200
        and box["height"] > 10
        and box["y"] + box["height"] <= composer["y"] + composer["height"] + 1
    )
    assert tab.page.evaluate(AT_POINT, [box["x"] + 5, box["y"] + box["height"] / 2]), (
        "the sentence is covered or cut"
    )
    size = tab.page.evaluate("getComputedStyle(document.querySelector('#text textarea')).fontSize")
    assert size == "18px", "the refused text is shown smaller"
    assert tab.text.input_value() == text and service.requests == []
    assert tab.problems == [], "it was sent all the same"


def test_an_answer_can_be_heard_again_and_kept(service, tab):
    tab.ask("Keep this.")
    tab.wait("done")
    clip = tab.page.locator("#chat .tr-reading .clip")
    clip.wait_for()
    with tab.page.expect_download() as download:
        clip.locator(".clip-save").click()
    with open(download.value.path(), "rb") as file:
        pcm, rate_hz = soundfile.read(io.BytesIO(file.read()), dtype="int16")
    assert rate_hz == 24_000 and np.array_equal(np.trim_zeros(pcm, "f"), service.sent())
    assert len(pcm) == len(to_pcm16(np.zeros(round(1.2 * 24_000))))
    play = clip.locator(".clip-play")
    play.click()
    tab.page.wait_for_function(
        "document.querySelector('.clip-on') && document.querySelector('.clip-at').value > 0"
    )
    assert play.get_attribute("aria-label") == "Pause"
    tab.page.wait_for_function("!document.querySelector('.clip-on')")
    assert (
        play.get_attribute("aria-label") == "Play" and clip.locator(".clip-at").input_value() == "0"
    )


def test_a_clip_is_heard_although_a_reply_speaks(service, tab):
    service.script = Script(seconds=8.0, rtf=0.1)  # a busy machine takes its time to look
    tab.ask("To be heard again.")
    tab.wait("done")
    tab.page.wait_for_selector("#chat .clip")
    service.script = Script(seconds=20.0, rtf=0.2)
    first = tab.state("run")
    tab.ask("A long one meanwhile.")
    tab.page.wait_for_function(f"liveAudio.state.run !== '{first}' && liveAudio.heard > 12000")
    tab.page.locator("#chat .clip-play").first.click()
    tab.page.wait_for_function(
        "document.querySelector('.clip-on') && document.querySelector('.clip-at').value > 0"
    )
    assert tab.page.locator(".la-status").inner_text() == "Paused"
    tab.page.locator(".la-pause").click()
    tab.page.wait_for_function("!document.querySelector('.clip-on')")
    assert tab.page.locator(".la-status").inner_text() == "Speaking"


def test_a_clip_may_vanish_while_it_is_loaded(service, tab):
    tab.ask("Gone in a moment.")
    tab.wait("done")
    tab.page.route("**/gradio_api/file=**", lambda route: None)
    tab.page.locator("#chat .clip-play").click()
    tab.page.locator("#clear").click()
    assert until(lambda: tab.page.wait_for_timeout(20) or said(tab, "reading") == [])


def test_the_seed_of_a_reply_can_be_kept(service, tab):
    tab.page.locator("#settings button").first.click()
    tab.ask("Again the same.")
    tab.wait("done")
    tab.page.get_by_label("New seed for every reply").uncheck()
    seed = service.requests[-1].sampling.seed
    assert until(lambda: tab.page.locator("#seed input").input_value() == str(seed))
    tab.ask("Again the same.")
    tab.wait("sent", "waiting", "thinking", "speaking")
    tab.wait("done")
    assert service.requests[-1].sampling.seed == seed and len(service.requests) == 2


def test_markup_is_shown_as_it_was_typed(service, tab):
    text = "Is <b>2</b> < 3 & *4* > 1? <img src=x onerror=alert(1)>"
    tab.ask(text)
    tab.wait("done")
    assert tab.page.locator("#chat .tr-reading .tr-text").inner_text() == text
    assert tab.page.locator("#chat b, #chat img").count() == 0


def test_an_example_is_spoken_at_once(service, tab):
    chip = tab.page.locator(".chip:visible").nth(1)
    chip.click()
    tab.wait("done")
    assert service.requests[-1].messages[-1].content.text == chip.inner_text()
    tab.page.locator("#mode label", has_text="Small talk").click()
    assert tab.page.locator(".chip:visible").first.inner_text() == "Hello! Who are you?"
    assert tab.page.locator("#mode-notes p:visible").first.inner_text() == "Greetings, sums, days."
