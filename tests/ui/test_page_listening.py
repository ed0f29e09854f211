"""Talking to a checkpoint that understands no speech: a recogniser listens, the page says who, and
shows what was heard."""

from __future__ import annotations

import pytest

from moss_engine.talk.answer import Say
from moss_engine.ui.config import PageConfig
from tests.audio.test_turn_taking import SAMPLE
from tests.talk.talk_support import HEARD, Written, talking
from tests.ui.page_support import free_port
from tests.ui.test_page_talk import question, shown

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
QUESTION = {"name": "question.flac", "mimeType": "audio/flac", "buffer": SAMPLE.read_bytes()}
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def visit():
    from moss_engine.ui.server import launch

    service, _ = talking(Written([Say("It is noon."), Say("Have a rest.")]))
    page = launch(service, PageConfig(port=free_port()))
    with browsing.chromium() as browser:
        tab = browsing.Visit(browser, page.local_url)
        tab.page.wait_for_function("window.recorder?.ready")
        yield tab
        tab.close()
    page.close(verbose=False)


def choose(visit, does: str, given: str = "", output: str = "") -> None:
    """Set the page's switches."""
    for axis, value in (("does", does), ("input", given), ("output", output)):
        if value:
            visit.page.locator(
                f'.switches label:has(input[name="{axis}"][value="{value}"])'
            ).click()


def test_what_was_heard_stands_in_the_conversation_with_who_heard_it(visit):
    choose(visit, "chat", "speech", "speech")
    visit.page.wait_for_selector(".rec-file:visible")
    visit.page.locator(".rec-input").set_input_files(QUESTION)
    visit.wait("done")
    asked = visit.page.locator("#chat .tr-user")
    assert asked.locator(".tr-text").inner_text() == HEARD.text
    assert HEARD.recogniser in asked.locator(".tr-note").inner_text()
    assert asked.locator(".clip").count() == 1
    answer = visit.page.locator("#chat .tr-assistant .tr-text")
    answer.wait_for()
    assert answer.inner_text() == "It is noon. Have a rest."
    assert visit.page.locator('.fall-row[data-stage="listened"]').is_visible()
    assert visit.page.locator('.fall-row[data-stage="brain"]').is_hidden(), "nobody thought"


def test_a_written_answer_is_read(visit):
    choose(visit, "chat", "speech", "text")
    visit.page.locator(".rec-input").set_input_files(QUESTION)
    shown(visit, "off")
    visit.page.wait_for_function(
        "document.querySelectorAll('#chat .tr-assistant .tr-text').length === 2"
    )
    last = visit.page.locator("#chat .tr-assistant").last
    assert last.locator(".tr-text").inner_text() == "It is noon. Have a rest."
    assert last.locator(".clip").count() == 0 and visit.problems == []


def test_a_recording_without_a_voice_is_a_sentence(visit):
    pytest.importorskip("silero_vad")
    choose(visit, "chat", "speech", "speech")
    visit.page.locator(".rec-input").set_input_files(question())
    visit.page.get_by_text("There is no voice in this recording").first.wait_for()
    assert visit.page.locator("#chat .tr-assistant").count() == 2


def test_a_question_that_was_read_aloud_is_answered_if_that_is_wanted(visit):
    choose(visit, "read")
    visit.page.locator("#text textarea").fill("What time is it?")
    visit.page.locator("#send").click()
    offer = visit.page.locator("#chat .tr-reading .tr-offer")
    offer.wait_for()
    visit.wait("done")
    offer.click()
    visit.page.wait_for_function("document.querySelectorAll('#chat .tr-assistant').length === 3")
    last = visit.page.locator("#chat .tr-assistant").last
    assert last.locator(".tr-text").inner_text() == "It is noon. Have a rest."


def test_the_server_is_told_what_is_being_said_so_that_it_knows_an_echo(visit):
    visit.wait("done")
    visit.page.evaluate("""() => {
      const { line } = recorder;
      line.saying = () => "It is noon.";
      line.post = async (rest, body, headers) => {
        window.sent = headers;
        return { talking: false, utterance: "", seconds: 0, text: "", sure: true };
      };
      line.begin(true);
      line.push(new Int16Array(8));
    }""")
    visit.page.wait_for_function("window.sent?.['X-Saying'] === 'It%20is%20noon.'")
    assert "noon" in visit.page.evaluate("liveAudio.text")
    assert "rest" in visit.page.evaluate("liveAudio.saying"), "the last words of what was said"
