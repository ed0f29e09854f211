"""How fast the page takes the link to be, from what the browser says of its files."""

from __future__ import annotations

import pytest

from tests.ui.node import in_node, module

MEASURED = """async (url, name, entries) => {
  const value = { getEntriesByType: (type) => (type === "resource" ? entries : []) };
  Object.defineProperty(globalThis, "performance", { value });
  return (await import(url))[name]();
}"""
FILE = {
    "initiatorType": "script",
    "transferSize": 1_500_000,
    "responseStart": 100,
    "responseEnd": 400,
}


@pytest.mark.parametrize("name", ["linkSpeed", "fastestFile"])
def test_replies_are_no_files(name):
    replies = [
        {
            "initiatorType": "fetch",
            "transferSize": 700_000,
            "responseStart": 20_000 * number,
            "responseEnd": 20_000 * number + 10_000,
        }
        for number in range(1, 7)
    ]
    script = module("player.js")
    assert in_node(MEASURED, script, name, [FILE]) == pytest.approx(40e6)
    assert in_node(MEASURED, script, name, [FILE, *replies]) == pytest.approx(40e6)
    assert in_node(MEASURED, script, name, replies) is None
