"""The page shows programs the way in, at its very address."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_the_ways_in_name_this_address_and_the_javascript_runs(tab, served):
    tab.page.click(".about-open")
    ways = tab.page.eval_on_selector_all("code.way", "all => all.map((one) => one.textContent)")
    assert len(ways) == 3
    assert all(f"http://127.0.0.1:{served[1]}/v1" in way for way in ways)
    assert not any("@" in way for way in ways)
    script = ways[2].replace('"none"', '"moss-speech"').rpartition("\n")[0]
    status = tab.page.evaluate(f"async () => {{ {script} return answer.status; }}")
    assert status == 200
