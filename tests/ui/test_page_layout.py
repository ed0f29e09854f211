"""Every part of the page is in its card, in the window and beside the others, at every width."""

from __future__ import annotations

import pytest

from tests.ui.page_support import Script, until

pytestmark = pytest.mark.browser

WIDTHS = range(320, 1921, 10)
# At 200 %, the page has half of the window's width and two dots for each of its pixels. Where it
# has as many pixels as it had at 100 %, it is the same page.
ZOOMED = [width for width in WIDTHS if width // 2 not in WIDTHS]

# What lies outside its card or the window, over something else, or is cut. What scrolls may reach
# beyond what is seen of it.
FAULTS = """() => {
  const cards = "#talk, #live, #said, #panel, .mast, #notice";
  const scrolls = ".chips, .la-caption, #chat, .ids-roll, .la-scope, .about, .rec-free, textarea";
  const shown = (e) => e.getClientRects().length && e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const speaks = (e) => e.matches("button, input, textarea, svg") || [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const hidden = (e) => getComputedStyle(e).clipPath !== "none" || e.closest(".sr-only, .tr-who, .la-spoken");
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
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page scrolls sideways");
  return [...new Set(faults)];
}"""


def idle(service, tab) -> None:
    tab.page.locator("#settings button").first.click()


def speaking(service, tab) -> None:
    service.script = Script(seconds=20.0, rtf=0.1)
    tab.ask("Please call Dr. Smith at 4:30 pm about the $25 invoice, and then call me.")
    tab.page.wait_for_function("liveAudio.heard > 40000")
    tab.page.locator(".la-pause").click()


def after(service, tab) -> None:
    service.script = Script(seconds=2.2, rtf=0.1)
    tab.ask("Supercalifragilistic" * 8 + " and short words too.")
    tab.wait("done")
    tab.page.wait_for_selector("#chat .clip")
    tab.page.locator(".explain").click()


def error(service, tab) -> None:
    tab.ask("too long " * 200)
    tab.page.locator("#problem p").wait_for()


@pytest.mark.parametrize("state", [idle, speaking, after, error])
def test_nothing_is_out_of_place_at_any_width(service, visit, state):
    tab = visit(viewport={"width": 1440, "height": 900})
    state(service, tab)
    if tab.page.locator(".details-open").get_attribute("aria-expanded") == "false":
        tab.page.locator(".details-open").click()
    found = {}
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 900})
        if faults := tab.page.evaluate(FAULTS):
            found[width] = faults
    zoom = tab.context.new_cdp_session(tab.page)
    for width in ZOOMED:
        metrics = {"width": width // 2, "height": 450, "deviceScaleFactor": 2, "mobile": False}
        zoom.send("Emulation.setDeviceMetricsOverride", metrics)
        if faults := tab.page.evaluate(FAULTS):
            found[f"{width} at 200 %"] = faults
    assert tab.page.evaluate("[innerWidth, devicePixelRatio]") == [ZOOMED[-1] // 2, 2]
    assert found == {}


@pytest.mark.parametrize("width", [320, 390, 640])
def test_on_a_phone_the_player_stays_in_reach_while_it_speaks(service, visit, width):
    tab = visit(viewport={"width": width, "height": 700})
    assert (
        tab.page.locator("#talk").bounding_box()["y"]
        < tab.page.locator("#live").bounding_box()["y"]
    )
    speaking(service, tab)
    for place in ("0", "document.body.scrollHeight"):
        tab.page.evaluate(f"scrollTo(0, {place})")
        box = tab.page.locator(".la-pause").bounding_box()
        assert box["y"] > 0 and box["y"] + box["height"] <= 700
    tab.page.keyboard.press("Escape")
    assert until(lambda: tab.state("phase") == "stopped")
