"""The page shows programs the way in, at its very address."""

from __future__ import annotations

import pytest

from moss_engine.ui.config import PageConfig
from moss_engine.ui.parts.programs import programs
from moss_engine.ui.programs import access_of, panel_of
from tests.ui.page_support import INFO


@pytest.mark.browser
def test_the_ways_in_name_this_address_and_the_javascript_runs(tab, served):
    tab.page.click(".programs-open")
    ways = tab.page.eval_on_selector_all("code.way", "all => all.map((one) => one.textContent)")
    assert len(ways) == 3
    assert all(f"http://127.0.0.1:{served[1]}/v1" in way for way in ways)
    assert not any("@" in way for way in ways)
    script = ways[2].rpartition("\n")[0]
    status = tab.page.evaluate(f"async () => {{ {script} return answer.status; }}")
    assert status == 200


@pytest.mark.browser
@pytest.mark.parametrize("secure", [True, False])
def test_one_click_copies(tab, secure):
    """Also where the browser has no clipboard to write to, as on plain http."""
    page = tab.page
    written = "writeText: async (text) => { window.copied = text; }"
    value = f"{{ {written} }}" if secure else "undefined"
    page.evaluate(f"() => Object.defineProperty(navigator, 'clipboard', {{ value: {value} }})")
    page.evaluate("""() => document.addEventListener("copy", () => {
      window.copied = String(getSelection());
    })""")
    page.click(".programs-open")
    page.locator(".way-copy").nth(1).click()
    page.locator(".way-copy", has_text="Copied").wait_for()
    shown = page.locator("code.way").nth(1).text_content()
    assert page.evaluate("() => window.copied.trim()") == shown.strip()


def test_with_keys_every_way_sends_one():
    html = programs("nano", "ada", by_key=True, tool=False)
    assert html.count("Bearer KEY") == 2 and "api_key=&quot;KEY&quot;" in html
    assert "@key@" not in html and "none" not in html and "/mcp" not in html


def test_the_tool_is_named_where_it_is():
    assert "@address@/mcp" in programs("nano", "ada", by_key=False, tool=True)


def test_no_way_is_shown_where_programs_are_not_answered():
    shared = PageConfig(auth="a:b")
    assert panel_of(access_of(shared), shared, INFO, "nano") == ""
    assert "nano" in panel_of(access_of(PageConfig()), PageConfig(), INFO, "nano")
