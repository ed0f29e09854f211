"""The conversation of a tab outlives a reload and a lost server, and Clear all ends it."""

from __future__ import annotations

import time

import pytest

from moss_engine.ui.config import PageConfig
from tests.ui.page_support import FakeService, Script, free_port, until
from tests.ui.wire import Wire

pytestmark = pytest.mark.browser

BACK_S = 1.0  # the longest from the page being there to the conversation being there
LISTED = "[...document.querySelectorAll('#chat li')].map((item) => item.innerText.trim())"
KEPT = """async () => {
  const open = indexedDB.open("moss-speech");
  await new Promise((resolve) => (open.onsuccess = resolve));
  const all = open.result.transaction("turns").objectStore("turns").getAll();
  await new Promise((resolve) => (all.onsuccess = resolve));
  open.result.close();
  return all.result.map(({ entry, sound }) => [entry.text, sound?.byteLength ?? 0]);
}"""

DENIED = """(() => { // as browsers do that were told to let pages keep nothing
  const deny = () => { throw new DOMException("Access is denied for this document.", "SecurityError"); };
  for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { get: deny });
  IDBFactory.prototype.open = deny;
})()"""


def said(tab) -> list[str]:
    return tab.page.evaluate(LISTED)


def assert_listed(tab, *beginnings: str) -> None:
    """The conversation comes to hold items that begin so."""

    def listed() -> bool:
        tab.page.wait_for_timeout(20)
        found = said(tab)
        return len(found) == len(beginnings) and all(map(str.startswith, found, beginnings))

    assert until(listed), f"it holds {said(tab)}"


def loaded_anew(tab) -> None:
    tab.page.reload()
    tab.page.wait_for_function("window.liveAudio?.ready")
    tab.page.wait_for_selector("#mode input:checked", state="attached")


def test_a_reload_in_the_middle_of_a_reply_brings_the_conversation_back_at_once(service, tab):
    service.script = Script(seconds=0.6, rtf=0.1)
    tab.ask("This was read before.")
    tab.wait("done")
    assert until(lambda: len(tab.page.evaluate(KEPT)) == 2)
    service.script = Script(seconds=60.0, rtf=0.9)
    tab.ask("This one is left in the middle.")
    tab.page.wait_for_function("liveAudio.heard > 24000")
    loaded_anew(tab)
    loaded_s = time.monotonic()
    assert until(lambda: len(said(tab)) > 0, BACK_S)
    assert_listed(tab, "Read aloud:\n\nThis was read", "Read aloud:\n\nThis one")
    assert time.monotonic() - loaded_s < BACK_S
    assert until(lambda: said(tab)[1].endswith("Stopped."))
    assert until(lambda: not service.open)
    tab.page.locator("#chat .clip-play").nth(0).click()
    tab.page.wait_for_selector("#chat .clip-on")


def test_the_model_goes_on_where_it_was_before_the_reload(service, tab):
    tab.page.locator("#mode label", has_text="Small talk").click()
    tab.ask("My name is Ada.")
    tab.wait("done")
    loaded_anew(tab)
    assert_listed(tab, "You:\n\nMy name", "Answer:\n\nMy name")
    tab.page.locator("#mode label", has_text="Small talk").click()
    tab.ask("What is my name?")
    tab.wait("done")
    assert [message.role for message in service.requests[-1].messages] == [
        "user",
        "assistant",
        "user",
    ]
    assert_listed(tab, "You:", "Answer:", "You:\n\nWhat is", "Answer:\n\nWhat is")


def test_a_reply_that_a_lost_server_cut_off_is_kept_and_said_to_be_forgotten(browser):
    from moss_engine.ui.server import launch
    from tests.ui.page_browser import Visit

    service, ports = FakeService(), [free_port(), free_port()]
    pages = [launch(service, PageConfig(port=port)) for port in ports]
    wire = Wire(ports[0])
    tab = Visit(browser, f"http://127.0.0.1:{wire.port}/")
    try:
        tab.page.locator("#mode label", has_text="Small talk").click()
        service.script = Script(seconds=12.0, rtf=0.9)
        tab.ask("The server dies in the middle of this answer, which is a long one.")
        tab.page.wait_for_function("liveAudio.heard > 24000")
        wire.cut()
        tab.wait("lost")
        assert until(lambda: len(tab.page.evaluate(KEPT)) == 2)
        wire.lead_to(ports[1])  # a server that was started anew
        tab.page.evaluate("window.before = true")
        wire.mend()
        tab.page.wait_for_function("!window.before && window.liveAudio?.ready")  # Gradio loads anew
        assert_listed(tab, "You:\n\nThe server", "Answer:\n\nThe", "The model no longer")
        assert "Cut off." in said(tab)[1]
        tab.page.locator("#chat .clip-play").click()
        tab.page.wait_for_selector("#chat .clip-on")
    finally:
        tab.close()
        wire.cut()
        for page in pages:
            page.close(verbose=False)


def test_clear_all_clears_what_the_browser_keeps(service, tab):
    tab.ask("To be forgotten.")
    tab.wait("done")
    assert until(lambda: len(tab.page.evaluate(KEPT)) == 2)
    tab.page.locator("#clear").click()
    assert_listed(tab)
    assert until(lambda: tab.page.evaluate(KEPT) == [])
    loaded_anew(tab)
    tab.page.wait_for_timeout(500)
    assert said(tab) == []


def test_what_is_still_on_its_way_does_not_come_back_after_clear_all(service, tab):
    service.script = Script(seconds=0.6, rtf=0.1)
    tab.ask("Cleared at the very end.")
    tab.wait("done")
    tab.page.locator("#clear").click()
    tab.page.wait_for_timeout(1000)
    assert said(tab) == [] and tab.page.evaluate(KEPT) == []


def test_two_tabs_have_two_conversations(service, visit):
    one, other = visit(), visit()
    one.ask("Said in the first tab.")
    one.wait("done")
    loaded_anew(other)
    assert_listed(one, "Read aloud:\n\nSaid in the first")
    assert said(other) == []


def test_a_browser_that_keeps_nothing_says_so(service, browser, visit):
    tab = visit()
    tab.page.add_init_script("IDBFactory.prototype.open = () => { throw new Error('denied'); }")
    loaded_anew(tab)
    tab.ask("Nobody keeps this.")
    tab.wait("done")
    assert_listed(tab, "Read aloud:\n\nNobody")
    assert "a reload will forget" in tab.page.locator(".tr-unkept").inner_text()


def test_a_browser_that_denies_all_storage_has_the_whole_page(service, visit):
    tab = visit(init=DENIED)
    for switch, pressed in ((".shade", "aria-pressed"), (".details-open", "aria-expanded")):
        place = tab.page.locator(switch)
        before = place.get_attribute(pressed)
        place.click()
        assert {before, place.get_attribute(pressed)} == {"true", "false"}
    tab.page.locator(".tongue").click()
    tab.page.wait_for_function("document.documentElement.lang === 'zh-Hans'")
    tab.page.locator(".tongue").click()
    tab.page.locator("#mode label", has_text="Small talk").click()
    tab.ask("Nobody keeps this.")
    tab.wait("done")
    assert_listed(tab, "You:\n\nNobody", "Answer:\n\nNobody")
    assert "a reload will forget" in tab.page.locator(".tr-unkept").inner_text()
