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


SEEN = """
  const before = heard;
  sound();
  const running = nodes.filter(({ processor }) => processor.process([[], []])).length;
  return [heard - before, running, nodes.length, tracks.filter(({ live }) => live).length, capture.open];
"""
TWICE = """
  const starts = [capture.start()];
  capture.stop();
  starts.push(capture.start());
"""
PRESSES = {  # what becomes of them: blocks of sound, processors that run, and were opened, live tracks, open
    "again while the browser asks": (
        f"{TWICE} await grant(0, 1); await Promise.all(starts);", [1, 1, 1, 1, True]),
    "again, and the browser answers the later one first": (
        f"{TWICE} await grant(1, 0); await Promise.all(starts);", [1, 1, 1, 1, True]),
    "again, and then no more": (
        f"{TWICE} await grant(0, 1); await Promise.all(starts); capture.stop();",
        [0, 0, 1, 0, False]),
    "a second start": (
        "const starts = [capture.start(), capture.start()]; await grant(0, 1); await Promise.all(starts);",
        [1, 1, 1, 1, True]),
    "the last one before the browser answers": (
        "const start = capture.start(); capture.stop(); await grant(0); await start;",
        [0, 0, 0, 0, False]),
    "the next one while the last ends": ("""
      capture.start();
      await grant(0);
      const end = capture.finish();
      capture.stop();
      capture.start();
      await grant(1);
      await end;""", [1, 1, 2, 1, True]),
    "five recordings": ("""
      for (let i = 0; i < 5; i++) {
        capture.start();
        await grant(i);
        await capture.finish();
      }""", [0, 0, 5, 0, False]),
}  # fmt: skip


def in_browser(steps: str):
    worklet = (UI / "components" / "recorder_worklet.js").read_text(encoding="utf-8")
    page = f"async (url, worklet) => {{ {BROWSER} {steps} }}"
    return in_node(page, module("recorder.js"), worklet)


@pytest.mark.parametrize("presses", PRESSES)
def test_one_recording_is_open_and_none_after_the_last_press(presses: str):
    steps, seen = PRESSES[presses]
    assert in_browser(steps + SEEN) == seen


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
      return seen;
    """
    first, loud, *later = in_browser(steps)
    assert first is None and 16_000 < loud < 18_000  # a step rings, and half of all is 16,384
    assert later[1] == 0 and later[-1] is None  # an echo lasts longer than its sound
