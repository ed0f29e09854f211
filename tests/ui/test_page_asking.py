"""Asking in a real browser: impatient visitors, Stop at every moment, what a refusal leaves alone, and
what is said under the box."""

from __future__ import annotations

import numpy as np
import soundfile

from moss_engine.api.errors import BusyError
from moss_engine.api.request import Text
from moss_engine.audio.pcm import to_pcm16
from tests.ui.page_support import Script, until

SHOWN = """() => ({
  run: liveAudio.state.run, phase: liveAudio.state.phase, total: liveAudio.state.total,
  caption: document.querySelector(".la-text").innerText,
  figures: [...document.querySelectorAll(".tile b")].map((value) => value.innerText),
  ids: document.querySelectorAll(".ids-roll span").length,
  turns: document.querySelectorAll("#chat li").length,
})"""


def resting(tab) -> dict:
    """What is shown once a second has changed none of it: counts come that often."""
    shown = tab.page.evaluate(SHOWN)
    for _ in range(10):
        before = shown
        tab.page.wait_for_timeout(1100)
        if (shown := tab.page.evaluate(SHOWN)) == before:
            return shown
    raise AssertionError(f"it does not come to rest: {before} {shown}")


PLAYING = "document.querySelector('.clip-on') && document.querySelector('.clip-at').value > 0"

BUSY = BusyError("All places are taken; try again in a moment.")

TWICE_MS = 550  # two presses of one question within half a second are one

SPELLED = """(box) => { // the key that ends the choice among Chinese words
  box.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", isComposing: true, bubbles: true }));
}"""


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
    chip = tab.page.locator(".chip:visible").first
    chip.focus()
    for _ in range(4):
        tab.page.keyboard.down("Enter")  # as a key repeats that is held
        tab.page.wait_for_timeout(TWICE_MS)
    tab.page.keyboard.up("Enter")
    tab.wait("done")
    assert service.texts == ["Only once.", "And once more.", chip.inner_text()]
    assert not tab.page.locator("#problem p").is_visible()


def test_a_question_or_an_example_replaces_the_answer_before_it(service, tab):
    service.script = Script(seconds=20.0, rtf=0.3)
    tab.ask("A long story.")
    tab.page.wait_for_function("liveAudio.heard > 12000")
    service.script = Script(seconds=0.8, rtf=0.2)
    tab.text.fill("I am not done with this")
    chip = tab.page.locator(".chip:visible").nth(1)
    chip.click()
    tab.page.wait_for_function(
        "liveAudio.state.phase === 'speaking' && liveAudio.state.total < 24000 * 2"
    )
    tab.wait("done")
    assert service.texts[-1] == chip.inner_text()
    assert tab.text.input_value() == "I am not done with this"
    assert len(service.cancelled) == 1 and not service.open
    assert tab.state("total") == round(0.8 * 24_000)
    assert until(
        lambda: "Stopped." in said(tab, "reading")[0] and "Stopped." not in said(tab, "reading")[-1]
    )
    tab.choose("Small talk")
    assert tab.page.locator(".chip:visible").first.inner_text() == "Hello! Who are you?"
    assert tab.page.locator("#mode-notes p:visible").first.inner_text() == "Greetings, sums, days."
    assert tab.problems == []


def test_what_is_typed_after_the_press_is_the_next_question(service, tab):
    """From rest and over an answer: the question is the text at the key, the box what came after."""
    service.script = Script(seconds=8.0, rtf=0.3)
    for number, first in enumerate(["From rest.", "Over an answer."], start=1):
        tab.text.fill(first)
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.type("And then")
        assert until(lambda n=number: len(service.requests) == n)
        assert service.texts[-1] == first
        tab.wait("speaking")
        assert tab.text.input_value() == "And then"
    tab.page.keyboard.press("Escape")


def test_many_quick_questions_are_each_asked_or_offered_again(service, tab):
    service.script = Script(seconds=0.3, rtf=0.2)
    texts = [f"Sentence number {number}." for number in range(12)]
    for text in texts:
        tab.text.fill(text)
        tab.page.keyboard.press("Enter")
    assert until(lambda: service.texts[-1:] == texts[-1:]), "the last one replaces those before it"
    tab.wait("done")
    offered = tab.page.locator(".unasked .chip").all_inner_texts()
    assert {*service.texts, *offered, tab.text.input_value()} >= set(texts)


def test_a_refused_question_stays_beside_what_was_typed_meanwhile(service, tab):
    tab.text.fill("Je ne sais pas où est la gare.")
    tab.page.evaluate("""() => { // within the same moment
      const box = document.querySelector("#text textarea");
      document.getElementById("send").click();
      box.value = "Something else";
      box.dispatchEvent(new Event("input", { bubbles: true }));
    }""")
    offer = tab.page.locator(".unasked .chip")
    offer.wait_for()
    assert offer.inner_text() == "Je ne sais pas où est la gare."
    assert tab.text.input_value() == "Something else" and service.requests == []
    assert "French" in tab.page.locator("#problem p").inner_text()


def test_stop_right_after_asking(service, tab):
    tab.page.mouse.click(5, 5)
    for pause_ms in (0, 60):
        service.reset(Script(seconds=20.0, rtf=0.3, first_s=1.0))
        tab.text.fill("Never mind.")
        tab.text.press("Enter")
        tab.page.wait_for_timeout(pause_ms)
        tab.text.press("Escape")
        tab.wait("stopped")
        assert until(lambda: len(service.cancelled) == len(service.requests) and not service.open)
        tab.page.wait_for_timeout(300)
        assert tab.state("phase") == "stopped" and not tab.sound().any()
    service.script = Script(seconds=0.6)
    tab.hear("But this.")
    assert tab.problems == []


def test_a_refusal_that_the_page_knows_leaves_a_speaking_reply_alone(service, tab):
    service.script = Script(seconds=4.0, rtf=0.03)
    tab.buffer_whole_replies()
    tab.ask("Seconds that nobody interrupts.")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 4000")
    before, counter = tab.page.evaluate(SHOWN), tab.page.locator(".counter")
    tab.text.press("Enter")  # with nothing in the box
    assert not counter.is_visible()
    text = "too long " * 200
    tab.ask(text)
    sentence = "The text has 1,800 characters, the limit is 1,000; send it in parts."
    assert tab.told() == sentence and tab.text.input_value() == text
    assert counter.inner_text() == "1,800 of 1,000 characters"
    tab.page.keyboard.press("Backspace")
    assert until(lambda: tab.told() == ""), "the reason stands until the next edit"
    speed = tab.page.locator("#speed input[type=number]")
    speed.fill("")
    tab.ask("At no speed.")
    assert tab.told() == "Speed is empty; give a number from 0.7 to 1.5."
    speed.fill("1")
    tab.page.locator("#settings summary").press("Enter")
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.page.locator("#seed input").fill("-4")
    tab.ask("With a seed that does not exist.")
    assert tab.told() == "Seed is -4; give a number from 0 to 2147483647 in the settings."
    after = tab.page.evaluate(SHOWN)
    assert after["phase"] == "speaking" and after["run"] == before["run"]
    assert after["caption"] == before["caption"] and after["total"] == before["total"]
    tab.wait("done")
    tab.assert_heard(service.sent())
    assert len(service.requests) == 1 and service.cancelled == [] and tab.problems == []


def test_a_refusal_leaves_a_finished_reply_alone_and_may_be_asked_again(service, tab):
    tab.ask("   ")
    tab.page.locator("#send").click()
    tab.page.wait_for_function("document.activeElement.tagName === 'TEXTAREA'")
    assert tab.state("phase") == "idle" and tab.told() == "", "nothing to say is no mistake"
    tab.hear("This stays in sight.")
    tab.page.wait_for_selector("#chat .clip")
    before = resting(tab)
    assert "0 / 1024" in before["figures"], "blocks stay in use"
    service.script = Script(error=BUSY)
    tab.ask("Another one.")
    assert until(lambda: tab.told() == str(BUSY))
    assert not tab.page.locator(".toast-body").is_visible(), "it is said twice"
    assert resting(tab) == before
    assert tab.text.input_value() == "Another one."
    tab.page.locator(".la-pause").click()
    tab.page.wait_for_function("liveAudio.heard > 4000")
    service.script = Script(seconds=0.5)
    tab.page.wait_for_timeout(400)  # a second press within half a second is one with the first
    tab.text.press("Enter")
    assert until(lambda: len(service.requests) == 2) and until(lambda: tab.told() == "")


def test_an_answer_can_be_heard_again_and_kept_and_markup_is_shown_as_it_was_typed(service, tab):
    text = "Is <b>2</b> < 3 & *4* > 1? <img src=x onerror=alert(1)>"
    tab.hear(text)
    assert tab.page.locator("#chat .tr-reading .tr-text").inner_text() == text
    assert tab.page.locator("#chat b, #chat img").count() == 0
    clip = tab.page.locator("#chat .tr-reading .clip")
    clip.wait_for()
    with tab.page.expect_download() as download:
        clip.locator(".clip-save").click()
    pcm, rate_hz = soundfile.read(download.value.path(), dtype="int16")
    assert rate_hz == 24_000 and np.array_equal(np.trim_zeros(pcm, "f"), service.sent())
    assert len(pcm) == len(to_pcm16(np.zeros(round(1.2 * 24_000))))
    play = clip.locator(".clip-play")
    play.click()
    tab.page.wait_for_function(PLAYING)
    assert play.get_attribute("aria-label") == "Pause"
    tab.page.wait_for_function("!document.querySelector('.clip-on')")
    assert play.get_attribute("aria-label") == "Play"
    assert clip.locator(".clip-at").input_value() == "0"


def test_a_clip_is_heard_although_a_reply_speaks_and_may_vanish_while_it_is_loaded(service, tab):
    tab.hear("To be heard again, from the beginning.")
    tab.page.wait_for_selector("#chat .clip")
    service.script = Script(seconds=20.0, rtf=0.2)
    first = tab.state("run")
    tab.ask("A long one meanwhile.")
    tab.page.wait_for_function(f"liveAudio.state.run !== '{first}' && liveAudio.heard > 12000")
    tab.page.locator("#chat .clip-play").first.click()
    tab.page.wait_for_function(PLAYING)
    assert tab.page.locator(".la-status").inner_text() == "Paused"
    tab.page.locator(".la-pause").click()
    tab.page.wait_for_function("!document.querySelector('.clip-on')")
    assert tab.page.locator(".la-status").inner_text() == "Speaking"
    tab.text.press("Escape")
    tab.wait("stopped")
    tab.page.wait_for_function("document.querySelectorAll('#chat .clip').length === 2")
    tab.page.route("**/gradio_api/file=**", lambda route: None)
    tab.page.locator("#chat .clip-play").last.click()
    tab.page.locator("#clear").click()
    assert until(lambda: said(tab, "reading") == [])
    assert tab.problems == []
    tab.hear("To be heard in an hour.")
    tab.page.route("**/gradio_api/file=**", lambda route: route.fulfill(status=404))
    tab.page.locator("#chat .clip-play").click()
    tab.page.get_by_text("The server no longer has this sound").wait_for()
    assert tab.page.locator(".clip-on").count() == 0


def test_escape_belongs_to_an_open_dialog_or_menu_and_to_who_spells_a_word(service, tab):
    service.script = Script(seconds=60.0, rtf=0.2)
    send, stop = tab.page.locator("#send"), tab.page.locator("#stop")
    assert send.is_visible() and not stop.is_visible()
    tab.ask("Nobody wants this to end.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    assert stop.is_visible() and not send.is_visible()
    for opener in (".about-open", ".programs-open"):
        tab.page.locator(opener).click()
        dialog = tab.page.get_by_role("dialog")
        dialog.wait_for()
        tab.page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
    tab.page.locator(".la-save").click()
    button, menu = (tab.page.locator(part).bounding_box() for part in (".la-save", ".la-menu"))
    assert 0 < menu["y"] - button["y"] - button["height"] < 12, "the menu is not at its button"
    assert abs(menu["x"] + menu["width"] - button["x"] - button["width"]) < 2
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator(".la-wav").is_visible()
    tab.text.evaluate(SPELLED)
    assert tab.state("phase") == "speaking" and not service.cancelled
    tab.text.press("Escape")
    tab.wait("stopped")
    assert len(service.cancelled) == 1 and tab.problems == []
    assert until(lambda: not stop.is_visible()) and send.is_visible()
    tab.page.set_viewport_size({"width": 844, "height": 320})
    tab.page.locator(".la-save").evaluate("(button) => button.scrollIntoView({ block: 'center' })")
    tab.page.locator(".la-save").click()
    assert tab.page.locator(".la-wav").bounding_box()["y"] > 0, "the menu has no room there"


def test_with_ctrl_a_question_waits_for_the_reply_and_is_offered_again_where_that_is_stopped(
    service, tab
):
    service.script = Script(seconds=2.0, rtf=0.2)
    tab.ask("First.")
    tab.wait("speaking")
    for text in ("Second.", "Third."):
        tab.text.fill(text)
        tab.text.press("Control+Enter")
    assert tab.text.input_value() == ""
    line, row = (tab.page.locator(part) for part in (".next-asked", "#send-row"))
    assert line.inner_text() == "Asked next: Second. · Third."
    above, below = row.bounding_box(), line.bounding_box()
    assert below["y"] >= above["y"] + above["height"] + 6, "it sticks to what stands above"
    assert until(lambda: len(service.requests) == 2)
    assert not service.cancelled, "the first reply was cut"
    assert service.requests[1].messages[-1].content == Text("Second.")
    tab.wait("speaking")
    tab.page.keyboard.press("Escape")
    offered = tab.page.locator("#problem .unasked .chip")
    assert until(lambda: offered.all_inner_texts() == ["Third."])
    assert line.is_hidden() and len(service.requests) == 2
    tab.page.locator("#clear").click()
    assert offered.count() == 0


TALK = """([count, clips]) => {
  const clip = { file: { path: "none.wav" }, seconds: 1, bars: Array(48).fill(50) };
  const entries = Array.from({ length: count }, (_, n) => ({ id: `${n}:a`, role: "assistant", text: `Answer ${n}.`, clip: n < clips ? clip : undefined }));
  document.dispatchEvent(new CustomEvent("conversation.updated", { detail: { entries, whole: true } }));
}"""


def test_a_long_conversation_weighs_no_more_than_what_is_in_sight(tab):
    few = "((n) => 0 < n && n < 20)(document.querySelectorAll('#chat .clip').length)"
    height, first = "document.querySelector('#chat .tr-list').scrollHeight", "#chat li:first-child"
    tab.page.evaluate(TALK, [60, 59])
    tab.page.evaluate(TALK, [60, 60])
    below = "document.documentElement.scrollHeight - scrollY - {}.getBoundingClientRect().bottom"
    assert tab.page.evaluate(below.format("notice")) < 60, "the page is as long as its conversation"
    hidden = "chat.scrollHeight - chat.scrollTop - chat.clientHeight"
    assert tab.page.evaluate(hidden) < 2, "the newest sound is out of sight"
    tab.page.wait_for_function(few)
    assert "Answer 0." in tab.page.locator(first).inner_text()  # to be found and read out
    before = tab.page.evaluate(height)
    tab.page.evaluate("document.querySelector('#chat li').scrollIntoView()")
    tab.page.locator(f"{first} .clip-play").wait_for()
    tab.page.wait_for_function(few)
    tab.page.wait_for_function(f"(before) => Math.abs({height} - before) < 20", arg=before)
