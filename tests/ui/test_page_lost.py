"""What a visitor meets when something goes away in the middle of an answer: network, reply, sound,
page or server; and the words of the conversation, which outlive that until Clear all."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from moss_engine.ui import door
from tests.ui.page_support import RATE_HZ, FakeService, Script, free_port, until

LONG = Script(seconds=60.0, rtf=0.9)
SENTENCE = "The connection to the server was lost"
WAITS = f"{SENTENCE}. This page waits for it and then comes back by itself, with what you typed."
BACK_S = 1.0  # the longest from the page being there to the conversation being there
LISTED = "[...document.querySelectorAll('#chat li')].map((item) => item.innerText.trim())"
# Whether a clip has played, which may be over before anybody looks.
WATCH_CLIPS = """() => new MutationObserver(() => {
  window.clipPlayed ||= document.querySelector("#chat .clip-on") !== null;
}).observe(document.getElementById("chat"), { subtree: true, attributeFilter: ["class"] })"""

DENIED = """(() => { // as browsers do that were told to let pages keep nothing
  const deny = () => { throw new DOMException("Access is denied for this document.", "SecurityError"); };
  for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { get: deny });
})()"""


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Wire:
    """The network between browser and page, as a port of its own: it can be cut, or swallow what is
    on its way."""

    def __init__(self, to_port: int):
        self.port, self.to_port = free_port(), to_port
        self._swallows: set[socket.socket] = set()
        self.mend()

    def mend(self) -> None:
        self._ends = [socket.create_server(("127.0.0.1", self.port), backlog=64)]
        threading.Thread(target=self._accept, args=(self._ends,), daemon=True).start()

    def cut(self) -> None:
        """All connections break, and new ones are refused."""
        for end in self._ends:
            _close(end)

    def swallow(self) -> None:
        """The open connections carry nothing any more, and nobody is told; new ones work."""
        self._swallows.update(self._ends)

    def _accept(self, ends: list[socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = ends[0].accept()
                far = socket.create_connection(("127.0.0.1", self.to_port))
                ends += [near, far]
                if ends[0].fileno() < 0:  # it was cut meanwhile
                    _close(near)
                    _close(far)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if one not in self._swallows:
                    other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def port_of(url: str) -> int:
    return int(url.rstrip("/").rpartition(":")[2])


@pytest.fixture(scope="module")
def wire(url):
    """The network to the page."""
    wire = Wire(port_of(url))
    yield wire
    wire.cut()


# A page and a server that wait for each other for a shorter time.
SOON_S = 3
IMPATIENT = ("RESUME_MS = 15_000", f"RESUME_MS = {SOON_S}_000")


@pytest.fixture
def wired(visit, wire, monkeypatch):
    monkeypatch.setattr(door, "RESUME_S", SOON_S)
    return visit(f"http://127.0.0.1:{wire.port}/", edit=IMPATIENT)


def status(tab) -> str:
    return tab.page.locator(".la-status").inner_text()


def said(tab) -> list[str]:
    return tab.page.evaluate(LISTED)


def assert_listed(tab, *beginnings: str) -> None:
    """The conversation comes to hold items that begin so."""

    def listed() -> bool:
        tab.page.wait_for_timeout(20)
        found = said(tab)
        return len(found) == len(beginnings) and all(map(str.startswith, found, beginnings))

    assert until(listed), f"it holds {said(tab)}"


def test_a_cut_connection_is_said_and_the_page_comes_back_with_what_was_typed(service, wire, wired):
    tab = wired
    service.script = LONG
    tab.ask("This answer is cut off.")
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.heard > 12000")
    wire.cut()
    try:
        tab.wait("lost")
        assert status(tab) == "Cut off" and SENTENCE in tab.told()
        assert until(lambda: not service.open), "the reply goes on for nobody"
        tab.assert_silent()
        tab.page.locator(".la-pause").click()
        tab.wait("speaking")
        tab.wait("done")
        tab.text.fill("And this one is heard.")
    finally:
        wire.mend()
    tab.page.wait_for_function("liveAudio.door.isOpen")
    assert tab.text.input_value() == "And this one is heard."
    service.reset()
    tab.send()
    tab.wait("done")
    assert tab.page.locator(".la-text").inner_text() == "And this one is heard."
    assert not tab.page.locator("#problem p").is_visible()


def test_a_connection_that_carries_nothing_is_left_and_a_slow_server_is_not(service, visit, wire):
    sooner = ("QUIET_MS = 4000", "QUIET_MS = 1500")
    tab = visit(f"http://127.0.0.1:{wire.port}/", edit=sooner)
    service.script = Script(seconds=0.4, first_s=2.5)
    tab.ask("Take your time.")
    tab.wait("speaking", "lost")
    tab.wait("done")
    service.script = Script(seconds=3.0, rtf=0.9)
    tab.ask("Nobody says that this is not over.")
    tab.wait("speaking")
    wire.swallow()
    tab.wait("done", "lost")
    assert tab.state("phase") == "done" and tab.state("total") == 3 * RATE_HZ
    assert len(service.requests) == 2 and service.cancelled == []


def test_a_reply_is_heard_to_the_sample_over_a_connection_that_breaks(service, wire, wired):
    service.script = Script(seconds=2.5, rtf=0.9)
    wired.buffer_whole_replies()
    wired.ask("This one breaks off twice, and nobody hears it.")
    for share in (0.2, 0.5):
        wired.page.wait_for_function(f"liveAudio.state.total > {share * 2.5 * RATE_HZ}")
        wire.cut()
        wire.mend()
    wired.wait("done")
    wired.assert_heard(service.sent())
    assert len(service.requests) == 1 and service.cancelled == []


def test_a_question_that_is_asked_while_the_connection_is_broken_is_answered(service, visit, wire):
    tab = visit(f"http://127.0.0.1:{wire.port}/")
    service.script = LONG
    tab.ask("This one is long.")
    tab.page.wait_for_function("liveAudio.heard > 12000 && liveAudio.door.acknowledged > 2")
    wire.cut()
    try:
        tab.page.get_by_text(SENTENCE).wait_for()
        assert until(lambda: status(tab) == "Waiting for the connection"), "all was heard"
        tab.ask("This one is asked meanwhile.")
        assert SENTENCE in tab.told() and status(tab) == "Waiting for the connection"
    finally:
        service.script = Script(seconds=0.6)
        wire.mend()
    tab.wait("done")
    assert tab.page.locator(".la-text").inner_text() == "This one is asked meanwhile."


def test_a_question_that_cannot_leave_is_said_and_kept(service, wired):
    tab = wired
    tab.page.mouse.click(5, 5)
    tab.context.set_offline(True)
    assert until(lambda: tab.told() == WAITS)
    tab.ask("Nobody takes this.")
    tab.wait("lost")
    assert SENTENCE in tab.told()
    assert tab.text.input_value() == "Nobody takes this." and service.requests == []
    tab.context.set_offline(False)
    tab.page.wait_for_function("liveAudio.door.isOpen")
    assert until(lambda: not tab.told())
    tab.send()
    tab.wait("done")
    assert service.texts == ["Nobody takes this."]


# As the browser is online again, an attempt takes the place of another one.
UNANSWERED = "liveAudio.door.take = function () { delete this.take; this.open(); }"


def test_who_talks_hands_free_is_listened_to_again_after_a_long_break(
    service, wire, visit, monkeypatch
):
    pytest.importorskip("silero_vad")
    monkeypatch.setattr(door, "RESUME_S", SOON_S)
    tab = visit(f"http://127.0.0.1:{wire.port}/", edit=IMPATIENT, permissions=["microphone"])
    tab.choose("Speak to it")
    tab.page.locator(".rec-free").click()
    tab.page.wait_for_function("recorder.state === 'listening'")
    wire.cut()
    try:
        tab.page.wait_for_function("liveAudio.door.gaveUp")
        assert tab.page.evaluate("recorder.state") in ("listening", "hearing")
        asked = len(service.requests)
        tab.page.evaluate(UNANSWERED)
    finally:
        wire.mend()
    assert until(lambda: len(service.requests) > asked)
    tab.page.keyboard.press("Escape")
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.state === 'recording'")
    wire.cut()
    try:
        tab.page.wait_for_function("!liveAudio.door.isOpen && (before = recorder.seconds) >= 0")
        tab.page.wait_for_function("recorder.seconds > before + 0.5", timeout=5000)
    finally:
        wire.mend()


def test_sound_that_the_browser_takes_away_waits_for_the_visitor(service, tab):
    service.script = Script(seconds=2.5, rtf=0.05)
    tab.page.mouse.click(5, 5)
    tab.buffer_whole_replies()
    tab.ask("A telephone rings in the middle of this.")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 12000")
    tab.page.evaluate("liveAudio.player.context.suspend()")
    tab.page.wait_for_selector(".la-paused")
    heard = tab.page.evaluate("liveAudio.heard")
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("liveAudio.heard") == heard, "the caption runs on without the sound"
    assert status(tab) == "Paused" and tab.state("phase") == "speaking"
    tab.page.locator(".la-pause").click()
    tab.page.wait_for_function("liveAudio.player.context.state === 'running'")
    tab.page.wait_for_selector(".la-paused", state="detached")
    assert status(tab) == "Speaking"
    tab.wait("done")
    tab.assert_heard(service.sent())


def test_a_sound_device_that_takes_its_time_is_told_from_a_pause(service, visit):
    tab = visit(init="AudioContext.prototype.resume = () => new Promise(() => {})")
    tab.page.mouse.click(5, 5)
    tab.page.evaluate("liveAudio.player.context.suspend()")
    tab.text.fill("Hello?")
    tab.send()
    tab.wait("speaking")
    assert status(tab) == "Waiting for the sound device"
    tab.page.locator(".la-pause").click()
    tab.page.locator(".la-pause").click()
    assert status(tab) == "Waiting for the sound device"


def test_a_reload_in_the_middle_of_a_reply_ends_it_and_the_conversation_goes_on_where_it_was(
    service, tab
):
    tab.choose("Small talk")
    service.script = Script(seconds=0.6, rtf=0.1)
    tab.hear("My name is Ada.")
    service.script = LONG
    tab.ask("This one is left in the middle.")
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.heard > 20000")
    for waits in ("One that waits.", "Another."):
        tab.text.fill(waits)
        tab.text.press("Control+Enter")
    tab.text.fill("A draft.")
    tab.reload()
    assert tab.text.input_value() == "One that waits.\nAnother.\nA draft."
    assert until(lambda: len(said(tab)) > 0, BACK_S)
    assert_listed(tab, "You:\n\nMy name", "Answer:\n\nMy name", "You:\n\nThis one", "Answer:")
    assert until(lambda: said(tab)[3].endswith("Stopped."))
    assert until(lambda: not service.open), "the reply goes on for nobody"
    tab.page.evaluate(WATCH_CLIPS)
    tab.page.locator("#chat .clip-play").nth(0).click()
    tab.page.wait_for_function("window.clipPlayed")
    tab.problems.clear()  # the sound that was being loaded
    tab.choose("Small talk")
    service.script = Script(seconds=0.6, rtf=0.2)
    tab.hear("What is my name?")
    roles = [message.role for message in service.requests[-1].messages]
    assert roles == ["user", "assistant"] * 2 + ["user"] and tab.problems == []


def test_words_that_a_lost_server_forgot_stand_there_and_are_said_to_be_forgotten(
    service, wired, wire, serve, url
):
    tab = wired
    try:
        tab.choose("Small talk")
        service.script = Script(seconds=0.6, rtf=0.2)
        tab.hear("The server dies behind this answer.")
        assert_listed(tab, "You:\n\nThe server", "Answer:\n\nThe")
        wire.cut()
        wire.to_port = port_of(serve(FakeService()))  # a server that was started anew
        tab.page.wait_for_function("!liveAudio.door.isOpen")
        tab.page.locator("#chat .clip-play").click()
        tab.page.wait_for_timeout(500)
        assert "no longer has this sound" not in tab.told()
        tab.text.fill("Asked meanwhile.")
        tab.send()
        tab.text.fill("A draft.")
        tab.page.evaluate("window.before = true")
        wire.mend()
        tab.page.wait_for_function("!window.before && window.liveAudio")  # another program answers
        assert until(lambda: tab.text.input_value() == "Asked meanwhile.\nA draft.")
        assert_listed(tab, "You:\n\nThe server", "Answer:\n\nThe", "The model no longer")
    finally:
        wire.cut()
        wire.to_port = port_of(url)
        wire.mend()


def test_clear_all_clears_what_the_tab_keeps_and_what_is_on_its_way(service, tab, url):
    service.script = Script(seconds=0.6, rtf=0.1)
    tab.choose("Small talk")
    tab.hear("To be forgotten.")
    other = tab.context.new_page()
    other.goto(url)
    other.wait_for_function("window.liveAudio?.door.isOpen")
    assert other.evaluate(LISTED) == [], "another tab has a conversation of its own"
    other.close()
    assert_listed(tab, "You:\n\nTo be", "Answer:")
    tab.page.locator("#clear").click()
    assert_listed(tab)
    tab.hear("Cleared at the very end.")
    assert len(service.requests[-1].messages) == 1, "the model remembers"
    tab.page.locator("#clear").click()
    tab.page.wait_for_timeout(800)
    assert said(tab) == []
    tab.reload()
    tab.page.wait_for_timeout(400)
    assert said(tab) == []


def test_a_browser_that_denies_all_storage_has_the_whole_page(service, visit):
    tab = visit(init=DENIED)
    shade = tab.page.locator(".shade")
    before = shade.get_attribute("aria-pressed")
    shade.click()
    assert {before, shade.get_attribute("aria-pressed")} == {"true", "false"}
    tab.page.locator(".tongue").click()
    tab.page.wait_for_function("document.documentElement.lang === 'zh-Hans'")
    tab.page.locator(".tongue").click()
    tab.choose("Small talk")
    tab.hear("Nobody keeps this.")
    assert_listed(tab, "You:\n\nNobody", "Answer:\n\nNobody")
