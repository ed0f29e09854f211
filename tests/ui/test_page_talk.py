"""Talking to the page in a real browser: a microphone that plays a recording, and every way a
question can go."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import BusyError
from moss_engine.api.request import Reply, Speech
from moss_engine.api.tokens import code_of
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui.config import PageConfig
from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import IDS, INFO, FakeService, Script, free_port, until

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed"),
]

MIC_HZ = 48_000
PAUSE_S = 2.5
# The browser would otherwise cancel echo and noise and change the level: what arrives could not be
# compared.
RAW = """() => {
  const wanted = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = () => wanted({
    audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false } });
}"""
NO_MICROPHONE = """() => {
  navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("no", "NotAllowedError"));
}"""

DEAF = "recorder.capture.listener = () => {}"  # the microphone gives no sound at all
HEARD = (
    """((said) => recorder.line.heard({ utterance: "", seconds: 0.6, text: "", ...said }, false))"""
)
SAID = f"""async (bytes) => {{ // as if the server had found the turn in what it heard
  const {{ utterance }} = await recorder.line.sendFile(new Blob([new Uint8Array(bytes)]));
  {HEARD}({{ utterance, talking: false, sure: true }});
}}"""
ASKS_FIRST = """() => { // as a browser does until somebody presses Allow
  const wanted = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  const asked = [];
  window.microphones = [];
  window.allow = () => asked.forEach((resolve) => resolve());
  navigator.mediaDevices.getUserMedia = async (options) => {
    await new Promise((resolve) => asked.push(resolve));
    const stream = await wanted(options);
    microphones.push(stream);
    return stream;
  };
}"""


@pytest.fixture(scope="module")
def said() -> np.ndarray:
    """float32 [n] at MIC_HZ: a sentence of a voice."""
    wave, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    return np.interp(np.arange(0, len(wave), rate_hz / MIC_HZ), np.arange(len(wave)), wave).astype(
        np.float32
    )


@pytest.fixture(scope="module")
def browser(said, tmp_path_factory):
    path = tmp_path_factory.mktemp("microphone") / "question.wav"
    soundfile.write(
        path, np.concatenate([said, np.zeros(round(PAUSE_S * MIC_HZ), np.float32)]), MIC_HZ
    )
    flags = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}",
        "--host-resolver-rules=MAP speech.test 127.0.0.1",
    )
    with browsing.chromium(*flags) as browser:
        yield browser


@pytest.fixture(scope="module")
def served():
    from moss_engine.ui.server import launch

    service, port = FakeService(info=replace(INFO, max_speech_s=20.0)), free_port()
    page = launch(service, PageConfig(port=port, host="0.0.0.0"))
    yield service, port
    page.close(verbose=False)


@pytest.fixture
def service(served):
    served[0].reset()
    return served[0]


@pytest.fixture
def visit(browser, served):
    visits = []

    def make(host: str = "127.0.0.1", script: str = RAW, **options):
        options = {"permissions": ["microphone"], **options} if host == "127.0.0.1" else options
        tab = browsing.Visit(browser, f"http://{host}:{served[1]}/", **options)
        visits.append(tab)
        tab.page.wait_for_function("window.recorder?.ready")
        if host == "127.0.0.1":
            tab.page.evaluate(script)
        tab.page.locator("#mode label", has_text="Speak to it").click()
        tab.page.wait_for_selector(".rec-talk:visible")
        return tab

    yield make
    for opened in visits:
        opened.close()


def shown(tab, *states: str) -> None:
    tab.page.wait_for_function(f"{list(states)}.includes(recorder.shown)")


def record(tab, seconds: float) -> None:
    """Press, wait until so much has reached the server, press again."""
    tab.page.locator(".rec-talk").click()
    shown(tab, "recording")
    tab.page.wait_for_function(f"recorder.seconds >= {seconds}")
    tab.page.locator(".rec-talk").click()


def question(seconds: float = 0.6) -> dict:
    """A file to choose."""
    file = io.BytesIO()
    soundfile.write(file, 0.5 * np.sin(np.arange(round(seconds * RATE_HZ))), RATE_HZ, format="WAV")
    return {"name": "question.wav", "mimeType": "audio/wav", "buffer": file.getvalue()}


def closeness_db(heard: np.ndarray, source: np.ndarray) -> float:
    """Signal over difference, where a piece of the source fits what was heard best."""
    middle = heard[len(heard) // 3 :][: RATE_HZ // 2]
    size = len(source) + len(middle)
    spectrum = np.fft.rfft(source, size) * np.conj(np.fft.rfft(middle, size))
    at = int(np.argmax(np.fft.irfft(spectrum, size)[: len(source)]))
    error = source[at : at + len(middle)] - middle[: len(source) - at]
    return 10 * np.log10(np.mean(middle**2) / np.mean(error**2))


def low(wave: np.ndarray, rate_hz: int) -> np.ndarray:
    """The same without what lies above 6.5 kHz, where the recorder begins to fade."""
    spectrum = np.fft.rfft(wave)
    spectrum[round(len(wave) * 6_500 / rate_hz) :] = 0
    return np.fft.irfft(spectrum, len(wave))


def test_a_question_is_recorded_and_its_answer_heard_sample_by_sample(service, visit, said):
    source = low(np.tile(np.concatenate([said, np.zeros(round(PAUSE_S * MIC_HZ))]), 2), MIC_HZ)
    tab = visit()
    for _ in range(12):  # a browser that gets no processor loses sound on either way
        tab.forget()
        record(tab, 1.0)
        tab.wait("speaking")
        tab.wait("done")
        wave, rate_hz = service.encoded[-1]
        assert rate_hz == RATE_HZ and len(wave) >= 1.0 * RATE_HZ
        step = MIC_HZ // RATE_HZ  # the recorder may begin at any of so many samples
        closest_db = max(
            closeness_db(low(wave, RATE_HZ), source[begin::step]) for begin in range(step)
        )
        if tab.state("underruns") == 0 and closest_db > 40:
            break
        tab.page.wait_for_timeout(300)
        tab.buffer_whole_replies()
    tab.assert_heard(service.sent())
    assert isinstance(service.requests[-1].messages[-1].content, Speech)
    assert closest_db > 40, "the recorder changed the sound"
    assert tab.page.locator("#chat .tr-user .clip").count() >= 1
    assert tab.problems == [] and not any("/upload" in url for url in tab.requests)


def test_space_talks_and_escape_takes_it_back(service, visit):
    tab = visit()
    tab.page.locator("#mode label", has_text="Speak to it").click()
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("Space")
    shown(tab, "recording")
    tab.page.keyboard.press("Escape")
    shown(tab, "off")
    tab.page.wait_for_timeout(300)
    assert service.requests == [] and not tab.page.evaluate("recorder.capture.open")
    tab.page.keyboard.press("Space")
    tab.page.wait_for_function("recorder.seconds >= 0.5")
    tab.page.keyboard.press("Space")
    tab.wait("done")
    assert len(service.requests) == 1


def test_escape_that_closes_a_dialog_leaves_the_recording_alone(visit):
    tab = visit()
    tab.page.locator(".rec-talk").click()
    shown(tab, "recording")
    tab.page.locator(".about-open").click()
    about = tab.page.get_by_role("dialog")
    about.wait_for()
    tab.page.keyboard.press("Escape")
    about.wait_for(state="hidden")
    assert tab.page.evaluate("recorder.state") == "recording"


def test_hands_free_ends_the_turn_and_a_voice_ends_the_answer(service, visit):
    pytest.importorskip("silero_vad")
    service.script = Script(seconds=30.0, rtf=0.05)
    tab = visit()
    tab.page.locator(".rec-free").click()
    shown(tab, "hearing")
    assert tab.page.locator(".rec-state").inner_text() == "Hearing you"
    shown(tab, "speaking")
    assert (
        len(service.requests) == 1
        and tab.page.locator(".rec-hint").inner_text() == "talk to interrupt"
    )
    tab.page.evaluate("""() => {
      document.addEventListener("liveaudio", ({ detail }) => {
        if (detail.phase === "stopped") window.cutAt ??= [liveAudio.heard, Date.now()];
      });
    }""")
    shown(tab, "hearing")
    tab.page.wait_for_function("window.cutAt !== undefined")
    heard, at_ms = tab.page.evaluate("cutAt")
    assert until(lambda: service.cancelled), "the answer was not stopped"
    assert until(lambda: len(service.requests) == 2)
    assert tab.page.evaluate("tap.firstAt") < at_ms
    asked, answer, again = service.requests[1].messages
    assert (
        isinstance(asked.content, Speech)
        and isinstance(answer.content, Reply)
        and isinstance(again.content, Speech)
    )
    codes = sum(code_of(row, IDS) is not None for row in answer.content.rows)
    assert heard > 0 and abs(codes - heard / 960) < 3, "the history is not what was heard"
    tab.page.locator("#stop").click()
    shown(tab, "off")
    assert not tab.page.locator(".rec-free input").is_checked() and not tab.page.evaluate(
        "recorder.capture.open"
    )
    assert until(lambda: not service.open)
    assert tab.problems == []


def test_the_answer_falls_silent_as_soon_as_somebody_talks(service, visit):
    pytest.importorskip("silero_vad")
    service.script = Script(seconds=30.0, rtf=0.05)
    tab = visit()
    tab.page.locator(".rec-free").click()
    shown(tab, "speaking")
    shown(tab, "hearing")
    tab.assert_silent()


def test_a_file_is_asked_at_once(service, visit):
    tab = visit()
    tab.page.locator(".rec-input").set_input_files(question())
    tab.wait("speaking")
    tab.wait("done")
    assert service.requests[0].messages[-1].content == Speech((50,) * 8) and tab.problems == []


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("empty.wav", b"", "The file is empty"),
        ("text.wav", b"hello there\n" * 20, "no audio file"),
        ("list.mp3", b"#EXTM3U\n/etc/passwd\n", "no audio file"),
        ("long.flac", None, "the limit is 20 s"),
        ("large.wav", b"RIFF" + bytes(17 * 1024 * 1024), "The limit is 16 MB"),
    ],
)
def test_other_files_are_refused_with_a_sentence(service, visit, name, data, sentence):
    tab = visit()
    if data is None:
        file = io.BytesIO()
        soundfile.write(file, np.zeros(RATE_HZ * 60), RATE_HZ, format="FLAC")
        data = file.getvalue()
    tab.page.locator(".rec-input").set_input_files(
        {"name": name, "mimeType": "audio/wav", "buffer": data}
    )
    note = tab.page.locator("#problem [role=alert]")
    assert until(lambda: sentence in note.inner_text())
    shown(tab, "off")
    assert service.requests == []


def test_a_cough_leaves_a_reply_as_it_was_playing_or_paused(service, visit):
    pytest.importorskip("silero_vad")
    service.script = Script(seconds=30.0, rtf=0.05)
    tab = visit()
    tab.page.evaluate(DEAF)
    tab.page.locator(".rec-free").click()
    shown(tab, "listening")
    tab.page.evaluate(SAID, list(question()["buffer"]))
    tab.page.wait_for_function("liveAudio.heard > 4000")
    now = "[recorder.state, Boolean(liveAudio.player.paused)]"
    for paused in (False, True):
        tab.page.wait_for_function("!liveAudio.player.silent")
        if paused:
            tab.page.locator(".la-pause").click()
        tab.page.evaluate(f"{HEARD}({{ talking: true, sure: false }})")
        assert tab.page.evaluate(now) == ["hearing", True]
        tab.page.evaluate(f"{HEARD}({{ talking: false, sure: true }})")
        assert tab.page.evaluate(now) == ["listening", paused]


def test_without_a_microphone_the_page_says_so_and_takes_files(service, visit):
    tab = visit(script=NO_MICROPHONE)
    tab.page.locator(".rec-talk").click()
    assert until(lambda: "allow it beside the address" in tab.page.locator("#problem").inner_text())
    shown(tab, "off")
    tab.page.locator(".rec-free").click()
    shown(tab, "off")
    switch = tab.page.locator(".rec-free input")
    assert until(lambda: not switch.is_checked()), "the switch is on, the microphone is not"
    tab.page.locator(".rec-input").set_input_files(question())
    tab.wait("done")
    assert not tab.page.locator("#problem p").is_visible() and len(service.requests) == 1


def test_presses_while_the_browser_asks_for_the_microphone_leave_one_open(service, visit):
    tab = visit(script=ASKS_FIRST)
    talk, live = tab.page.locator(".rec-talk"), "microphones.filter(({ active }) => active).length"
    for _ in range(3):
        talk.click()
    tab.page.evaluate("allow()")
    shown(tab, "recording")
    tab.page.wait_for_function("microphones.length === 2 && recorder.seconds >= 0.5")
    assert tab.page.evaluate(live) == 1
    talk.click()
    tab.wait("done")
    assert tab.page.evaluate(live) == 0 and len(service.requests) == 1 and tab.problems == []


def test_without_a_secure_context_only_files_are_taken(service, visit):
    tab = visit("speech.test")
    assert (
        tab.page.locator(".rec-talk").is_disabled()
        and tab.page.locator(".rec-free input").is_disabled()
    )
    assert "https or localhost" in tab.page.locator(".rec-why").inner_text()
    tab.page.locator(".rec-input").set_input_files(question())
    tab.wait("done")
    assert len(service.requests) == 1


def test_silence_is_no_question(service, visit):
    tab = visit(
        script="""() => {
      navigator.mediaDevices.getUserMedia = async () => new AudioContext().createMediaStreamDestination().stream;
    }"""
    )
    record(tab, 0.5)
    assert until(lambda: "We heard nothing" in tab.page.locator("#problem").inner_text())
    assert service.requests == []


def test_a_recording_is_sent_before_it_is_too_long(browser):
    from moss_engine.ui.server import launch

    service, port = (
        FakeService(Script(seconds=0.5, rtf=0.1), replace(INFO, max_speech_s=2.0)),
        free_port(),
    )
    page = launch(service, PageConfig(port=port))
    tab = browsing.Visit(browser, f"http://127.0.0.1:{port}/", permissions=["microphone"])
    tab.page.wait_for_function("window.recorder?.ready")
    tab.page.locator("#mode label", has_text="Speak to it").click()
    tab.page.locator(".rec-talk").click()
    tab.wait("done")
    assert 1.4 < len(service.requests[-1].messages[-1].content.codes) * 0.08 <= 2.0
    assert not tab.page.evaluate("recorder.capture.open") and tab.problems == []
    tab.close()
    page.close(verbose=False)


def test_a_microphone_that_was_closed_for_want_of_use_is_opened_again(service, visit):
    tab = visit()
    forgotten = "recorder.line.key = 'forgotten-by-the-server'"
    tab.page.evaluate(forgotten)
    record(tab, 0.5)
    tab.wait("done")
    tab.page.evaluate(forgotten)
    tab.page.locator(".rec-input").set_input_files(question())
    assert until(lambda: len(service.requests) == 2)
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.seconds > 0.2")
    tab.page.evaluate(forgotten)
    assert until(lambda: "start it again" in tab.page.locator("#problem").inner_text())
    shown(tab, "off")


def test_typed_and_spoken_questions_share_a_conversation(service, visit):
    tab = visit()
    tab.page.locator(".rec-input").set_input_files(question())
    tab.wait("speaking")
    tab.wait("done")
    tab.page.locator("#mode label", has_text="Small talk").click()
    assert tab.text.is_visible() and not tab.page.locator(".rec-talk").is_visible()
    tab.ask("And in writing?")
    tab.page.wait_for_function("liveAudio.state.phase === 'speaking'")
    tab.wait("done")
    kinds = [type(message.content).__name__ for message in service.requests[-1].messages]
    assert kinds == ["Speech", "Reply", "Text"]
    assert len(service.encoded) == 1


def test_a_question_that_found_no_place_can_be_sent_again(service, visit):
    service.script = Script(error=BusyError("All places are taken; try again in a moment."))
    tab = visit()
    again = tab.page.locator(".rec-again")
    tab.page.locator(".rec-input").set_input_files(question())
    assert until(lambda: "All places are taken" in tab.page.locator("#problem").inner_text())
    assert until(again.is_visible)
    service.script = Script(seconds=0.5, rtf=0.2)
    again.click()
    tab.wait("done")
    assert len(service.requests) == 1 and len(service.encoded) == 1 and not again.is_visible()


def test_an_answer_without_text_says_so(service, visit):
    service.script = Script(seconds=1.0, rtf=0.2, wordless=True)
    tab = visit()
    hint = tab.page.locator(".la-hint")
    assert hint.inner_text().startswith("Ask something.")
    tab.page.locator(".rec-input").set_input_files(question())
    tab.wait("speaking")
    tab.wait("done")
    assert (
        hint.is_visible()
        and hint.inner_text() == "This answer is speech alone: no text was written for it."
    )


def test_leaving_the_mode_closes_the_microphone(visit):
    tab = visit()
    tab.page.locator(".rec-talk").click()
    shown(tab, "recording")
    tab.page.locator("#mode label", has_text="Write").click()
    shown(tab, "off")
    assert not tab.page.evaluate("recorder.capture.open")


def test_every_control_is_in_reach_of_the_keyboard(visit):
    tab = visit()
    reached = []
    for _ in range(30):
        tab.page.keyboard.press("Tab")
        reached.append(
            tab.page.evaluate(
                "[document.activeElement.className, document.activeElement.role].join()"
            )
        )
    for name in ("rec-talk", "switch", "rec-file"):
        assert any(name in place for place in reached), f"{name} is out of reach"
    assert tab.page.locator(".rec-state").get_attribute("role") == "status"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_recorder_fits_and_can_be_read(service, visit, width, scheme):
    tab = visit(viewport={"width": width, "height": 844}, color_scheme=scheme)
    record(tab, 0.5)
    tab.wait("done")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    selectors = [
        ".rec-state",
        ".rec-hint",
        ".rec-free",
        ".rec-file",
        "#mode-notes p:not([hidden])",
        "#chat .tr-user .clip-time",
    ]
    ratios = dict(tab.page.evaluate(browsing.CONTRAST.replace("SELECTORS", str(selectors))))
    assert {selector: round(ratio, 2) for selector, ratio in ratios.items() if ratio < 4.5} == {}


def test_the_scope_shows_how_loud_the_visitor_is(service, visit):
    tab = visit()
    own = tab.page.locator(".la-own")
    assert not own.is_visible()
    tab.page.locator("#mode label", has_text="Speak to it").click()
    tab.page.locator(".rec-talk").click()
    tab.page.wait_for_function("recorder.seconds >= 0.5")
    assert own.is_visible()
    drawn = (
        "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
    )
    assert own.evaluate(f"(canvas) => ({drawn})(canvas).some((value) => value)")
    tab.page.keyboard.press("Escape")
    shown(tab, "off")
    assert not own.is_visible()
