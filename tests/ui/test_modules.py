"""The page's modules: each opened alone in a browser, and all of them as the page's server gives
them."""

from __future__ import annotations

import re

import httpx
import pytest

from moss_engine.ui.modules import HERE, JOINED, LATER, address, modules
from tests.ui.node import in_node, module

ALONE = [name for name in modules() if not name.endswith("_worklet.js")]

COMES_BACK = """async (url, resumed) => {
  const sockets = [];
  globalThis.window = { addEventListener() {} };
  globalThis.WebSocket = class {
    static OPEN = 1;
    constructor() { this.sent = []; sockets.push(this); }
    send(data) { this.sent.push(JSON.parse(data)); }
    close() {}
    opens(event) {
      this.readyState = 1;
      this.onopen();
      this.onmessage({ data: JSON.stringify({ type: "session.opened", instance: "one", ...event }) });
    }
  };
  const said = [];
  const { Door } = await import(url);
  const door = new Door("ws://page/", "key", { event: ({ n }) => said.push(n), broken() {}, back: () => said.push("back"), lost: () => said.push("lost") });
  sockets[0].opens({ seen: 0, resumed: false });
  for (const n of [1, 2]) door.send({ n });
  sockets[0].onmessage({ data: '{"type": "x", "n": 0}' });
  sockets[0].readyState = 3;
  sockets[0].onclose({ code: 1006, reason: "" });
  door.send({ n: 3 });
  await new Promise((resolve) => setTimeout(resolve, 200));
  sockets[1].opens({ seen: 1, resumed });
  return { said, last: sockets[1].sent[0].last, again: sockets[1].sent.slice(1).map(({ n }) => n) };
}"""


WATERFALL = """async (url, live) => {
  globalThis.Audio = class {};
  const { waterfall } = await import(url);
  return waterfall(live).spans;
}"""


def test_no_step_of_the_waterfall_takes_less_than_no_time():
    """Where the words were known before the turn was over, and the bounds of the clocks cross."""
    live = {
        "stages": {"accepted": 0, "received": -0.02, "said": -0.03, "understood": -0.05, "started": 0.001},
        "offsetLowMs": 130, "offsetHighMs": 100, "clickMs": 95, "firstPcmMs": None, "firstMs": None,
    }  # fmt: skip
    spans = in_node(WATERFALL, module("panel.js"), live)
    known = {name: span for name, span in spans.items() if None not in span}
    assert {"listened", "sent", "prepare", "queue"} <= set(known)
    assert all(start <= end for start, end in known.values()), known


@pytest.fixture
def alone(browser, url):
    """A document of the server's that runs nothing by itself, to import a module into."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{url}healthz")
        yield page


@pytest.mark.browser
class TestAlone:
    @pytest.mark.parametrize("name", ALONE)
    def test_a_module_needs_no_other_than_it_imports(self, alone, name):
        faults = []
        alone.on("pageerror", lambda fault: faults.append(fault))
        assert alone.evaluate("(url) => import(url).then(Object.keys)", f"/{address(name)}")
        assert not faults


def test_a_door_goes_on_where_its_connection_broke():
    seen = in_node(COMES_BACK, module("door.js"), True)
    assert seen == {"said": [0, "back"], "last": 0, "again": [2, 3]}


def test_a_server_that_begins_anew_is_sent_nothing_that_the_page_gave_back():
    seen = in_node(COMES_BACK, module("door.js"), False)
    assert seen == {"said": [0, "lost", "back"], "last": 0, "again": []}


def test_modules_are_files_that_may_be_kept_for_good(url):
    linked = re.findall(
        r'<link rel="modulepreload" crossorigin href="\./([^"]+)"', httpx.get(url).text
    )
    assert address(JOINED) in linked
    assert not any(name.endswith(f"{later}.js") for name in linked for later in LATER)
    for name in modules():
        answer = httpx.get(f"{url}{address(name)}")
        assert answer.headers["content-type"].startswith("text/javascript")
        assert "immutable" in answer.headers["cache-control"]
        assert answer.content == modules()[name]
    assert {HERE / name for name in {*modules()} - {JOINED}} == {*HERE.rglob("*.js")} - {
        HERE / "first.js"
    }


MEASURED = """async (url, name, entries) => {
  const value = { getEntriesByType: (type) => (type === "resource" ? entries : []) };
  Object.defineProperty(globalThis, "performance", { value });
  return (await import(url))[name]();
}"""


def fetched(kind: str, size: int, begins: int, ends: int) -> dict:
    return {
        "initiatorType": kind,
        "transferSize": size,
        "responseStart": begins,
        "responseEnd": ends,
    }


@pytest.mark.parametrize("name", ["linkSpeed", "fastestFile"])
def test_replies_are_no_files(name):
    file = fetched("script", 1_500_000, 100, 400)
    replies = [fetched("fetch", 700_000, at, at + 10_000) for at in range(20_000, 140_000, 20_000)]
    script = module("player.js")
    assert in_node(MEASURED, script, name, [file]) == pytest.approx(40e6)
    assert in_node(MEASURED, script, name, [file, *replies]) == pytest.approx(40e6)
    assert in_node(MEASURED, script, name, replies) is None
