"""The player around a reply: its waveform, replays, the comparison of two, what is saved, and figures
of the panel."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from moss_engine.api.events import CodecRun
from moss_engine.ui.replay import MAX_FILE_BYTES
from tests.ui.page_support import RATE_HZ, Script, until

pytestmark = pytest.mark.browser

DROP = """([name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name, { type: "application/json" }));
  document.querySelector("#live").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
}"""


def made(service, tab, seconds: float) -> None:
    """A reply that is there as a whole before it is heard."""
    service.script = Script(seconds=seconds, rtf=0.01)
    tab.page.mouse.click(5, 5)
    tab.page.wait_for_function("liveAudio.player.sink?.ready")
    tab.buffer_whole_replies()
    tab.ask("Everything at once.")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 2000")


def test_a_press_on_the_waveform_is_heard_from_there(service, tab):
    made(service, tab, 1.6)
    tab.wait("done")
    place = tab.page.locator(".la-place")
    assert until(lambda: place.get_attribute("max") == "1.6"), "it is not seen whole"
    box = place.bounding_box()
    tab.forget()
    tab.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    tab.wait("speaking")
    tab.wait("done")
    heard, sent = np.trim_zeros(tab.captured(), "b"), service.sent()
    start = len(sent) - len(heard)
    assert abs(start - 1.6 * RATE_HZ / 2) < RATE_HZ * 0.1
    assert np.array_equal(heard, sent[start:])


def test_the_keyboard_goes_back_and_on(service, tab):
    made(service, tab, 6.0)
    place = tab.page.locator(".la-place")
    place.press("ArrowRight")
    tab.page.wait_for_function("liveAudio.heard > 24000")
    place.press("PageDown")
    tab.page.wait_for_function("liveAudio.heard < 20000")
    place.press("End")
    tab.wait("done")
    assert until(lambda: place.get_attribute("aria-valuetext") == "0:06.0 of 0:06.0")
    assert tab.state("underruns") == 0 and tab.problems == []


def test_going_back_in_a_reply_that_is_still_made_loses_nothing(service, tab):
    service.script = Script(seconds=3.0, rtf=0.5)
    tab.ask("Once more, while it goes on.")
    tab.page.wait_for_function("liveAudio.heard > 24000")
    tab.page.locator(".la-place").press("Home")
    tab.page.wait_for_function("liveAudio.heard < 10000")
    tab.forget()
    tab.wait("done")
    assert tab.state("total") == 3 * RATE_HZ and tab.state("lost") == 0
    heard = tab.page.evaluate("liveAudio.state.furthest")
    assert heard > 24000, "how far the ear came is forgotten"


def same_seed(tab) -> None:
    tab.page.locator("#settings button").first.click()
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.page.locator("#seed input").fill("7")


def test_a_kept_reply_stands_beside_the_next_one(service, tab):
    same_seed(tab)
    service.script = Script(seconds=0.6, rtf=0.2)
    tab.hear("One two three four.")
    tab.page.get_by_role("button", name="Compare with the next reply").click()
    same = tab.page.locator(".versus-same")
    assert same.inner_text() == "Ask again, and the next reply stands beside this one."
    tab.hear("One two three four.")
    assert until(lambda: same.inner_text() == "All tokens are the same.")
    others = tab.page.locator(".tile-other").all_inner_texts()
    assert len(others) > 10 and all(text.startswith("A ") for text in others)
    assert tab.page.locator(".fall-row .other").first.bounding_box()["width"] > 0
    assert tab.page.locator(".ids-roll .differs").count() == 0
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.hear("One two three four.")
    assert until(lambda: re.fullmatch(r"The first \d+ tokens are the same.", same.inner_text()))
    assert until(lambda: tab.page.locator(".ids-roll .differs").count() > 0)
    assert tab.page.locator(".versus-text").inner_text() == "One two three four."
    play = tab.page.get_by_role("button", name="Play A", exact=True)
    play.click()
    tab.page.wait_for_selector(".versus-play[aria-pressed=true]")
    tab.page.wait_for_selector(".versus-play[aria-pressed=false]")
    tab.page.get_by_role("button", name="Stop comparing").click()
    assert not play.is_visible() and tab.problems == []


def saved(tab, tmp_path, what: str):
    """The file that the menu gives."""
    with tab.page.expect_download() as download:
        tab.page.locator(".la-save").click()
        tab.page.locator(f".la-{what}").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_shared_reply_is_one_file_that_plays_on_opening(service, browser, visit, tmp_path):
    service.script = Script(seconds=0.4, rtf=0.2)
    tab = visit(view="listen")
    text = "Shared </script> with <b>everybody</b>."
    tab.hear(text)
    path = saved(tab, tmp_path, "share")
    assert path.suffix == ".html" and "://" not in path.read_text("utf-8").lower()
    with browser.new_context(offline=True, bypass_csp=True) as context:  # waiting needs eval
        page, problems = context.new_page(), []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_function("document.querySelector('audio').ended")
        assert page.locator("#text").inner_text() == text
        page.wait_for_function("document.querySelectorAll('#text .said').length === 4")
        assert problems == []


def test_captions_are_files_in_step_with_the_sound(service, tab, tmp_path):
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.ask("This is one. Tom & Ann.")
    tab.wait("done")
    srt, vtt = (saved(tab, tmp_path, name).read_text("utf-8") for name in ("srt", "vtt"))
    first, second = srt.strip().split("\n\n")
    assert first.startswith("1\n00:00:00,000 --> ") and first.endswith("\nThis is one.")
    begins = first.split("\n")[1].split(" --> ")[1]
    assert second == f"2\n{begins} --> 00:00:01,200\nTom & Ann."
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> ") and "\nTom &amp; Ann.\n" in vtt


def drop(tab, text: str, name: str = "reply.json") -> None:
    tab.page.evaluate(DROP, [name, text])


def kept(tab, tmp_path) -> str:
    return saved(tab, tmp_path, "keep").read_text("utf-8")


def play_when_whole(tab) -> None:
    """No machine is too slow to play a reply that has come as a whole."""
    tab.page.wait_for_function("liveAudio.player.sink?.node")
    tab.buffer_whole_replies()


def complaint(tab) -> str:
    return tab.page.locator("#problem p").inner_text()


@pytest.mark.browser
def test_a_kept_reply_sounds_the_same_when_it_is_dropped_on_the_page(service, tab, tmp_path):
    tab.page.locator("#settings button").first.click()
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.page.locator("#seed input").fill("50")
    service.script = Script(seconds=1.2, rtf=0.1)
    play_when_whole(tab)
    tab.hear("One two three four.")
    first, ids = service.sent(), tab.state("ids")
    tab.assert_heard(first)
    file = kept(tab, tmp_path)
    assert json.loads(file)["made_by"] == {"checkpoint": "c0ffee" * 10, "codec": "decade" * 10}
    tab.page.reload()
    tab.page.wait_for_function("window.liveAudio?.ready && document.body.dataset.input")
    tab.page.mouse.click(5, 300)
    play_when_whole(tab)
    drop(tab, file)
    tab.wait("done")
    tab.assert_heard(first)
    assert service.requests[-1].recorded and tab.state("ids") == ids
    assert tab.page.locator(".la-text").inner_text() == "One two three four."
    assert tab.page.locator(".la-again").is_visible() and tab.state("seed") == 50
    assert json.loads(kept(tab, tmp_path))["ids"] == ids, "it cannot be kept once more"
    assert tab.problems == []


def test_a_refused_file_silences_nothing_and_escape_closes_the_menu_first(service, tab):
    service.script = Script(seconds=20.0, rtf=0.2)
    tab.ask("A long one.")
    tab.wait("speaking")
    for text, words in (
        ("{}", "no replay file"),
        ("x" * (MAX_FILE_BYTES + 1), "larger than 200 kB"),
    ):
        drop(tab, text)
        assert until(lambda words=words: words in complaint(tab))
    assert tab.state("phase") == "speaking" and len(service.requests) == 1
    tab.page.locator(".la-save").click()
    assert tab.page.locator(".la-wav").is_visible()
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator(".la-wav").is_visible() and tab.state("phase") == "speaking"
    tab.page.keyboard.press("Escape")
    assert until(lambda: tab.state("phase") == "stopped")


def tile(tab, key: str):
    return tab.page.locator(f".tile[data-key={key}]")


def test_the_codec_s_run_is_shown(service, tab):
    service.script = Script(seconds=0.6, rtf=0.2, codec=CodecRun(0.032, 2))
    tab.hear("One two three four.")
    codec = tile(tab, "codec_ms")
    assert until(lambda: codec.locator("b").inner_text() == "32.0")
    assert codec.locator(".tile-value small").inner_text() == "ms for 2.0 replies"
    assert "without the wait for its turn" in codec.locator(".tip").text_content()
    assert tab.problems == []


def test_a_token_that_is_called_like_a_method_of_javascript_is_shown_as_it_stands(tab):
    pieces = ["constructor", " toString", "\n"]
    tab.page.evaluate(
        """(pieces) => document.dispatchEvent(new CustomEvent("liveaudio", {
          detail: { ...liveAudio.state, run: "0123abcd", ids: [0, 1, 2], pieces: { ...pieces } },
        }))""",
        pieces,
    )
    shown = tab.page.locator(".ids-roll span").all_text_contents()
    assert shown == ["constructor", "toString", "\u21b5"]


def test_a_server_that_is_slow_to_begin_is_given_more_time(service, tab):
    service.script = Script(seconds=1.0, chunk_s=0.2, first_s=0.02, rtf=0.05)
    tab.hear("At once.")
    quick_ms = tab.state("target")
    service.script = Script(seconds=1.0, chunk_s=0.2, first_s=0.4, rtf=0.05)
    tab.hear("Late.")
    assert tab.state("target") > quick_ms + 200
