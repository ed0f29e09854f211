"""axe-core finds nothing to complain of, in every state of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ui.page_support import Script

axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
pytestmark = pytest.mark.browser

FOUND = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`))"""


def assert_accessible(tab) -> None:
    tab.page.wait_for_timeout(200)  # for what fades in
    assert tab.page.evaluate(FOUND) == []


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_state(service, visit, scheme, width):
    tab = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    script = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    tab.page.evaluate(script)
    tab.page.wait_for_timeout(400)
    assert_accessible(tab)
    tab.page.locator("#settings button").first.click()
    tab.page.wait_for_selector("#seed input")
    assert_accessible(tab)
    service.script = Script(seconds=60.0, rtf=0.1)
    tab.ask("Please call Dr. Smith at 4:30 pm about the $25 invoice.")
    tab.page.wait_for_function("liveAudio.heard > 20000")
    assert_accessible(tab)
    tab.text.press("Escape")
    tab.wait("stopped")
    tab.page.wait_for_selector("#chat .clip")
    if tab.page.locator(".details-open").get_attribute("aria-expanded") == "false":
        tab.page.locator(".details-open").click()
    tab.page.locator(".explain").click()
    assert_accessible(tab)
    tab.ask("too long " * 200)
    assert_accessible(tab)
    for panel in (".about-open", ".programs-open"):
        tab.page.locator(panel).click()
        assert_accessible(tab)
        tab.page.keyboard.press("Escape")
