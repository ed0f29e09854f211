"""A reply is kept as a file, and heard again from it: the same sound, without the network."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import InputError
from moss_engine.api.info import MadeBy
from moss_engine.ui.asking.replay import MAX_FILE_BYTES, read, recipe
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.form import defaults
from tests.ui.page_support import INFO, Script, until

FACTS = PageInfo.of(INFO)
OTHER = replace(FACTS, made_by=MadeBy("f00d" * 10, "decade" * 10))
GOOD = {
    **(recipe(defaults(FACTS), FACTS, 7) or {}),
    "ids": [300, -4, -5, 301, -6],
    "parts": [[0, 0], [3, 1920]],
    "pauses": [[2, [7, 7]], [4, [7]]],
    "text": [[0, "One"], [1920, " two"]],
}


def test_a_file_is_taken_apart_into_rows_and_parts():
    first, second = read(json.dumps(GOOD), FACTS).recorded
    assert [row.audio for row in first.rows[1:]] == [3, 4] and first.rows[0].text == 300
    assert first.pauses == ((2, (7, 7)),) and second.pauses == ((1, (7,)),)
    assert first.text == ((0, "One"),) and second.text == ((0, " two"),)
    assert read(json.dumps(GOOD), FACTS).seed == 7


def test_another_checkpoint_is_refused_with_both_fingerprints():
    with pytest.raises(InputError, match="c0ffeec0ffee, and here runs f00df00df00d"):
        read(json.dumps(GOOD), OTHER)
    other = replace(FACTS, made_by=MadeBy("c0ffee" * 10, "abba" * 15))
    with pytest.raises(InputError, match="codec decadedecade, and here runs abbaabbaabba"):
        read(json.dumps(GOOD), other)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "else"}, {"version": 2}, {"version": None}, {"made_by": None},
        {"made_by": {"checkpoint": 1}}, {"settings": []}, {"settings": {"voice": "nobody"}},
        {"settings": {"voice": "default", "seed": True}}, {"ids": []}, {"ids": None},
        {"ids": [1.5]}, {"ids": ["1"]}, {"ids": [True]}, {"ids": [10**9]}, {"ids": [-(10**9)]},
        {"ids": [-4] * 30_001}, {"parts": []}, {"parts": [[0]]}, {"parts": [[1, 0]]},
        {"parts": [[0, 0], [9, 0]]}, {"parts": [[0, 0], [2, 5], [1, 9]]}, {"parts": [[0, "0"]]},
        {"pauses": None}, {"pauses": [[0]]}, {"pauses": [[9, [1]]]}, {"pauses": [[1, [9999]]]},
        {"pauses": [[2, [1]], [2, [1]]]}, {"pauses": [[0, [1] * 30_001]]}, {"text": None}, {"text": [[0]]}, {"text": [[-1, "a"]]}, {"text": [[5, "a"], [1, "b"]]},
        {"text": [[0, 1]]}, {"text": [[0, "a" * 40_001]]},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_a_sentence(changes):
    with pytest.raises(InputError, match=r"; (choose|save)"):
        read(json.dumps({**GOOD, **changes}), FACTS)


@pytest.mark.parametrize("file", ["", "{", "[]", "null", "[" * 5000, 7, None, "x" * 300_000])
def test_what_is_no_replay_file_is_refused_with_a_sentence(file):
    with pytest.raises(InputError, match="; choose"):
        read(file, FACTS)


def test_a_service_without_fingerprints_replays_nothing():
    facts = replace(FACTS, made_by=None)
    assert recipe(defaults(facts), facts, 1) is None
    with pytest.raises(InputError):
        read(json.dumps(GOOD), facts)


DROP = """([name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name, { type: "application/json" }));
  document.querySelector("#live").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
}"""


def drop(tab, text: str, name: str = "reply.json") -> None:
    tab.page.evaluate(DROP, [name, text])


def kept(tab, tmp_path) -> str:
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Save", exact=True).click()
        tab.page.locator(".la-keep").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path.read_text("utf-8")


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
    tab.ask("One two three four.")
    tab.wait("done")
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


@pytest.mark.browser
def test_a_refused_file_silences_nothing_and_says_why(service, tab):
    service.script = Script(seconds=20.0, rtf=0.2)
    tab.ask("A long one.")
    tab.wait("speaking")
    for text, words in (
        (json.dumps({**GOOD, "made_by": {"checkpoint": "f00d" * 10, "codec": "x"}}), "f00df00d"),
        ("{}", "no replay file"),
        ("x" * (MAX_FILE_BYTES + 1), "larger than 200 kB"),
    ):
        drop(tab, text)
        assert until(lambda words=words: words in complaint(tab))
    assert tab.state("phase") == "speaking" and len(service.requests) == 1
    tab.page.keyboard.press("Escape")


@pytest.mark.browser
def test_escape_closes_the_menu_and_stops_nothing(service, tab):
    service.script = Script(seconds=20.0, rtf=0.2)
    tab.ask("A long one.")
    tab.wait("speaking")
    tab.page.locator(".la-save").click()
    assert tab.page.locator(".la-wav").is_visible()
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator(".la-wav").is_visible() and tab.state("phase") == "speaking"
    tab.page.keyboard.press("Escape")
    assert until(lambda: tab.state("phase") == "stopped")


@pytest.mark.browser
def test_the_main_player_replays_faster_and_slower(service, tab):
    service.script = Script(seconds=2.0, rtf=0.1)
    tab.page.mouse.click(5, 300)
    play_when_whole(tab)
    tab.ask("Two seconds.")
    tab.wait("done")
    lengths = {}
    for name in ("1.25×", "1.5×", "0.75×"):
        tab.page.locator(".la-speed").click()
        assert tab.page.locator(".la-speed").inner_text() == name
        tab.forget()
        tab.page.locator(".la-pause").click()
        tab.wait("done")
        lengths[name] = len(np.trim_zeros(tab.sound(), "b")) / 24_000 * float(name[:-1])
        assert until(lambda: tab.page.evaluate("liveAudio.heard > 47000"))
    assert all(abs(length - 2.0) < 0.1 for length in lengths.values()), lengths
