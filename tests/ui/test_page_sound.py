"""The page in a real browser: what is heard is what was sent, sample by sample, however it comes and wherever
the service runs; the player around it: waveform, playing again, what is saved, figures."""

from __future__ import annotations

import re

import numpy as np
import pytest
import soundfile

from moss_engine.api.events import CodecRun
from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import RATE_HZ, FakeService, Script, until


def speak(tab, service: FakeService, text: str) -> None:
    """Ask and listen to the end: what is heard must be what was sent.

    A reply that starved because the machine was busy with other things is asked for again, to be
    heard when all of it has come.
    """
    for _ in range(2):
        tab.page.wait_for_timeout(300)
        tab.forget()
        tab.hear(text)
        if tab.state("underruns") == 0:
            break
        tab.buffer_whole_replies()
    assert tab.state("underruns") == 0, "a reply that was there starved"
    tab.assert_heard(service.sent())


def test_what_is_heard_is_what_was_sent_and_everything_on_the_page_says_how_it_went(service, tab):
    text = "Good morning, this is a test of the whole way."
    service.script.codec = CodecRun(0.032, 2)
    speak(tab, service, text)
    assert tab.text.input_value() == ""
    assert tab.page.locator(".la-text").inner_text() == text
    assert until(lambda: tab.page.locator(".la-text span span:not(.said)").count() == 0)
    assert tab.page.locator("#chat .tr-reading .tr-text").last.inner_text() == text
    tab.page.wait_for_selector("#chat .clip")
    for key in ("heard_after", "ttfa_ms", "prefill_ms", "queue_wait_ms", "rtf", "seed", "prompt"):
        assert tab.page.locator(f'[data-key="{key}"] b').inner_text() != "–", key
    prompt = tab.page.locator('[data-key="prompt"] .tile-value')
    assert re.fullmatch(r"(\d+)\s+16 cached, (\d+) new", prompt.inner_text())
    assert tab.page.locator('[data-key="underruns"] b').inner_text() == "0"
    _, free = tab.page.locator('[data-key="blocks"] b').inner_text().split(" / ")
    pool = tab.state("pool")
    assert int(free) == pool["free"] + pool["cached"] > 0, "blocks that are kept look taken"
    assert tab.state("heardAfterMs") >= tab.state("figures")["ttfa_ms"] > 90
    after_s = f"{tab.state('heardAfterMs') / 1000:.2f} s"
    told = [part.split("\n") for part in tab.page.locator(".la-headline p").all_inner_texts()]
    assert told == [
        [after_s, "from your press to the first sound"],
        ["No gaps", "the sound never had to wait"],
    ]
    codec = tab.page.locator(".tile[data-key=codec_ms]")
    assert codec.locator(".tile-value").inner_text().split() == "32.0 ms for 2.0 replies".split()
    assert "without the wait for its turn" in codec.locator(".tip").text_content()
    assert tab.page.locator(".fall-total").inner_text().endswith("ms to the ear")
    spans = tab.page.locator(".fall-row:not([hidden]) b").all_inner_texts()
    assert len(spans) == 7 and all(
        text.endswith(" ms") and float(text[:-3]) >= 0 for text in spans
    ), spans
    rolled = tab.page.locator(".ids-roll")
    assert rolled.locator(".text").count() > 0 and rolled.locator(".code").count() > 0
    assert tab.problems == []
    own = ("http://127.0.0.1:", "blob:", "data:")
    assert all(url.startswith(own) for url in tab.requests), "the page went elsewhere"
    speak(tab, service, "And a second one.")
    assert tab.page.locator("#chat .tr-reading").count() == len(service.requests)
    assert tab.page.locator(TILE).inner_text() == "s of exact PCM"
    assert not tab.page.locator(".la-way").is_visible()


def test_captions_follow_the_ear_and_not_the_model(service, tab):
    service.script = Script(seconds=3.0, rtf=0.05)
    tab.ask("one two three four five six seven eight nine ten eleven twelve")
    tab.page.wait_for_function("liveAudio.state.ended && liveAudio.heard > 20000")
    words, said = ".la-text span span", ".la-text .said"
    count = "(parts) => parts.map((part) => document.querySelectorAll(part).length)"
    num_words, num_said = tab.page.evaluate(count, [words, said])
    assert num_words == 12 and 2 <= num_said <= 10
    tab.wait("done")
    assert until(lambda: tab.page.locator(".la-text .said").count() == 12)


def test_a_starved_reply_fades_out_and_in_and_loses_nothing(service, tab):
    for stall_s in (0.8, 3.0, 9.0):  # a busy browser may play so slowly that no pause is left
        service.script = Script(seconds=1.6, stall_s=stall_s)
        tab.forget()
        tab.hear("A pause that nobody planned.")
        if tab.state("starved") > 0.1 * 24_000:
            break
    assert tab.state("underruns") >= 1 and tab.state("starved") > 0.1 * 24_000
    assert tab.state("played") == tab.state("total") == 1.6 * 24_000
    assert tab.state("target") >= 80, "the buffer before the sound goes on is doubled"
    assert np.abs(np.diff(np.trim_zeros(tab.sound(), "b"))).max() < 0.12, "it clicks"
    assert tab.page.locator('[data-key="underruns"]').get_attribute("class") == "tile bad"
    gaps = tab.page.locator('.la-headline [data-say="gaps"]')
    assert until(lambda: "gap" in gaps.inner_text() and "had to wait" in gaps.inner_text())


def test_stop_silences_the_page_and_frees_the_reply(service, visit):
    service.script = Script(seconds=40.0, rtf=0.3)
    tab = visit()
    tab.ask("A long story that nobody wants to hear.")
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.heard > 8000")
    blocks = tab.page.locator('[data-key="blocks"]')
    assert until(lambda: blocks.locator("b").inner_text().startswith("12 /"))
    tab.text.press("Escape")
    tab.wait("stopped")
    assert until(lambda: not service.open), "the reply was not cancelled"
    tab.assert_silent()
    assert until(lambda: blocks.locator("b").inner_text() == "0 / 1024")
    kept = blocks.locator(".tile-value small").inner_text()
    assert kept == "40 kept", "what is kept until it is needed is free"
    heard = np.trim_zeros(tab.sound(), "b")
    assert len(heard) > 8000
    assert np.abs(np.diff(heard)).max() < 0.2 and abs(heard[-1]) < 0.05, (
        "the sound was cut instead of faded out"
    )
    assert until(lambda: "Stopped." in tab.page.locator("#chat .tr-reading").first.inner_text())
    tab.page.wait_for_selector("#chat .clip")
    service.script = Script(seconds=1.0)
    speak(tab, service, "And again.")
    assert tab.problems == []


def test_without_a_secure_context_sound_is_exact_and_only_files_are_taken(
    service, visit, insecure_url
):
    tab = visit(insecure_url)
    assert not tab.page.evaluate("isSecureContext")
    assert tab.page.locator(".la-note").is_visible()
    speak(tab, service, "Plain http on the local network.")
    tab.choose("Speak to it")
    tab.page.wait_for_selector(".rec-talk:visible")
    assert tab.page.locator(".rec-talk").is_disabled()
    assert tab.page.locator(".rec-free input").is_disabled()
    assert not tab.page.locator(".k-talk").is_visible()
    assert "https or localhost" in tab.page.locator(".rec-why").inner_text()
    asked = len(service.requests)
    tab.page.locator(".rec-input").set_input_files(SAMPLE)
    assert until(lambda: len(service.requests) > asked)


def saved(tab, tmp_path, what: str):
    """The file that the menu gives."""
    with tab.page.expect_download() as download:
        tab.page.locator(".la-save").click()
        tab.page.locator(f".la-{what}").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_pause_replay_and_save(service, visit, tmp_path):
    service.script = Script(seconds=2.4, rtf=0.2)  # at its end the button would play it again
    tab = visit(reduced_motion="no-preference")
    tab.buffer_whole_replies()
    tab.ask("Once more.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    tab.page.locator(".la-pause").click()
    held = tab.page.evaluate("liveAudio.heard")
    tab.page.wait_for_timeout(200)
    assert abs(tab.page.evaluate("liveAudio.heard") - held) < 1500
    tab.page.locator(".la-pause").click()
    tab.wait("done")
    tab.assert_heard(service.sent())
    tab.page.wait_for_timeout(200)
    tab.forget()
    tab.page.locator(".la-pause").click()
    tab.wait("done")
    tab.assert_heard(service.sent())
    pcm, rate_hz = soundfile.read(saved(tab, tmp_path, "wav"), dtype="int16")
    assert rate_hz == 24_000 and np.array_equal(np.trim_zeros(pcm, "f"), service.sent())


# A slow link carries compressed sound, and the page says so.

TILE = '[data-key="buffered"] .tile-value small'
LINK_BITS_S, DELAY_MS = 300_000, 200

SLOW = f"""Object.defineProperty(navigator, "connection", {{
  value: {{ downlink: {LINK_BITS_S / 1e6} }}, configurable: true,
}})"""
AWAY = ('"localhost", "127.0.0.1"', '"nowhere"')  # as if the server were on another machine


@pytest.fixture
def far(visit):
    """A tab at the other end of a slow link, and the bytes that it gets by its WebSocket."""
    tab = visit(init=SLOW, edit=AWAY)
    received: list[int] = []
    session = tab.context.new_cdp_session(tab.page)
    session.on(
        "Network.webSocketFrameReceived",
        lambda event: received.append(len(event["response"]["payloadData"])),
    )
    session.send("Network.enable")
    speed = {"downloadThroughput": LINK_BITS_S / 8, "uploadThroughput": LINK_BITS_S / 8}
    session.send(
        "Network.emulateNetworkConditions", {"offline": False, "latency": DELAY_MS, **speed}
    )
    return tab, received


def test_a_slow_link_carries_compressed_sound_at_a_fraction_of_its_rate(service, far):
    tab, received = far
    tab.buffer_whole_replies()
    service.script = Script(seconds=5.0, rtf=0.3)
    tab.hear("Five seconds of sound for somebody far away, with words all the way to the end.")
    assert tab.state("sound") == "opus" and tab.state("underruns") == 0
    tab.page.wait_for_timeout(500)  # for what follows a reply
    assert 0 < sum(received) * 8 / 5.0 < 120_000, "all of it, figures and tokens, in bits a second"
    assert tab.page.locator(".la-way").is_visible()
    assert tab.page.locator(TILE).inner_text() == "s of Opus"
    heard, sent = np.trim_zeros(tab.sound(), "b"), service.sent() / 32768
    assert abs(len(heard) - len(sent)) < 0.06 * RATE_HZ
    body = slice(RATE_HZ, 4 * RATE_HZ)
    shares = [np.corrcoef(heard[body], np.roll(sent, lag)[body])[0, 1] for lag in range(-3, 4)]
    assert max(shares) > 0.95 and abs(int(np.argmax(shares)) - 3) <= 1, "captions are out of step"
    assert tab.problems == []


def test_a_compressed_reply_can_be_stopped_replaced_and_heard_again(service, far):
    tab, _ = far
    service.script = Script(seconds=60.0, rtf=0.3)
    tab.ask("Stopped in the middle.")
    tab.page.wait_for_function("liveAudio.heard > 20000")
    tab.text.press("Escape")
    tab.wait("stopped")
    tab.assert_silent()
    service.script = Script(seconds=1.2, rtf=0.2)
    tab.hear("Heard twice.")
    assert abs(tab.state("total") - 1.2 * RATE_HZ) < 0.06 * RATE_HZ
    tab.page.locator(".la-pause").click()
    tab.wait("speaking")
    tab.wait("done")
    assert until(lambda: not service.open) and tab.problems == []


def test_a_press_on_the_waveform_is_heard_from_there(service, tab):
    service.script = Script(seconds=1.6, rtf=0.01)
    tab.buffer_whole_replies()
    tab.hear("Everything at once.")
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


# Where the ear is before a press, behind it and behind another one, however long it takes to ask the page.
GO_BACK = """(place) => {
  const press = (key) => place.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  const places = [liveAudio.heard];
  for (const key of ["PageDown", "ArrowRight"]) {
    press(key);
    places.push(liveAudio.state.played);
  }
  return places;
}"""


def test_going_back_in_a_reply_that_is_still_made_loses_nothing(service, tab):
    service.script = Script(seconds=3.0, rtf=0.5)
    tab.ask("Once more, while it goes on.")
    tab.page.wait_for_function("liveAudio.heard > 24000")
    place = tab.page.locator(".la-place")
    before, behind, quick = place.evaluate(GO_BACK)
    assert (behind, quick) == (0, RATE_HZ), "a quick press does not go on from the last one"
    tab.page.wait_for_function("liveAudio.heard > 24000")
    tab.wait("done")
    assert until(lambda: place.get_attribute("aria-valuetext") == "0:03.0 of 0:03.0")
    assert tab.state("total") == 3 * RATE_HZ
    assert tab.state("furthest") >= before > 0, "how far the ear came is forgotten"


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
    tab.hear("This is one. Tom & Ann.")
    srt, vtt = (saved(tab, tmp_path, name).read_text("utf-8") for name in ("srt", "vtt"))
    first, second = srt.strip().split("\n\n")
    assert first.startswith("1\n00:00:00,000 --> ") and first.endswith("\nThis is one.")
    begins = first.split("\n")[1].split(" --> ")[1]
    assert second == f"2\n{begins} --> 00:00:01,200\nTom & Ann."
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> ") and "\nTom &amp; Ann.\n" in vtt


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
