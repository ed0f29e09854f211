"""What a refused question leaves alone, and where its reason stands."""

from __future__ import annotations

import pytest

from moss_engine.api.errors import BusyError
from tests.ui.page_support import Script, until

pytestmark = pytest.mark.browser

SHOWN = """() => ({
  run: liveAudio.state.run, phase: liveAudio.state.phase, total: liveAudio.state.total,
  caption: document.querySelector(".la-text").innerText,
  figures: [...document.querySelectorAll(".tile b")].map((value) => value.innerText),
  ids: document.querySelectorAll(".ids-roll span").length,
  turns: document.querySelectorAll("#chat li").length,
})"""
BUSY = BusyError("All places are taken; try again in a moment.")


def problem(tab) -> str:
    return tab.page.locator("#problem [role=alert]").inner_text()


def too_long(tab) -> None:
    tab.ask("too long " * 200)


def bad_seed(tab) -> None:
    tab.page.locator("#settings button").first.click()
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.page.locator("#seed input").fill("-4")
    tab.ask("With a seed that does not exist.")


def foreign(tab) -> None:
    tab.ask("Guten Morgen, wie geht es Ihnen heute?")


def empty(tab) -> None:
    tab.text.press("Enter")


def nobody_more(tab) -> None:
    tab.ask("When all places are taken.")


@pytest.mark.parametrize("ask", [empty, too_long, bad_seed])
def test_a_refusal_that_the_page_knows_leaves_a_speaking_reply_alone(service, tab, ask):
    service.script = Script(seconds=6.0, rtf=0.05)
    tab.page.mouse.click(5, 5)
    tab.page.wait_for_function("liveAudio.player.sink?.ready")
    tab.buffer_whole_replies()
    tab.ask("Six seconds that nobody interrupts.")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 4000")
    before = tab.page.evaluate(SHOWN)
    service.waiting = service.info.max_waiting if ask is nobody_more else 0
    ask(tab)
    assert ask is empty or until(lambda: tab.page.wait_for_timeout(20) or problem(tab))
    tab.page.wait_for_timeout(600)
    after = tab.page.evaluate(SHOWN)
    assert after["phase"] == "speaking" and after["run"] == before["run"]
    assert after["caption"] == before["caption"] and after["total"] == before["total"]
    tab.wait("done")
    tab.assert_heard(service.sent())
    assert len(service.requests) == 1 and service.cancelled == [] and tab.problems == []


def test_what_is_not_refused_replaces_a_speaking_reply(service, tab):
    service.script = Script(seconds=60.0, rtf=0.2)
    tab.ask("Guten Morgen, wie geht es Ihnen heute?")
    assert until(lambda: tab.page.wait_for_timeout(20) or "German" in problem(tab))
    tab.ask("Replaced by the next one.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    tab.ask("Guten Morgen, wie geht es Ihnen heute?")
    assert until(lambda: len(service.requests) == 2)
    assert service.requests[-1].messages[-1].content.text.startswith("Guten")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    tab.text.press("Escape")


def test_a_refusal_leaves_a_finished_reply_alone(service, tab):
    tab.ask("This stays in sight.")
    tab.wait("done")
    tab.page.wait_for_selector("#chat .clip")
    tab.page.wait_for_timeout(500)  # for the last figures
    before = tab.page.evaluate(SHOWN)
    service.script = Script(error=BUSY)
    tab.ask("Another one.")
    assert until(lambda: problem(tab) == str(BUSY))
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate(SHOWN) == before
    assert tab.text.input_value() == "Another one."
    tab.page.locator(".la-pause").click()
    tab.page.wait_for_function("liveAudio.heard > 4000")


def test_nothing_to_say_is_no_mistake(service, tab):
    tab.ask("   ")
    tab.page.wait_for_timeout(400)
    assert tab.state("phase") == "idle" and problem(tab) == ""
    tab.page.locator("#send").click()
    tab.page.wait_for_function("document.activeElement.tagName === 'TEXTAREA'")
    assert service.requests == [] and tab.problems == []


def test_a_reason_stands_under_the_box_until_the_next_edit(service, tab):
    too_long(tab)
    sentence = "The text has 1,800 characters, the limit is 1,000; send it in parts."
    assert problem(tab) == sentence
    below = tab.page.locator("#problem p").bounding_box()["y"]
    assert below > tab.text.bounding_box()["y"]
    tab.page.wait_for_timeout(1500)
    assert problem(tab) == sentence, "it went away by itself"
    tab.page.keyboard.press("Backspace")
    assert until(lambda: tab.page.wait_for_timeout(20) or problem(tab) == "")
    bad_seed(tab)
    assert problem(tab) == "Seed is -4; give a number from 0 to 2147483647 in the settings."
    tab.page.locator("#seed input").fill("4")
    assert until(lambda: tab.page.wait_for_timeout(20) or problem(tab) == "")


def test_a_reply_that_fails_says_why_in_the_same_place(service, tab):
    service.script = Script(error=BUSY)
    tab.ask("Nobody has time.")
    assert until(lambda: problem(tab) == str(BUSY))
    assert not tab.page.locator(".toast-body").is_visible(), "it is said twice"
    service.script = Script(seconds=0.5)
    tab.page.wait_for_timeout(600)  # a second press within half a second is one with the first
    tab.text.press("Enter")
    tab.wait("done")
    assert problem(tab) == ""


def test_an_example_leaves_a_draft_alone(service, tab):
    tab.text.fill("I am not done with this")
    tab.page.locator(".chip:visible").nth(1).click()
    tab.wait("speaking")
    assert service.requests[-1].messages[-1].content.text.startswith("The quick brown fox")
    tab.wait("done")
    tab.page.wait_for_selector("#chat .clip")
    assert tab.text.input_value() == "I am not done with this"


def refuse_an_example_over_a_draft(tab) -> None:
    """By a seed that is none; it is one again afterwards."""
    tab.page.locator("#settings button").first.click()
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.page.locator("#seed input").fill("-4")
    tab.text.fill("I am not done with this")
    tab.page.locator(".chip:visible").nth(1).click()
    assert until(lambda: problem(tab).startswith("Seed is -4"))
    tab.page.locator("#seed input").fill("4")


def test_what_was_typed_after_a_refused_example_makes_the_draft_before_it_old(service, tab):
    refuse_an_example_over_a_draft(tab)
    tab.ask("Something else by now.")
    tab.wait("done")
    assert service.requests[-1].messages[-1].content.text == "Something else by now."
    tab.page.wait_for_selector("#chat .clip")
    assert tab.text.input_value() == ""


def test_a_refused_example_that_is_asked_after_all_brings_the_draft_back(service, tab):
    refuse_an_example_over_a_draft(tab)
    tab.text.press("Enter")
    tab.wait("done")
    assert service.requests[-1].messages[-1].content.text.startswith("The quick brown fox")
    assert tab.text.input_value() == "I am not done with this"


def test_two_examples_while_a_reply_speaks_leave_a_draft_alone(service, tab):
    service.script = Script(seconds=60.0, rtf=0.2)
    tab.ask("Replaced by an example.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    tab.text.fill("I am not done with this")
    tab.page.evaluate("""() => { // the second before the first has left
      const chips = [...document.querySelectorAll(".chip")].filter((chip) => chip.checkVisibility());
      chips[0].click();
      setTimeout(() => chips[1].click());
    }""")
    assert until(lambda: tab.page.wait_for_timeout(20) or len(service.requests) == 2)
    assert service.requests[-1].messages[-1].content.text.startswith("The quick brown fox")
    assert until(
        lambda: tab.page.wait_for_timeout(20) or tab.text.input_value() == "I am not done with this"
    )
    tab.text.press("Escape")


def test_stop_is_there_while_there_is_something_to_stop(service, tab):
    service.script = Script(seconds=6.0, rtf=0.3)
    stop = tab.page.locator("#stop")
    assert not stop.is_visible()
    tab.ask("Something to stop.")
    tab.wait("speaking")
    assert stop.is_visible()
    stop.click()
    tab.wait("stopped")
    assert until(lambda: tab.page.wait_for_timeout(20) or not stop.is_visible())
