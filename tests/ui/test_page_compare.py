"""Two replies side by side, a reply as a file of its own, and replays at another speed."""

from __future__ import annotations

import re

import pytest

from tests.ui.page_support import Script, until

pytestmark = pytest.mark.browser


def same_seed(tab) -> None:
    tab.page.locator("#settings button").first.click()
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.page.locator("#seed input").fill("7")


def test_a_kept_reply_stands_beside_the_next_one(service, tab):
    same_seed(tab)
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.ask("One two three four.")
    tab.wait("done")
    tab.page.get_by_role("button", name="Compare with the next reply").click()
    same = tab.page.locator(".versus-same")
    assert same.inner_text() == "Ask again, and the next reply stands beside this one."
    tab.ask("One two three four.")
    tab.wait("done")
    assert until(lambda: same.inner_text() == "All tokens are the same.")
    others = tab.page.locator(".tile-other").all_inner_texts()
    assert len(others) > 10 and all(text.startswith("A ") for text in others)
    assert tab.page.locator(".fall-row .other").first.bounding_box()["width"] > 0
    assert tab.page.locator(".ids-roll .differs").count() == 0
    service.script = Script(seconds=2.4, rtf=0.2)
    tab.ask("One two three four.")
    tab.wait("done")
    assert until(lambda: re.fullmatch(r"The first \d+ tokens are the same.", same.inner_text()))
    assert until(lambda: tab.page.locator(".ids-roll .differs").count() > 0)
    assert tab.page.locator(".versus-text").inner_text() == "One two three four."
    play = tab.page.get_by_role("button", name="Play A", exact=True)
    play.click()
    tab.page.wait_for_selector(".versus-play[aria-pressed=true]")
    tab.page.wait_for_selector(".versus-play[aria-pressed=false]")
    tab.page.get_by_role("button", name="Stop comparing").click()
    assert not play.is_visible() and tab.problems == []


def test_a_shared_reply_is_one_file_with_sound_words_and_figures(service, browser, tab, tmp_path):
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.ask("Shared </script> with <b>everybody</b>.")
    tab.wait("done")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Save", exact=True).click()
        tab.page.get_by_role("button", name="Page to send").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.suffix == ".html" and "://" not in path.read_text("utf-8").lower()
    context = browser.new_context(offline=True, bypass_csp=True)  # the waiting below needs eval
    try:
        page, problems = context.new_page(), []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.as_uri())
        assert page.locator("#text").inner_text() == "Shared </script> with <b>everybody</b>."
        assert "Heard after" in page.locator("#figures").inner_text()
        assert page.locator("#tokens span").count() == len(tab.state("ids"))
        assert page.locator("#stages tr").count() >= 7
        page.wait_for_function("document.querySelector('audio').duration > 1.1")
        page.evaluate("document.querySelector('audio').play()")
        page.wait_for_function("document.querySelector('audio').ended")
        assert page.locator("#text .said").count() == 4 and problems == []
    finally:
        context.close()


def test_replays_may_be_faster_and_slower(service, tab):
    service.script = Script(seconds=3.0, rtf=0.1)
    tab.ask("Three seconds.")
    tab.wait("done")
    speed = tab.page.locator("#chat .clip-speed")
    names = []
    for _ in range(4):
        speed.click()
        names.append(speed.inner_text())
    assert names == ["1.25×", "1.5×", "0.75×", "1×"]
    speed.click()
    speed.click()
    tab.page.evaluate("""() => {
      const play = HTMLMediaElement.prototype.play;
      HTMLMediaElement.prototype.play = function () { window.played = this; return play.call(this); };
    }""")
    tab.page.locator("#chat .clip-play").click()
    tab.page.wait_for_function("window.played?.ended")
    assert tab.page.evaluate("[played.playbackRate, played.preservesPitch]") == [1.5, True]
