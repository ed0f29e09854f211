"""Talking to the page in a real browser: a microphone that plays a recording, and every way a
question can go."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import BusyError
from moss_engine.api.request import Reply, Speech
from moss_engine.api.tokens import code_of
from moss_engine.audio.floor import UNHEARD_S
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.talk.answer import Say
from tests.audio.test_turn_taking import SAMPLE
from tests.talk.talk_support import HEARD, Written, talking
from tests.ui.page_support import IDS, INFO, FakeService, Script, until

NO_MICROPHONE = """navigator.mediaDevices.getUserMedia =
  () => Promise.reject(new DOMException("no", "NotAllowedError"));
"""

DEAF = "recorder.capture.listener = () => {}"  # the microphone gives no sound at all

SAID_BY_SERVER = (
    """((said) => recorder.line.heard({ utterance: "", seconds: 0.6, text: "", ...said }, false))"""
)
SAID = f"""async (bytes) => {{ // as if the server had found the turn in what it heard
  const {{ utterance }} = await recorder.line.sendFile(new Blob([new Uint8Array(bytes)]));
  {SAID_BY_SERVER}({{ utterance, talking: false, sure: true }});
}}"""

DIES = """() => {
  const [track] = recorder.capture.stream.getTracks();
  track.stop();
  const now = performance.now();
  track.dispatchEvent(new Event("ended"));
  return now;
}"""

WEBM = b"\x1aE\xdf\xa3"  # what such a file begins with
MEMO = """async (input) => { // a tone, as the browser itself records it
  const context = new AudioContext();
  const [tone, out] = [new OscillatorNode(context), new MediaStreamAudioDestinationNode(context)];
  tone.connect(out);
  tone.start();
  const recorder = new MediaRecorder(out.stream);
  const recorded = new Promise((resolve) => (recorder.ondataavailable = ({ data }) => resolve(data)));
  recorder.start();
  setTimeout(() => recorder.stop(), 1500);
  const files = new DataTransfer();
  files.items.add(new File([await recorded], "memo"));
  input.files = files.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}"""
MINUTE = """OfflineAudioContext.prototype.decodeAudioData = async () =>
  new AudioBuffer({ length: 60 * 16000, sampleRate: 16000 })"""
DISCONNECTED = "The microphone was disconnected"


@pytest.fixture
def speaker(visit):
    """Opens a tab in the mode that listens."""

    def make(**options):
        tab = visit(permissions=["microphone"], **options)
        tab.choose("Speak to it")
        tab.page.wait_for_selector(".rec-talk:visible")
        return tab

    return make


def shown(tab, *states: str) -> None:
    tab.page.wait_for_function(f"{list(states)}.includes(recorder.shown)")


def question(seconds: float = 0.6) -> dict:
    """A file to choose."""
    file = io.BytesIO()
    soundfile.write(file, 0.5 * np.sin(np.arange(round(seconds * RATE_HZ))), RATE_HZ, format="WAV")
    return {"name": "question.wav", "mimeType": "audio/wav", "buffer": file.getvalue()}


def closed(tab) -> bool:
    free = tab.page.locator(".rec-free input")
    return not free.is_checked() and not tab.page.evaluate("recorder.capture.open")


def test_a_question_is_recorded_and_its_answer_heard_sample_by_sample(service, speaker):
    tab = speaker()
    tab.buffer_whole_replies()
    tab.record(1.0)
    tab.wait("done")
    wave, rate_hz = service.encoded[-1]
    assert rate_hz == RATE_HZ and len(wave) >= RATE_HZ and np.abs(wave).max() > 0.02
    tab.assert_heard(service.sent())
    assert isinstance(service.requests[-1].messages[-1].content, Speech)
    assert tab.page.locator("#chat .tr-user .clip").count() == 1
    assert tab.problems == [] and not any("/upload" in url for url in tab.requests)


def test_space_talks_and_escape_takes_it_back_unless_it_closes_a_dialog(service, speaker):
    tab = speaker()
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("Space")
    shown(tab, "recording")
    tab.page.locator(".about-open").click()
    about = tab.page.get_by_role("dialog")
    about.wait_for()
    tab.page.keyboard.press("Escape")
    about.wait_for(state="hidden")
    assert tab.page.evaluate("recorder.state") == "recording"
    tab.page.wait_for_function("recorder.seconds >= 0.5")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("Escape")
    shown(tab, "off")
    tab.page.wait_for_timeout(300)
    assert service.requests == [] and not tab.page.evaluate("recorder.capture.open")
    tab.page.keyboard.press("Space")
    tab.page.wait_for_function("recorder.seconds >= 0.5")
    tab.page.keyboard.press("Space")
    tab.wait("done")
    assert len(service.requests) == 1
    tab.page.set_viewport_size({"width": 1280, "height": 500})
    for num_requests, place in enumerate((".rec-talk", "h1"), 2):
        tab.page.evaluate("(place) => document.querySelector(place).focus()", place)
        for _ in range(3):  # the last two as a key repeats that is held
            tab.page.keyboard.down("Space")
        shown(tab, "recording")
        tab.page.wait_for_function("recorder.seconds >= 0.5")
        tab.page.keyboard.up("Space")
        assert until(lambda num=num_requests: len(service.requests) == num)
        tab.wait("done")
        assert tab.page.evaluate("[recorder.state, scrollY]") == ["off", 0]
        tab.page.evaluate("document.activeElement.blur()")
    tab.page.locator(".rec-talk").dblclick()
    shown(tab, "recording")
    tab.choose("Write")
    shown(tab, "off")
    assert not tab.page.evaluate("recorder.capture.open")


def test_hands_free_ends_the_turn_and_a_voice_ends_the_answer(service, speaker):
    pytest.importorskip("silero_vad")
    service.script = Script(seconds=30.0, rtf=0.9)
    tab = speaker()
    tab.page.locator(".rec-free").click()
    shown(tab, "hearing")
    said = "document.querySelector('.rec-state').innerText"
    tab.page.wait_for_function(f"{said} === 'Hearing you'")
    assert not tab.page.locator("#stop").is_visible(), "the round button does the same"
    shown(tab, "speaking")
    tab.page.wait_for_function(  # more than may be mended, if the sentence was taken for over early
        f"liveAudio.heard > {UNHEARD_S + 0.2} * liveAudio.state.rate"
    )
    (first,) = service.open  # what was begun at earlier pauses is given up
    assert tab.page.locator(".rec-hint").inner_text() == "talk to interrupt"
    tab.page.evaluate("""() => {
      document.addEventListener("liveaudio", ({ detail }) => {
        if (detail.phase === "stopped") window.cutAt ??= [liveAudio.heard, Date.now()];
      });
    }""")
    shown(tab, "hearing")
    tab.page.wait_for_function("window.cutAt !== undefined")
    heard, at_ms = tab.page.evaluate("cutAt")
    assert until(lambda: first in service.cancelled), "the answer was not stopped"
    assert until(lambda: len(service.requests[-1].messages) == 3)
    assert tab.page.evaluate("tap.firstAt") < at_ms
    contents = [message.content for message in service.requests[-1].messages]
    assert [type(content) for content in contents] == [Speech, Reply, Speech]
    codes = sum(code_of(row, IDS) is not None for row in contents[1].rows)
    assert heard > 0 and abs(codes - heard / 960) < 3, "the history is not what was heard"
    tab.page.locator("#stop").click()
    shown(tab, "off")
    assert closed(tab)
    assert until(lambda: not service.open)
    assert tab.problems == []


def test_a_cough_leaves_a_reply_as_it_was_playing_or_paused(service, speaker):
    pytest.importorskip("silero_vad")
    service.script = Script(seconds=30.0, rtf=0.05)
    tab = speaker()
    tab.page.evaluate(DEAF)
    tab.page.locator(".rec-free").click()
    shown(tab, "listening")
    tab.page.evaluate(SAID, list(question()["buffer"]))
    tab.page.wait_for_function("liveAudio.heard > 4000")
    now = "[recorder.state, liveAudio.player.silent]"
    for paused in (False, True):
        tab.page.wait_for_function("!liveAudio.player.silent")
        if paused:
            tab.page.locator(".la-pause").click()
        tab.page.evaluate(f"{SAID_BY_SERVER}({{ talking: true, sure: false }})")
        assert tab.page.evaluate(now) == ["hearing", True]
        tab.page.evaluate(f"{SAID_BY_SERVER}({{ talking: false, sure: true }})")
        assert tab.page.evaluate(now) == ["listening", paused]


DROPPED = """() => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(["RIFF"], "question.wav", { type: "audio/wav" }));
  return document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


def test_files_are_asked_at_once_or_refused_with_a_sentence_and_may_be_sent_again(service, speaker):
    tab = speaker()
    given = tab.page.locator(".rec-input")
    long = io.BytesIO()
    soundfile.write(long, np.zeros(RATE_HZ * 60), RATE_HZ, format="FLAC")
    for name, data, sentence in (
        ("text.wav", b"hello there\n" * 20, "no audio file"),
        ("empty.wav", b"", "The file is empty"),
        ("long.flac", long.getvalue(), "the limit is 20 s"),
        ("video.webm", WEBM * 20, "send WAV, FLAC, OGG, MP3 or AIFF"),
        (
            "large.webm",
            WEBM + bytes(4 << 20),
            "The file has more than 4 MB; send one of 20 s of speech",
        ),
        ("large.wav", bytes((16 << 20) + 1), "The file has more than 16 MB; send one of 20 s of"),
    ):
        given.set_input_files({"name": name, "mimeType": "audio/wav", "buffer": data})
        assert until(lambda sentence=sentence: sentence in tab.told()), name
        shown(tab, "off")
    assert service.requests == []
    hint, again = tab.page.locator(".la-hint"), tab.page.locator(".rec-again")
    assert hint.inner_text().startswith("Ask something.")
    service.script = Script(error=BusyError("All places are taken; try again in a moment."))
    given.set_input_files(question())
    assert until(lambda: "All places are taken" in tab.told()) and until(again.is_visible)
    service.script = Script(seconds=0.6, rtf=0.2, wordless=True)
    again.click()
    tab.wait("speaking")
    tab.wait("done")
    assert service.requests[0].messages[-1].content == Speech((50,) * 8) and not again.is_visible()
    assert hint.inner_text() == "This answer is speech alone: no text was written for it."
    tab.choose("Small talk")
    assert tab.text.is_visible() and not tab.page.locator(".rec-talk").is_visible()
    assert not tab.page.evaluate(DROPPED), "the browser leaves the page for the file"
    assert until(lambda: "switch to talk" in tab.told())
    tab.hear("And in writing?")
    kinds = [type(message.content).__name__ for message in service.requests[-1].messages]
    assert kinds == ["Speech", "Reply", "Text"]
    assert len(service.encoded) == 1
    service.script = Script(seconds=9.0, rtf=1.0, wordless=True)
    tab.ask("Its first word might be late.")
    tab.wait("speaking")
    tab.page.keyboard.press("Escape")
    assert "speech alone" not in hint.inner_text()


def test_what_a_browser_or_a_phone_records_is_decoded_by_the_browser(service, speaker):
    tab = speaker()
    given = tab.page.locator(".rec-input")
    given.evaluate(MEMO)
    tab.wait("done")
    wave, rate_hz = service.encoded[-1]
    assert rate_hz == RATE_HZ and 0.5 < len(wave) / rate_hz < 20
    loudest_hz = np.abs(np.fft.rfft(wave)).argmax() * rate_hz / len(wave)
    assert abs(loudest_hz - 440) < 5 and np.abs(wave).max() > 0.5
    tab.page.evaluate(MINUTE)
    given.set_input_files({"name": "memo.webm", "mimeType": "audio/webm", "buffer": WEBM * 9})
    assert until(lambda: tab.told().startswith("The recording lasts 60 s, the limit is 20 s"))
    shown(tab, "off")
    assert len(service.requests) == 1 and tab.problems == []


def test_without_a_microphone_the_page_says_so_and_takes_files(service, speaker):
    tab = speaker(init=NO_MICROPHONE)
    tab.page.locator(".rec-talk").click()
    assert until(lambda: "allow it beside the address" in tab.told())
    shown(tab, "off")
    tab.page.locator(".rec-free").click()
    shown(tab, "off")
    switch = tab.page.locator(".rec-free input")
    assert until(lambda: not switch.is_checked()), "the switch is on, the microphone is not"
    tab.page.route("**/gradio_api/hear", lambda route: (time.sleep(0.5), route.continue_()))
    tab.page.locator(".rec-input").set_input_files(question())
    tab.wait("done")
    assert not tab.page.locator("#problem p").is_visible() and len(service.requests) == 1
    assert tab.state("heardAfterMs") > 500, "the way of the file is not counted"


def test_a_recording_is_sent_before_it_is_too_long(serve, visit):
    service = FakeService(Script(seconds=0.5, rtf=0.1), replace(INFO, max_speech_s=2.0))
    tab = visit(serve(service), permissions=["microphone"])
    tab.choose("Speak to it")
    tab.page.locator(".rec-talk").click()
    tab.wait("done")
    assert 1.4 < len(service.requests[-1].messages[-1].content.codes) * 0.08 <= 2.0
    assert not tab.page.evaluate("recorder.capture.open") and tab.problems == []


# A microphone that dies while it is listened to.


def test_a_microphone_that_dies_or_is_muted_is_told_and_what_it_heard_until_then_is_asked(
    service, speaker
):
    tab = speaker()
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.seconds >= 0.6")
    died_ms = tab.page.evaluate(DIES)
    tab.wait("done")
    assert tab.state("clickMs") >= died_ms, "it is counted from another press"
    assert until(lambda: tab.told().startswith(DISCONNECTED)), "what to do is not said any more"
    wave, rate_hz = service.encoded[-1]
    assert rate_hz == RATE_HZ and len(wave) >= 0.6 * RATE_HZ
    assert closed(tab) and len(service.requests) == 1
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.state === 'recording' && recorder.seconds >= 0.5")
    assert tab.told() == ""
    tab.page.locator(".rec-talk").click()
    assert until(lambda: len(service.requests) == 2)
    shown(tab, "off")
    assert tab.problems == []
    pytest.importorskip("silero_vad")
    for button, state in ((".rec-free", "listening"), (".rec-talk", "recording")):
        tab.page.evaluate(DEAF)
        tab.page.locator(button).click()
        shown(tab, state)
        tab.page.evaluate(DIES)
        shown(tab, "off")
        assert until(lambda: tab.told().startswith(DISCONNECTED))
        assert closed(tab) and len(service.requests) == 2, "it died before anything was said"
    tab.problems.clear()  # of a recording without a sound
    tab.page.locator(".rec-talk").click()
    shown(tab, "recording")
    mute = """(muted) => {
      const [track] = recorder.capture.stream.getTracks();
      Object.defineProperty(track, "muted", { value: muted, configurable: true });
      track.dispatchEvent(new Event(muted ? "mute" : "unmute"));
    }"""
    tab.page.evaluate(mute, True)
    assert until(lambda: tab.told().startswith("The microphone is muted"))
    tab.page.evaluate(mute, False)
    assert until(lambda: tab.told() == "")
    assert tab.page.evaluate("recorder.state") == "recording" and tab.problems == []


# A checkpoint that understands no speech: a recogniser listens, and the page says who.

RECORDED = {"name": "question.flac", "mimeType": "audio/flac", "buffer": SAMPLE.read_bytes()}


def test_a_recogniser_s_words_stand_in_the_conversation_with_who_heard_them(serve, visit):
    service, _ = talking(Written([Say("It is noon."), Say("Have a rest.")]))
    tab = visit(serve(service))
    answers = tab.page.locator("#chat .tr-assistant")
    tab.choose("Speak to it")
    tab.page.wait_for_selector(".rec-file:visible")
    tab.page.locator(".rec-input").set_input_files(RECORDED)
    tab.wait("done")
    asked = tab.page.locator("#chat .tr-user")
    assert asked.locator(".tr-text").inner_text() == HEARD.text
    assert HEARD.recogniser in asked.locator(".tr-note").inner_text()
    assert asked.locator(".clip").count() == 1
    answers.locator(".tr-text").wait_for()
    assert answers.locator(".tr-text").inner_text() == "It is noon. Have a rest."
    tab.page.locator('.fall-row[data-stage="listened"]').wait_for()
    assert tab.page.locator('.fall-row[data-stage="brain"]').is_hidden(), "nobody thought"
    tab.choose("Speak, read the answer")  # a written answer is read
    tab.page.locator(".rec-input").set_input_files(RECORDED)
    shown(tab, "off")
    tab.page.wait_for_function(
        "document.querySelectorAll('#chat .tr-assistant .tr-text').length === 2"
    )
    assert answers.last.locator(".tr-text").inner_text() == "It is noon. Have a rest."
    assert answers.last.locator(".clip").count() == 0 and tab.problems == []
    tab.choose("Speak to it")  # a recording without a voice is a sentence
    tab.page.locator(".rec-input").set_input_files(question())
    tab.page.get_by_text("There is no voice in this recording").first.wait_for()
    assert answers.count() == 2
    assert "noon" in tab.page.locator(".la-text").inner_text()
    assert "rest" in tab.page.evaluate("liveAudio.saying"), "the last words of what was said"
