"""How the page looks and can be reached: at every width, in both shades, by keyboard, and for those
who hear it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ui.page_support import INFO, MODES, FakeService, Script, until

WIDTHS = [320, 390, 640, 820, 1100, 1440]  # half of them are another's at 200 %

# What lies outside its card or the window, over something else, or is cut. What scrolls may reach
# beyond what is seen of it.
FAULTS = """() => {
  const cards = "#talk, #live, #said, #panel, .mast, #notice";
  const scrolls = ".chips, .la-caption, #chat, .ids-roll, .about, .rec-free, textarea";
  const shown = (e) => e.getClientRects().length && e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const speaks = (e) => e.matches("button, input, textarea, svg") || [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const hidden = (e) => getComputedStyle(e).clipPath !== "none" || e.closest(".tr-who, .la-spoken");
  const name = (e) => `${e.tagName.toLowerCase()}.${e.className.baseVal ?? e.className}#${e.closest("[id]")?.id} "${e.textContent.trim().slice(0, 24)}"`;
  const boxes = [];
  for (const card of document.querySelectorAll(cards)) {
    if (!shown(card)) continue;
    const frame = card.getBoundingClientRect();
    for (const e of card.querySelectorAll("*")) {
      if (!speaks(e) || e.parentElement.closest("button, svg") || !shown(e) || hidden(e) || e.closest(".la-bar") && getComputedStyle(e.closest(".la-bar")).position === "fixed") continue;
      const range = document.createRange();
      range.selectNodeContents(e);
      const own = e.getBoundingClientRect();
      const text = e.matches("button, input, textarea, svg") ? own : range.getBoundingClientRect();
      if (text.width < 1 || text.height < 1 || e.matches("input[type=radio], input[type=checkbox]")) continue;
      const inner = e.parentElement.closest(scrolls);
      boxes.push({ e, text, inner, card });
      if (inner) continue;
      if (text.left < frame.left - 1 || text.right > frame.right + 1 || text.top < frame.top - 1 || text.bottom > frame.bottom + 1) boxes.at(-1).fault = "outside its card";
      if (text.right > innerWidth + 1 || text.left < -1) boxes.at(-1).fault = "outside the window";
      if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).overflowX === "hidden" && getComputedStyle(e).textOverflow !== "ellipsis") boxes.at(-1).fault = "cut";
    }
  }
  const faults = boxes.filter((box) => box.fault).map((box) => `${name(box.e)} is ${box.fault}`);
  const outer = boxes.filter((box) => !box.inner).sort((a, b) => a.text.top - b.text.top);
  outer.forEach((a, i) => {
    for (let j = i + 1; j < outer.length && outer[j].text.top < a.text.bottom - 2; j++) {
      const b = outer[j];
      const wide = Math.min(a.text.right, b.text.right) - Math.max(a.text.left, b.text.left);
      const high = Math.min(a.text.bottom, b.text.bottom) - b.text.top;
      if (wide > 2 && high > 2 && !a.e.contains(b.e) && !b.e.contains(a.e)) faults.push(`${name(a.e)} overprints ${name(b.e)}`);
    }
  });
  if (document.querySelector(".lead").offsetHeight > 24) faults.push("the head's sentence takes several lines");
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page scrolls sideways");
  return [...new Set(faults)];
}"""

FOUND = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`))"""


def idle(service, tab) -> None:
    tab.page.locator("#settings summary").click()
    tab.page.wait_for_selector("#seed input")


def talk(service, tab) -> None:
    tab.choose("Speak to it")
    tab.page.wait_for_selector(".rec-talk:visible")


def speaking(service, tab) -> None:
    tab.choose("Read aloud")
    service.script = Script(seconds=20.0, rtf=0.1)
    tab.ask("Please call Dr. Smith at 4:30 pm about the $25 invoice, and then call me.")
    tab.page.wait_for_function("liveAudio.heard > 40000")
    tab.page.locator(".la-pause").click()


def after(service, tab) -> None:
    tab.text.press("Escape")
    tab.wait("stopped")
    service.script = Script(seconds=2.2, rtf=0.1)
    tab.hear("Supercalifragilistic" * 8 + " and short words too.")
    tab.page.wait_for_selector("#chat .clip")
    tab.page.locator(".explain").click()


def error(service, tab) -> None:
    tab.ask("too long " * 200)
    tab.page.locator("#problem p").wait_for()


STATES = (idle, talk, speaking, after, error)


def test_nothing_is_out_of_place_at_any_width_in_any_state(service, visit):
    tab = visit(viewport={"width": 1440, "height": 900})
    found = {}
    for state in STATES:
        state(service, tab)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            if faults := tab.page.evaluate(FAULTS):
                found[f"{state.__name__}, {width}"] = faults
    assert found == {}


# Phones, and windows of 1280 x 900, 1440 x 900 and 1920 x 1080 at 200 %.
SMALL = [(320, 568), (390, 844), (844, 390), (640, 450), (720, 450), (960, 540)]


def test_in_a_small_window_player_and_captions_stay_in_sight_while_it_speaks(service, visit):
    tab = visit(viewport={"width": 320, "height": 568})
    above, below = (tab.page.locator(part).bounding_box() for part in ("#talk", "#live"))
    assert above["y"] < below["y"]
    speaking(service, tab)
    for width, height in SMALL:
        tab.page.set_viewport_size({"width": width, "height": height})
        for place in ("0", "document.body.scrollHeight"):
            tab.page.evaluate(f"scrollTo(0, {place})")
            low = ["#stop"] if height < 480 else []
            for part in (".la-pause", ".la-text .said >> nth=-1", *low):
                box = tab.page.locator(part).bounding_box()
                assert box["y"] > 0 and box["y"] + box["height"] <= height, (part, width)
        tab.text.evaluate("(box) => { box.blur(); box.focus(); }")
        tab.page.keyboard.type("Typed meanwhile.")
        tab.page.locator(".la-caption").click(trial=True)
        caption, box = tab.page.locator(".la-caption").bounding_box(), tab.text.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= caption["y"], f"covered at {width}"
    tab.page.keyboard.press("Escape")
    assert until(lambda: tab.state("phase") == "stopped")


def test_nothing_moves_as_a_reply_begins_and_its_last_words_stay_in_sight(service, visit):
    tab = visit(view="listen", has_touch=True, viewport={"width": 1024, "height": 768})
    assert tab.page.locator("#settings summary").bounding_box()["height"] >= 44, "for a finger"
    voices = tab.page.locator("#voices")
    before = voices.bounding_box()
    speaking(service, tab)
    assert voices.bounding_box() == before
    tab.text.press("Escape")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    service.script = Script(seconds=4.0, rtf=0.05, chunk_s=0.5)
    tab.hear("word " * 44 + "and_unbelievably")  # in wider lines while it is heard
    caption, last = (tab.page.locator(part) for part in (".la-caption", ".la-text .said >> nth=-1"))

    def hidden_px() -> float:
        shown, word = caption.bounding_box(), last.bounding_box()
        return word["y"] + word["height"] - shown["y"] - shown["height"]

    assert until(lambda: hidden_px() < 2, 3.0)


def assert_accessible(page) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not there")
    from tests.ui.page_browser import PAINTED

    if not page.evaluate("'axe' in window"):
        page.evaluate(Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8"))
    page.evaluate(PAINTED)
    assert page.evaluate(FOUND) == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing_in_any_state(service, visit, scheme, width):
    tab = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    assert tab.page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
    assert_accessible(tab.page)
    for state in STATES:
        state(service, tab)
        assert_accessible(tab.page)
    for panel in (".about-open", ".programs-open"):
        tab.page.locator(panel).click()
        assert_accessible(tab.page)
        tab.page.keyboard.press("Escape")


def by_tab(tab, count: int) -> list[str]:
    """What is reached by so many presses of the Tab key."""
    place = (
        "((e) => [e.closest('[id]')?.id, e.className, e.role].join(' '))(document.activeElement)"
    )
    reached = []
    for _ in range(count):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate(place))
    return reached


FOCUSED = "(e) => e === document.activeElement"


def test_keyboard_alone_is_enough(service, visit):
    tab = visit()
    tab.page.wait_for_function("document.activeElement?.tagName === 'TEXTAREA'")
    tab.page.keyboard.type("Typed without a mouse.")
    tab.page.keyboard.press("Enter")
    tab.wait("speaking")
    tab.wait("done")
    service.script = Script(seconds=20.0, rtf=0.2)
    tab.page.keyboard.type("Sent by the button.")
    tab.page.locator("#send").press("Enter")
    tab.wait("speaking")
    assert tab.text.evaluate(FOCUSED), "the button that was pressed is gone, and the focus with it"
    tab.page.locator("#stop").press("Enter")
    tab.wait("stopped")
    assert tab.text.evaluate(FOCUSED)
    reached = by_tab(tab, 40)
    for name in "send chip settings la-place la-pause la-volume la-save explain".split():
        assert any(name in place for place in reached), f"{name} is out of reach"
    assert not any("tile" in place for place in reached), "a stop without function"
    tab.page.locator(".la-volume").focus()
    tab.page.keyboard.press("Tab")
    outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus cannot be seen"
    tab.page.locator(".explain").press("Enter")
    tip = tab.page.locator("[data-key=rtf] .tip")
    assert tip.is_visible() and "Real-time factor" in tip.inner_text()
    talk(service, tab)
    reached = by_tab(tab, 60)
    for name in ("rec-talk", "switch", "rec-file"):
        assert any(name in place for place in reached), f"{name} is out of reach"


def test_controls_that_are_called_alike_stand_in_named_groups_and_are_asked_with_as_is_a_kept_seed(
    service, visit
):
    tab = visit()
    tab.page.locator("#settings summary").click()
    for head, temperature in (("Speech head", "0.35"), ("Text head", "0.55")):
        group = tab.page.get_by_role("group", name=head, exact=True)
        group.get_by_role("slider", name="Temperature").wait_for()
        assert group.get_by_role("slider").count() == 4
        group.get_by_role("spinbutton", name="Temperature").fill(temperature)
    tab.page.locator("#max-rows input[type=number]").fill("99")
    modes = tab.page.get_by_role("group", name="Mode", exact=True)
    assert modes.get_by_role("radio").count() == len(MODES)
    tab.page.get_by_role("region", name="Reading list", exact=True).wait_for()
    tab.page.locator("#settings summary").click()  # closed, they are as they were left
    tab.hear("As it is set.")
    sampling = service.requests[-1].sampling
    assert (sampling.audio.temperature, sampling.text.temperature) == (0.35, 0.55)
    assert (sampling.max_rows, sampling.text.top_k) == (99, INFO.sampling.text.top_k)
    tab.page.locator("#settings summary").click()
    tab.page.get_by_label("New seed for every reply").uncheck()
    tab.hear("Again the same.")
    assert service.requests[-1].sampling.seed == sampling.seed


def test_the_shade_is_kept(visit):
    tab = visit(color_scheme="light")
    dark = "document.body.classList.contains('dark')"
    tab.page.locator(".shade").click()
    assert tab.page.evaluate(dark)
    tab.reload()
    assert until(lambda: tab.page.evaluate(dark))


def test_the_form_for_the_password_can_be_seen_and_lets_in(browser, serve):
    url = serve(FakeService(), auth="guest:secret", host="0.0.0.0")
    url = url.replace("localhost", "speech.test")  # browsers tell less of a form on plain http
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(url)
        secret, card = (tab.locator(part) for part in ("input[type=password]", ".panel"))
        secret.wait_for()
        border = secret.evaluate("(field) => getComputedStyle(field).borderTop")
        back = card.evaluate("(card) => getComputedStyle(card).backgroundColor")
        assert border.startswith("1px") and back not in border, "the field looks like the page"
        assert "MOSS-Speech Live" in card.inner_text()
        assert_accessible(tab)
        tab.locator("input").first.fill("guest")
        secret.fill("secret")
        tab.locator("button").click()
        tab.wait_for_function("window.liveAudio")


def test_what_the_checkpoint_cannot_do_is_shown_with_the_reason(visit, serve):
    tab = visit(serve(FakeService(info=replace(INFO, modes=MODES[:1]))))
    tab.page.set_viewport_size({"width": 844, "height": 390})
    tab.page.locator(".about-open").click()
    assert tab.page.get_by_role("dialog").evaluate("(about) => about.scrollTop") == 0, (
        "not at its top"
    )
    closed = tab.page.locator(".about .closed li")
    what = [text.partition(": This checkpoint ")[0] for text in closed.all_inner_texts()]
    assert what == ["Speak to it", "Free conversation"]
    assert tab.page.locator(".about p code").all_inner_texts() == [
        "python -m scripts.download",
        "python -m scripts.doctor CHECKPOINT CODEC",
        "python app.py --brain auto",
    ]
    (mode,) = tab.page.locator("#mode input").all()
    assert mode.input_value() == "read"
    tab.page.keyboard.press("Escape")
    tab.page.evaluate("location.hash = '#listen'")
    tab.page.locator(".about-open").click()
    assert closed.first.is_visible() and not tab.page.locator(".about p code").first.is_visible()
    tab.page.keyboard.press("Escape")
    assert not closed.first.is_visible()
    assert not tab.page.locator("#recorder").is_visible() and tab.problems == []
