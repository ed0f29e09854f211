"""The recorder's microphone, between a visitor who presses again and a browser that takes its
time: whatever is pressed, one recording is open, and none after the last."""

from __future__ import annotations

import pytest

from tests.ui.node import UI, in_node, module

# A browser that gives a microphone when it is told to, and runs the recorder's own processor.
BROWSER = """
const [grants, nodes, tracks] = [[], [], []];
const soon = () => new Promise((resolve) => setTimeout(resolve));
const given = () => {
  const track = { live: true, stop() { track.live = false; } };
  tracks.push(track);
  return { getTracks: () => [track] };
};
const grant = async (...which) => { // to those that asked, in order
  for (const at of which) grants[at](given());
  await soon();
};
let Processor;
new Function("AudioWorkletProcessor", "sampleRate", "registerProcessor", worklet)(
  class { port = {}; }, 48000, (_, made) => { Processor = made; });
const world = {
  window: { isSecureContext: true },
  navigator: { mediaDevices: { getUserMedia: () => new Promise((resolve) => grants.push(resolve)) } },
  AudioContext: class {
    audioWorklet = { addModule: async () => {} };
    async resume() {}
    async suspend() {}
    createMediaStreamSource() {
      let to = null;
      return {
        connect(node, _output, input = 0) { to = node; (node.fed ??= [])[input] = true; },
        disconnect() { delete to.fed; },
      };
    }
  },
  AudioWorkletNode: class {
    constructor(_context, _name, options) {
      const processor = (this.processor = new Processor(options));
      this.port = { postMessage: (data) => processor.port.onmessage({ data }) };
      processor.port.postMessage = (data) => this.port.onmessage({ data });
      nodes.push(this);
    }
  },
};
for (const [name, value] of Object.entries(world)) Object.defineProperty(globalThis, name, { value });
const { Capture } = await import(url);
let [heard, played] = [0, null];
const capture = new Capture((_pcm, _level, out) => { heard += 1; played = out; }, () => {}, () => {}, () => "the page");
capture.rateHz = 16_000;
const sound = (...page) => { // one block of it for everyone who listens, and what the page plays
  for (const { fed, processor } of nodes) if (fed) processor.process([[new Float32Array(1700)], page]);
};
"""


def captured(steps: str) -> dict:
    """What became of `steps`."""
    return in_node(
        f"""async (url, worklet) => {{ {BROWSER} {steps}
          const before = heard;
          sound();
          const blocks = heard - before;
          const running = nodes.filter(({{ processor }}) => processor.process([[], []])).length;
          return {{ blocks, running, opened: nodes.length, live: tracks.filter(({{ live }}) => live).length,
                    open: capture.open }};
        }}""",
        module("recorder.js"),
        (UI / "components" / "recorder_worklet.js").read_text(encoding="utf-8"),
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_press_while_the_browser_still_asks_leaves_one_recording(order: tuple[int, int]):
    first, second = order
    steps = f"""
      const starts = [capture.start()];
      capture.stop();
      starts.push(capture.start());
      await grant({first}, {second});
      await Promise.all(starts);
    """
    recording = {"blocks": 1, "running": 1, "opened": 1, "live": 1, "open": True}
    assert captured(steps) == recording
    nothing = {"blocks": 0, "running": 0, "opened": 1, "live": 0, "open": False}
    assert captured(f"{steps} capture.stop();") == nothing


def test_a_second_start_takes_the_place_of_the_first():
    seen = captured("""
      const starts = [capture.start(), capture.start()];
      await grant(0, 1);
      await Promise.all(starts);
    """)
    assert seen == {"blocks": 1, "running": 1, "opened": 1, "live": 1, "open": True}


def test_a_microphone_that_is_given_after_the_last_press_is_closed_at_once():
    seen = captured("const start = capture.start(); capture.stop(); await grant(0); await start;")
    assert seen == {"blocks": 0, "running": 0, "opened": 0, "live": 0, "open": False}


def test_the_end_of_a_recording_does_not_end_the_next():
    seen = captured("""
      capture.start();
      await grant(0);
      const end = capture.finish();
      capture.stop();
      capture.start();
      await grant(1);
      await end;
    """)
    assert seen == {"blocks": 1, "running": 1, "opened": 2, "live": 1, "open": True}


def test_no_recording_leaves_a_processor_behind():
    seen = captured("""
      for (let i = 0; i < 5; i++) {
        capture.start();
        await grant(i);
        await capture.finish();
      }
    """)
    assert seen == {"blocks": 0, "running": 0, "opened": 5, "live": 0, "open": False}


def test_what_the_page_plays_comes_beside_what_is_heard():
    steps = """
      const start = capture.start();
      await grant(0);
      await start;
      const seen = [];
      for (const level of [0, 0.5, ...new Array(24).fill(0)]) {
        sound(new Float32Array(1700).fill(level));
        seen.push(played && Math.max(...played));
      }
    """
    source = (UI / "components" / "recorder_worklet.js").read_text(encoding="utf-8")
    page = f"async (url, worklet) => {{ {BROWSER} {steps} return seen; }}"
    first, loud, *later = in_node(page, module("recorder.js"), source)
    assert first is None and 16_000 < loud < 18_000  # a step rings, and half of all is 16,384
    assert later[1] == 0 and later[-1] is None  # an echo lasts longer than its sound
