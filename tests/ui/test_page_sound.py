"""The page in a real browser: what is heard is what was sent, sample by sample, however it comes and
wherever the service runs."""

from __future__ import annotations

import io
import re
import wave

import numpy as np
import pytest

from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import RATE_HZ, FakeService, Script, until

pytestmark = pytest.mark.browser


def speak(tab, service: FakeService, text: str) -> None:
    """Ask and listen to the end: what is heard must be what was sent.

    A reply that starved because the machine was busy with other things is asked for again, to be
    heard when all of it has come.
    """
    for _ in range(2):
        tab.page.wait_for_timeout(300)
        tab.forget()
        tab.ask(text)
        tab.wait("speaking")
        tab.wait("done")
        if tab.state("underruns") == 0:
            break
        tab.buffer_whole_replies()
    assert tab.state("underruns") == 0, "a reply that was there starved"
    tab.assert_heard(service.sent())


def follows(service, tab) -> None:
    """A reply is heard as it was sent, and everything on the page says how it went."""
    text = "Good morning, this is a test of the whole way."
    speak(tab, service, text)
    assert tab.state("lost") == 0
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


def test_what_is_heard_is_what_was_sent_and_the_page_follows(service, tab):
    follows(service, tab)
    speak(tab, service, "And a second one.")
    assert tab.page.locator("#chat .tr-reading").count() == len(service.requests)
    assert tab.page.locator(TILE).inner_text() == "s of exact PCM"
    assert not tab.page.locator(".la-way").is_visible()
    tab.page.locator("#mode label", has_text="Write").click()
    tab.forget()
    tab.hear("In writing, please.")
    assert service.requests[-1].mode == "write"
    assert tab.page.locator(".la-text").inner_text() == "In writing, please."
    assert len(tab.sound()) == 0 and tab.problems == []


def test_captions_follow_the_ear_and_not_the_model(service, tab):
    service.script = Script(seconds=3.0, rtf=0.05)
    tab.ask("one two three four five six seven eight nine ten eleven twelve")
    said, words = tab.page.wait_for_function(
        "liveAudio.state.ended && liveAudio.heard > 20000 && [document.querySelectorAll('.la-text "
        ".said').length, "
        "document.querySelectorAll('.la-text span span').length]"
    ).json_value()
    assert words == 12 and 2 <= said <= 10
    tab.wait("done")
    assert until(lambda: tab.page.locator(".la-text .said").count() == 12)


def test_a_starved_reply_fades_out_and_in_and_loses_nothing(service, visit):
    tab = visit()
    for stall_s in (0.8, 3.0, 9.0):  # a busy browser may play so slowly that no pause is left
        service.script = Script(seconds=1.6, stall_s=stall_s)
        tab.forget()
        tab.ask("A pause that nobody planned.")
        tab.wait("speaking")
        tab.wait("done")
        if tab.state("starved") > 0.1 * 24_000:
            break
    assert tab.state("underruns") >= 1 and tab.state("starved") > 0.1 * 24_000
    assert tab.state("played") == tab.state("total") == 1.6 * 24_000
    assert tab.state("target") >= 80, "the buffer before the sound goes on is doubled"
    assert np.abs(np.diff(np.trim_zeros(tab.sound(), "b"))).max() < 0.12, "it clicks"
    assert tab.page.locator('[data-key="underruns"]').get_attribute("class") == "tile bad"


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
    tab.page.wait_for_function("window.recorder?.ready")
    tab.page.locator("#mode label", has_text="Speak to it").click()
    tab.page.wait_for_selector(".rec-talk:visible")
    assert tab.page.locator(".rec-talk").is_disabled()
    assert tab.page.locator(".rec-free input").is_disabled()
    assert "https or localhost" in tab.page.locator(".rec-why").inner_text()
    asked = len(service.requests)
    tab.page.locator(".rec-input").set_input_files(SAMPLE)
    assert until(lambda: len(service.requests) > asked)


def test_pause_replay_and_save(service, visit):
    service.script = Script(seconds=0.9, rtf=0.2)
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
    with tab.page.expect_download() as download:
        tab.page.locator(".la-save").click()
        tab.page.locator(".la-wav").click()
    with wave.open(io.BytesIO(download.value.path().read_bytes())) as saved:
        pcm = np.frombuffer(saved.readframes(saved.getnframes()), "<i2")
        assert saved.getframerate() == 24_000
    assert np.array_equal(np.trim_zeros(pcm, "f"), service.sent())


# A slow link carries compressed sound, and the page says so.

TILE = '[data-key="buffered"] .tile-value small'
LINK_BITS_S, DELAY_MS = 300_000, 200

MEASURED_SLOW = f"""(() => {{
  const load = {{ transferSize: 400_000, responseStart: 0, responseEnd: {400_000 * 8000 / LINK_BITS_S} }};
  performance.getEntriesByType = (type) => (type === "resource" ? [load] : []);
}})()"""


def slow_down(tab) -> list[int]:
    """The link from now on, and how many bytes each piece of data has that comes over it."""
    session, received = tab.context.new_cdp_session(tab.page), []
    session.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))
    session.send("Network.enable")
    speed = {"downloadThroughput": LINK_BITS_S / 8, "uploadThroughput": LINK_BITS_S / 8}
    session.send(
        "Network.emulateNetworkConditions", {"offline": False, "latency": DELAY_MS, **speed}
    )
    return received


def test_a_slow_link_carries_compressed_sound_at_a_fraction_of_its_rate(service, tab):
    tab.buffer_whole_replies()
    service.script = Script(seconds=5.0, rtf=0.3)
    tab.page.evaluate(MEASURED_SLOW)
    received = slow_down(tab)
    tab.hear("Five seconds of sound for somebody far away, with words all the way to the end.")
    assert tab.state("sound") == "opus" and tab.state("underruns") == 0
    tab.page.wait_for_timeout(500)  # for what follows a reply
    assert sum(received) * 8 / 5.0 < 80_000, "all of it, figures and tokens, in bits a second"
    assert tab.page.locator(".la-way").is_visible()
    assert tab.page.locator(TILE).inner_text() == "s of Opus"
    heard, sent = np.trim_zeros(tab.sound(), "b"), service.sent() / 32768
    assert abs(len(heard) - len(sent)) < 0.06 * RATE_HZ
    body = slice(RATE_HZ, 4 * RATE_HZ)
    shares = [np.corrcoef(heard[body], np.roll(sent, lag)[body])[0, 1] for lag in range(-3, 4)]
    assert max(shares) > 0.95 and abs(int(np.argmax(shares)) - 3) <= 1, "captions are out of step"
    assert tab.problems == []


def test_a_compressed_reply_can_be_stopped_replaced_and_heard_again(service, tab):
    tab.page.evaluate(MEASURED_SLOW)
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
