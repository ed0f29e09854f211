"""The first minute of somebody who knows nothing of the page: before Gradio's scripts are there, what it says
in plain words, and the way in for programs."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.request import urlopen

import httpx
import pytest

from moss_engine.api.request import Text
from moss_engine.build import build_service
from moss_engine.codec.resample import resample
from moss_engine.config import EngineConfig
from moss_engine.recogniser.base import RATE_HZ
from moss_engine.recogniser.load import load_recogniser
from moss_engine.text.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING
from moss_engine.ui.parts.words import TO_READ
from tests.ui.page_support import INFO, FakeService, Script, until

MOST_REQUESTS = 40


def test_the_document_names_this_page_and_all_its_addresses_are_found(url):
    text = httpx.get(url).text
    assert text.count("<title>MOSS-Speech Live</title>") == 1
    told = dict(
        re.findall(
            r'<meta (?:property|name)="((?:og|twitter):\w+|description)" content="([^"]+)">', text
        )
    )
    assert {"og:title", "og:image", "og:url", "og:description", "description"} <= set(told)
    assert len(re.findall('property="og:', text)) == len([name for name in told if "og:" in name])
    assert told["og:url"].rstrip("/") == url.rstrip("/") and "Gradio" not in " ".join(told.values())
    icons = httpx.get(f"{url}manifest.json").json()["icons"]
    paths = [
        told["og:image"],
        f"{url}favicon.ico",
        *(f"{url.rstrip('/')}/{icon['src'].lstrip('/')}" for icon in icons),
    ]
    for path in paths:
        with urlopen(path) as answer:
            assert answer.headers["Content-Type"].startswith("image/") and answer.read()


@pytest.mark.parametrize(
    ("pressed", "question"), [("#text textarea", "An early question."), (".la-example", TO_READ[0])]
)
def test_what_is_asked_before_gradios_scripts_are_there_is_taken_over(
    service, browser, url, pressed, question
):
    held, requests = [], []
    tab = browser.new_page()
    tab.on("request", lambda request: requests.append(request.url))
    tab.route("**/assets/*.js", lambda one: one.continue_() if held else held.append(one))
    tab.goto(url, wait_until="commit")
    tab.locator("#text textarea").fill("An early question.")
    tab.locator(pressed).press("Enter")
    tab.locator("#text textarea").fill("And a second")
    assert tab.locator(".next-asked span").inner_text() == question
    held[0].continue_()
    tab.wait_for_function("window.liveAudio?.state.phase === 'done'")
    assert service.texts[-1] == question
    assert tab.locator("#text textarea").input_value() == "And a second"
    assert tab.evaluate("document.activeElement.closest('#text') !== null")
    assert tab.locator("gradio-app #page").count() == 1
    own = [request for request in requests if request.startswith("http")]
    assert len(own) <= MOST_REQUESTS
    tab.close()


def test_gradios_sign_of_loading_moves_nothing_and_draws_nothing_once_it_is_gone(visit):
    tab = visit(
        init="""{
          const frame = requestAnimationFrame;
          [window.tops, window.frames] = [new Set(), 0];
          window.requestAnimationFrame = (draw) => (frames++, frame(draw));
          const look = () => {
            const page = document.querySelector("gradio-app #page");
            if (page && document.querySelector(".translucent")) tops.add(page.offsetTop);
          };
          new MutationObserver(look).observe(document, {
            childList: true, subtree: true, attributes: true,
          });
        }"""
    )
    tab.hear("Say something.")
    assert tab.page.evaluate("[...tops]") == [0], "or Gradio shows no sign of loading any more"

    def rests() -> bool:
        before = tab.page.evaluate("frames")
        tab.page.wait_for_timeout(500)
        return tab.page.evaluate("frames") - before < 5

    assert until(rests), "its clock goes on"


def test_a_written_answer_shows_nothing_that_plays(service, tab):
    tab.hear("This is heard.")
    read_out = tab.page.locator(".la-spoken")
    assert read_out.inner_text() == "", "it is read out over the voice"
    tab.forget()
    tab.choose("Write")
    tab.hear("In writing, please.")
    assert until(lambda: read_out.inner_text() == "In writing, please.")
    assert service.requests[-1].mode == "write" and len(tab.sound()) == 0
    player = tab.page.locator(".la-place, .la-pause, .la-time, .la-save")
    assert until(lambda: not any(part.is_visible() for part in player.all()))
    (told,) = tab.page.locator(".la-headline p:visible").all_inner_texts()
    figure, words = told.split("\n")
    assert words == "from your press to the first word" and 0 < float(figure.rstrip(" s")) < 30


def test_what_was_read_stands_once_with_what_was_said_differently(service, tab):
    tab.hear("Read me.")
    item = tab.page.locator("#chat li")
    tab.page.wait_for_selector("#chat .clip")
    assert item.count() == 1 and item.inner_text().count("Read me.") == 1
    assert tab.page.locator("#said-name").inner_text() == "Reading list"
    service.script = Script(seconds=0.6, spoken="twenty-five dollars")
    tab.hear("$25")
    spoken = tab.page.locator(".tr-spoken")
    assert until(lambda: spoken.all_inner_texts() == ["spoken as “twenty-five dollars”"])
    tab.choose("Small talk")
    service.script = Script(seconds=0.6, spoken="Hello.")
    tab.hear("Who are you?")
    assert until(lambda: item.count() == 4), "a talk is of two"
    assert tab.page.locator("#said-name").inner_text() == "Conversation"


def test_who_talks_or_types_hears_or_reads_and_talking_comes_first(visit, serve):
    info = replace(INFO, modes=PUBLISHED_MODES.modes, sampling=PUBLISHED_SAMPLING)
    service = FakeService(Script(seconds=0.6, rtf=0.1), info)
    talk = visit(serve(service))
    service.requests.clear()
    talk.page.wait_for_function("document.body.dataset.input === 'speech'")
    assert talk.page.locator(".rec-talk").is_visible() and not talk.text.is_visible()
    talk.page.get_by_role("button", name="Hear an example").click()
    talk.wait("done")
    talk.choose("Type, hear the answer")
    talk.hear("Typed and heard.")
    talk.choose("Type, read the answer")
    talk.ask("Typed and read.")
    assert until(lambda: len(service.requests) == 3)
    talk.wait("done")
    modes = [request.mode for request in service.requests]
    assert modes == ["text-to-speech", "text-to-speech", "text-to-text"], "an example is typed"
    assert service.texts[0] == "Hello! Who are you?"
    talk.page.reload()
    talk.page.wait_for_function(
        "window.liveAudio && document.querySelector('[value=text-to-text]')?.checked"
    )
    assert talk.text.is_visible(), "the choice is forgotten"
    talk.page.get_by_role("button", name="Listen", exact=True).click()
    shown = ["Type, hear the answer", "Speak, hear the answer", "Type, read the answer"]
    assert [mode.inner_text() for mode in talk.page.locator("#mode label:visible").all()] == shown


def test_about_asks_nobody_and_programs_are_told_this_address_which_one_click_copies(url, tab):
    """Also where the browser has no clipboard to write to, as on plain http."""
    page = tab.page
    page.wait_for_load_state("networkidle")  # Gradio's own modules come late
    before = len(tab.requests)
    page.get_by_role("button", name="About", exact=True).click()
    about = page.get_by_role("dialog")
    assert about.get_by_role("link").get_attribute("href").startswith("https://github.com/")
    page.keyboard.press("Escape")
    assert not about.is_visible() and tab.requests[before:] == [] and tab.problems == []
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
    engine = [tab.page.locator(part) for part in ("#panel", "#sampling")]
    assert not any(part.is_visible() for part in engine)
    tab.page.get_by_role("button", name="Engine", exact=True).click()
    assert engine[0].is_visible() and tab.page.locator(".views [aria-pressed=true]").count() == 1
    tab.page.goto("about:blank")
    tab.page.goto(url)
    tab.page.wait_for_selector("#panel")
    assert tab.page.evaluate("document.body.dataset.view") == "engine", "the choice is remembered"
    tab.page.goto(f"{url}#listen")
    tab.page.wait_for_function("document.body.dataset.view === 'listen'")
    tab.page.get_by_role("button", name="Engine", exact=True).click()
    tab.page.reload()
    tab.page.wait_for_selector("#panel")
    assert tab.page.evaluate("document.body.dataset.view") == "engine", "a press wins over the link"
    assert tab.problems == []
    tab.page.route("**/joined.js", lambda route: route.abort())
    tab.page.reload()
    assert tab.page.locator("#panel").is_visible(), "the page moves when its modules come"


def test_each_voice_is_a_card_that_can_be_heard(visit, serve):
    service = FakeService(info=replace(INFO, voices=("ada", "ben")))
    tab = visit(serve(service), view="listen")
    cards = tab.page.locator("#voice label")
    assert [name.strip() for name in cards.all_inner_texts()] == ["Ada", "Ben"]
    tab.text.fill("Not yet.")
    service.reset(Script(seconds=0.5, rtf=0.1))
    cards.nth(1).get_by_role("radio", name="ben", exact=True).wait_for()
    cards.nth(1).get_by_role("button", name="Hear ben", exact=True).click()
    tab.wait("done")
    assert service.requests[-1].voice == "ben" and tab.text.input_value() == "Not yet."
    chosen = tab.page.locator("#voice label:has(:checked)")
    assert chosen.inner_text().strip() == "Ada", "hearing a voice chose it"
    tab.page.emulate_media(forced_colors="active")
    outlines = "labels => labels.map((label) => getComputedStyle(label).outlineStyle)"
    assert cards.evaluate_all(outlines) == ["solid", "none"], "a colour alone says which is chosen"
    cards.nth(1).locator("span").click()
    tab.text.press("Enter")
    assert until(lambda: len(service.requests) == 2)
    assert service.requests[-1].messages[-1].content == Text("Not yet.")
    assert service.requests[-1].voice == "ben" and tab.problems == []


# The built-in voice: one click, and a sentence is heard that can be understood.


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def test_one_click_and_a_sentence_is_understood(serve, visit):
    import torch

    pytest.importorskip("moonshine_voice")
    recogniser, _ = load_recogniser("auto")
    assert recogniser is not None
    service = build_service(EngineConfig())
    service.start()
    try:
        tab = visit(serve(service))
        tab.page.wait_for_function("document.body.dataset.input")
        start = tab.page.locator(".la-start")
        assert start.locator("p").inner_text().startswith("MOSS-Speech is a language model")
        tab.page.get_by_role("button", name="Hear an example").click()
        tab.page.wait_for_function("liveAudio.heard > 0")
        tab.wait("done")
        assert tab.page.locator(".la-text").inner_text() == TO_READ[0] and not start.is_visible()
        sound = torch.tensor(tab.sound())
        wave = resample(sound, tab.state("rate"), RATE_HZ).numpy()
        heard, said = words(recogniser.transcribe(wave).text), words(TO_READ[0])
        assert sum(word in heard for word in said) >= 0.8 * len(said), heard
        own = ("http://127.0.0.1:", "blob:", "data:")
        assert tab.problems == [] and all(url.startswith(own) for url in tab.requests)
    finally:
        recogniser.close()
        service.close()
