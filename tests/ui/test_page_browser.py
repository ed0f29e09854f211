"""The page in a real browser: what is heard is what was sent, sample by sample."""

from __future__ import annotations

import io
import wave
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.config import EngineConfig
from moss_engine.ui.config import PageConfig
from scripts.dev import screenshot
from tests.ui.page_support import INFO, MODES, FakeService, Script, engine_stats, free_port, until

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def served():
    from moss_engine.ui.server import launch

    service, port = FakeService(), free_port()
    page = launch(service, PageConfig(port=port, host="0.0.0.0"))
    yield service, port
    page.close(verbose=False)


@pytest.fixture(scope="module")
def real(tiny_checkpoint):
    from moss_engine.build import build_service
    from moss_engine.ui.server import launch

    config = PageConfig(port=free_port())
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu", kv_rows=4096))
    service.start()
    page = launch(service, config)
    yield service, config
    page.close(verbose=False)
    service.close()


@pytest.fixture
def service(served):
    served[0].reset()
    return served[0]


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium("--host-resolver-rules=MAP speech.test 127.0.0.1") as browser:
        yield browser


@pytest.fixture
def visit(browser, served):
    visits = []

    def make(host: str = "127.0.0.1", **options):
        visits.append(browsing.Visit(browser, f"http://{host}:{served[1]}/", **options))
        return visits[-1]

    yield make
    for opened in visits:
        opened.close()


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


def test_what_is_heard_is_what_was_sent_and_the_page_follows(service, visit):
    tab = visit()
    text = "Good morning, this is a test of the whole way."
    speak(tab, service, text)
    assert tab.state("lost") == 0
    assert tab.text.input_value() == ""
    assert tab.page.locator(".la-text").inner_text() == text
    assert until(lambda: tab.page.locator(".la-text span span:not(.said)").count() == 0)
    assert tab.page.locator("#chat .tr-reading .tr-text").last.inner_text() == text
    tab.page.wait_for_selector("#chat .clip")
    for key in (
        "heard_after",
        "ttfa_ms",
        "prefill_ms",
        "queue_wait_ms",
        "rtf",
        "seed",
        "blocks",
        "prompt",
    ):
        assert tab.page.locator(f'[data-key="{key}"] b').inner_text() != "–", key
    assert tab.page.locator('[data-key="underruns"] b').inner_text() == "0"
    _, free = tab.page.locator('[data-key="blocks"] b').inner_text().split(" / ")
    pool = tab.state("pool")
    assert int(free) == pool["free"] + pool["cached"] > 0, "blocks that are kept look taken"
    assert tab.page.locator(".fall-total").inner_text().endswith("ms to the ear")
    assert (
        tab.page.locator(".ids-roll .text").count() > 0
        and tab.page.locator(".ids-roll .code").count() > 0
    )
    assert tab.problems == []
    own = ("http://127.0.0.1:", "blob:", "data:")
    assert all(url.startswith(own) for url in tab.requests), "the page went elsewhere"


def test_heard_after_holds_the_server_and_the_way(service, visit):
    tab = visit()
    tab.ask("How long does it take?")
    tab.wait("done")
    figures = tab.state("figures")
    assert tab.state("heardAfterMs") >= figures["ttfa_ms"] > 90
    spans = tab.page.locator(".fall-row:not([hidden]) b").all_inner_texts()
    assert len(spans) == 7 and all(
        text.endswith(" ms") and float(text[:-3]) >= 0 for text in spans
    ), spans


def test_captions_follow_the_ear_and_not_the_model(service, visit):
    service.script = Script(seconds=4.0, rtf=0.05)
    tab = visit()
    tab.ask(
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen"
    )
    said, words = tab.page.wait_for_function(
        "liveAudio.state.ended && liveAudio.heard > 30000 && [document.querySelectorAll('.la-text "
        ".said').length, "
        "document.querySelectorAll('.la-text span span').length]"
    ).json_value()
    assert words == 16 and 2 <= said <= 12
    tab.wait("done")
    assert until(lambda: tab.page.locator(".la-text .said").count() == 16)


def test_the_second_reply_follows_the_first(service, visit):
    tab = visit()
    speak(tab, service, "One.")
    speak(tab, service, "Two.")
    assert tab.page.locator("#chat .tr-reading").count() == len(service.requests)
    assert tab.problems == []


def test_many_small_chunks_at_once_arrive_in_order(service, visit):
    service.script = Script(seconds=2.0, chunk_s=0.02, rtf=0.05)
    tab = visit()
    speak(tab, service, "A hundred chunks in a moment.")
    assert tab.state("lost") == 0


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
    service.script = Script(seconds=40.0, rtf=0.9)
    tab = visit()
    tab.ask("A long story that nobody wants to hear.")
    tab.wait("speaking")
    tab.page.wait_for_function("liveAudio.heard > 8000")
    tab.text.press("Escape")
    tab.wait("stopped")
    assert until(lambda: not service.open), "the reply was not cancelled"
    tab.assert_silent()
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


def test_stop_before_the_first_sound(service, visit):
    service.script = Script(seconds=2.0, first_s=20.0)
    tab = visit()
    tab.ask("Never mind.")
    tab.wait("thinking")
    tab.page.locator("#stop").click()
    tab.wait("stopped")
    assert until(lambda: not service.open)
    assert len(tab.sound()) == 0
    assert until(lambda: "Stopped." in tab.page.locator("#chat").inner_text())


def test_two_tabs_speak_at_the_same_time(service, visit):
    service.script = Script(seconds=2.5, rtf=0.3, together=2)
    tabs = {"The first of us.": visit(), "The second of us.": visit()}
    for text, tab in tabs.items():
        tab.buffer_whole_replies()
        tab.ask(text)
    for tab in tabs.values():
        tab.wait("speaking", "done")
        tab.wait("done")
    asked = [request.messages[-1].content.text for request in service.requests]
    for text, tab in tabs.items():
        tab.assert_heard(service.sent(asked.index(text)))
        assert tab.problems == []


def test_the_real_service_in_two_tabs(real, browser):
    service, config = real
    tabs = [browsing.Visit(browser, f"http://127.0.0.1:{config.port}/") for _ in range(2)]
    for tab in tabs:
        tab.page.locator("#settings button").first.click()
        tab.page.get_by_label("New seed for every reply").uncheck()
        tab.ask("Hello there, world. I am here.")
    for tab in tabs:
        tab.wait("speaking", "done")
        tab.wait("done")
    heard = [tab.sound() for tab in tabs]
    if not any(tab.state("underruns") for tab in tabs):
        assert len(heard[0]) > 0 and np.array_equal(
            np.trim_zeros(heard[0], "b"), np.trim_zeros(heard[1], "b")
        )
    for tab in tabs:
        tab.ask(" ".join(["Hello world and you."] * 60))
        tab.page.wait_for_function(
            "liveAudio.state.phase === 'speaking' && liveAudio.state.run !== null"
        )
        tab.text.press("Escape")
        tab.wait("stopped")
    assert until(lambda: engine_stats(service).blocks_used == 0), "Stop left KV blocks behind"
    assert engine_stats(service).leaked_blocks == 0
    for tab in tabs:
        assert tab.problems == []
        tab.close()


def test_closing_the_tab_ends_its_reply(service, visit):
    service.script = Script(seconds=20.0, rtf=0.9)
    tab = visit()
    tab.ask("Gone before the end.")
    tab.wait("speaking")
    tab.close()
    assert until(lambda: service.cancelled and not service.open)


def test_without_a_secure_context_sound_is_scheduled_and_still_exact(service, visit):
    tab = visit("speech.test")
    assert not tab.page.evaluate("isSecureContext")
    assert tab.page.locator(".la-note").is_visible()
    speak(tab, service, "Plain http on the local network.")


def test_pause_replay_and_save(service, visit):
    service.script = Script(seconds=1.5, rtf=0.2)
    tab = visit(reduced_motion="no-preference")
    tab.buffer_whole_replies()
    tab.ask("Once more.")
    tab.page.wait_for_function("liveAudio.heard > 4000")
    tab.page.locator(".la-pause").click()
    held = tab.page.evaluate("liveAudio.heard")
    tab.page.wait_for_timeout(400)
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


def test_a_mode_without_sound_shows_its_text(service, visit):
    tab = visit()
    tab.page.locator("#mode label", has_text="Write").click()
    tab.ask("In writing, please.")
    tab.wait("done")
    assert service.requests[-1].mode == "write"
    assert tab.page.locator(".la-text").inner_text() == "In writing, please."
    assert len(tab.sound()) == 0


def test_what_the_checkpoint_cannot_do_is_shown_with_the_reason(browser):
    from moss_engine.ui.server import launch, warm_up_gradio

    service, port = FakeService(info=replace(INFO, modes=MODES[:1])), free_port()
    page = launch(service, PageConfig(port=port))
    assert warm_up_gradio(page), "the warm-up was refused"
    tab = browsing.Visit(browser, f"http://127.0.0.1:{port}/")
    tab.page.locator(".about-open").click()
    closed = tab.page.locator(".about .closed li")
    assert [text.partition(": This checkpoint ")[0] for text in closed.all_inner_texts()] == [
        "Speak to it",
        "Free conversation",
    ]
    assert tab.page.locator(".about p code").all_inner_texts() == [
        "python -m scripts.download",
        "python -m scripts.doctor CHECKPOINT CODEC",
    ]
    assert tab.page.locator("#mode input").evaluate_all(
        "all => all.map((input) => input.value)"
    ) == ["read"]
    tab.page.keyboard.press("Escape")
    assert not closed.first.is_visible()
    assert not tab.page.locator("#recorder").is_visible() and tab.problems == []
    tab.close()
    page.close(verbose=False)


def test_keyboard_alone_is_enough(service, visit):
    tab = visit()
    tab.page.wait_for_function("document.activeElement?.tagName === 'TEXTAREA'")
    tab.page.keyboard.type("Typed without a mouse.")
    tab.page.keyboard.press("Enter")
    tab.wait("speaking")
    tab.wait("done")
    reached = []
    for _ in range(40):
        tab.page.keyboard.press("Tab")
        reached.append(
            tab.page.evaluate(
                "[document.activeElement.closest('[id]')?.id, "
                "document.activeElement.className].join(' ')"
            )
        )
    for name in (
        "send",
        "chip",
        "settings",
        "la-scope",
        "la-pause",
        "la-mute",
        "la-volume",
        "la-save",
        "explain",
    ):
        assert any(name in place for place in reached), f"{name} is out of reach"
    assert not any("tile" in place for place in reached), "a stop without function"
    tab.page.locator(".la-mute").focus()
    tab.page.keyboard.press("Tab")
    outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus cannot be seen"
    tab.page.locator(".explain").press("Enter")
    assert (
        tab.page.locator("#tip-rtf").is_visible()
        and "Real-time factor" in tab.page.locator("#tip-rtf").inner_text()
    )


def test_every_control_has_a_name_of_its_own_for_those_who_hear_the_page(visit):
    tab = visit()
    tab.page.locator("#settings button").first.click()
    for head in ("Speech head", "Text head"):
        group = tab.page.get_by_role("group", name=head, exact=True)
        group.get_by_role("slider", name="Temperature").wait_for()
        assert group.get_by_role("slider").count() == 4
    assert tab.page.get_by_role("group", name="Mode", exact=True).get_by_role(
        "radio"
    ).count() == len(MODES)
    nodes = tab.context.new_cdp_session(tab.page).send("Accessibility.getFullAXTree")["nodes"]
    roles = {
        "button",
        "checkbox",
        "combobox",
        "group",
        "img",
        "link",
        "radio",
        "region",
        "slider",
        "spinbutton",
        "switch",
        "textbox",
    }
    named = [
        (node["role"]["value"], node["name"]["value"].strip())
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    ]
    assert len(named) > 40 and [role for role, name in named if not name] == []


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_window(service, visit, width):
    tab = visit(viewport={"width": width, "height": 844})
    tab.page.locator("#settings button").first.click()
    tab.ask("Supercalifragilistic" * 12)
    tab.wait("done")
    wide = tab.page.evaluate("""() => [...document.querySelectorAll('main *')].filter((e) =>
      e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.la-scope, .tip, .chips'))
      .map((e) => e.id + '.' + e.className)""")
    assert wide == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


READABLE = [
    ".mast h1",
    ".mast .lead",
    ".about-open",
    "#panel .facts dt",
    "#panel .facts dd",
    ".la-headline b",
    ".la-headline span",
    ".details-open",
    ".explain",
    ".la-status",
    ".la-time",
    ".la-save",
    ".tile-name",
    ".tile-value b",
    ".tile-value small",
    ".fall-row",
    ".ids-roll span",
    "#send",
    "#stop",
    ".chip",
    "#notice p",
    "#mode label.selected span",
    "#mode-notes p",
    "#chat .tr-text",
    "#chat .clip-time",
    "#text textarea",
    ".la-text .said",
]


IN_SETTINGS = [
    "#settings .label-wrap span",
    "#settings label > span",
    "#settings input[role=combobox]",
    "#seed input",
    "#settings .does",
    "#settings input[type=number]",
    "#settings h3",
    "#placeholder",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_shades(service, visit, scheme):
    tab = visit(color_scheme=scheme)
    tab.ask("Light and dark.")
    tab.wait("done")
    assert tab.page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
    ratios = dict(tab.page.evaluate(browsing.CONTRAST.replace("SELECTORS", str(READABLE))))
    assert {selector: round(ratio, 2) for selector, ratio in ratios.items() if ratio < 4.5} == {}
    tab.page.locator("#settings button").first.click()
    tab.page.wait_for_selector("#seed input")
    tab.page.evaluate("""() => {
      const box = document.querySelector("#text textarea");
      const hint = document.createElement("i");
      hint.id = "placeholder";
      hint.style.color = getComputedStyle(box, "::placeholder").color;
      box.after(hint);
    }""")
    ratios = dict(tab.page.evaluate(browsing.CONTRAST.replace("SELECTORS", str(IN_SETTINGS))))
    assert {selector: round(ratio, 2) for selector, ratio in ratios.items() if ratio < 4.5} == {}


def test_the_shade_can_be_switched_and_is_kept(visit):
    tab = visit(color_scheme="light")
    tab.page.locator(".shade").click()
    assert tab.page.evaluate("document.body.classList.contains('dark')")
    tab.page.reload()
    tab.page.wait_for_function("window.liveAudio?.ready")
    assert until(lambda: tab.page.evaluate("document.body.classList.contains('dark')"))


def test_where_the_browser_chooses_the_colours_lines_say_what_they_said(service, visit):
    tab = visit(forced_colors="active")
    tab.page.locator("#mode label", has_text="Small talk").click()
    tab.ask("In few colours.")
    tab.wait("done")
    tab.page.wait_for_selector("#chat .tr-user .tr-text")

    def style(selector: str, name: str) -> str:
        return tab.page.evaluate(
            f"getComputedStyle(document.querySelector({selector!r}))[{name!r}]"
        )

    assert style("#mode label.selected", "outlineStyle") == "solid"
    assert style("#mode label:not(.selected)", "outlineStyle") == "none"
    assert style("#text", "outlineStyle") == "solid", "the focus cannot be seen"
    for framed in ("#send", ".la-pause", "#chat .tr-user .tr-text"):
        assert style(framed, "borderTopStyle") == "solid", framed
    shown = tab.page.evaluate(
        "[...document.querySelectorAll('.fall-track i')].map((bar) => getComputedStyle(bar))"
        ".map(({forcedColorAdjust}) => forcedColorAdjust)"
    )
    assert set(shown) == {"none"}, "the bars of the waterfall cannot be seen"
    assert style(".la-text .said", "textDecorationLine") == "underline", "heard looks as unheard"


def test_what_is_spoken_is_not_read_out_over_the_voice(service, visit):
    tab = visit()
    tab.ask("This is heard.")
    tab.wait("done")
    assert tab.page.locator(".la-spoken").inner_text() == ""
    tab.page.locator("#mode label", has_text="Write").click()
    tab.ask("This is read.")
    assert until(lambda: tab.page.locator(".la-spoken").inner_text() == "This is read.")


def test_nothing_moves_for_those_who_asked_for_it(service, visit):
    tab = visit(reduced_motion="reduce")
    tab.ask("Quietly.")
    tab.wait("speaking")
    assert (
        tab.page.evaluate(
            "getComputedStyle(document.querySelector('.la-playhead')).transitionDuration"
        )
        == "0s"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_for_the_password_can_be_seen(browser, scheme):
    from moss_engine.ui.server import launch

    service, port = FakeService(), free_port()
    page = launch(service, PageConfig(port=port, auth="guest:secret"))
    tab = browser.new_context(color_scheme=scheme).new_page()
    tab.goto(f"http://127.0.0.1:{port}/")
    tab.locator("input[type=password]").wait_for()
    contrast = browsing.CONTRAST.replace(
        "SELECTORS", str(["label span", "button", "input[type=password]"])
    )
    assert {selector: ratio for selector, ratio in tab.evaluate(contrast) if ratio < 4.5} == {}
    looks = (
        "(part) => ['backgroundColor', 'borderTopColor', 'borderTopWidth']"
        ".map((name) => getComputedStyle(part)[name])"
    )
    field, button, card = (
        tab.locator(part).evaluate(looks) for part in ("input[type=password]", "button", ".panel")
    )
    assert field[1] != card[0] and field[2] == "1px", "the field cannot be told from the page"
    assert button[0] not in (card[0], "rgba(0, 0, 0, 0)"), "the button cannot be told from the page"
    assert "MOSS-Speech Live" in tab.locator(".panel").inner_text()
    tab.locator("input").first.fill("guest")
    tab.locator("input[type=password]").fill("secret")
    tab.get_by_role("button", name="Login").click()
    tab.wait_for_function("window.liveAudio?.ready")
    tab.context.close()
    page.close(verbose=False)


def test_a_picture_needs_a_folder_to_go_to(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["screenshot", "--out", str(tmp_path / "missing" / "page.png")])
    monkeypatch.setattr(
        screenshot,
        "take",
        lambda *_: pytest.fail("the picture was taken before its place was known"),
    )
    with pytest.raises(
        ConfigError,
        match=r"There is no folder .*missing; make it, or name another file with --out\.",
    ):
        screenshot.main()
