"""What the browser keeps for the page, where it may, and where it is forbidden to."""

from __future__ import annotations

from tests.ui.node import in_node, module

KEPT = """async (url, denied) => {
  const storage = () => {
    const kept = new Map();
    return { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value),
      removeItem: (name) => kept.delete(name) };
  };
  const places = { localStorage: storage(), sessionStorage: storage() };
  const window = (globalThis.window = {});
  for (const [name, place] of Object.entries(places)) {
    Object.defineProperty(window, name, { get() {
      if (denied) throw new Error("SecurityError");
      return place;
    } });
  }
  const { recall, note } = await import(url);
  const seen = [recall("shade")];
  note("shade", "dark");
  note("tab", "1", "sessionStorage");
  seen.push(recall("shade"), recall("tab"), recall("tab", "sessionStorage"));
  note("shade", null);
  return [...seen, recall("shade")];
}"""


def test_what_is_noted_is_recalled_until_it_is_forgotten():
    assert in_node(KEPT, module("common.js"), False) == [None, "dark", None, "1", None]


def test_a_browser_that_keeps_nothing_forgets_without_a_fault():
    assert in_node(KEPT, module("common.js"), True) == [None] * 5
