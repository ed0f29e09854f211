"""The page's modules as the server gives them, each opened alone; and in Node, on clocks and browsers of the
tests' own: captions, the player's ring buffer, the recorder's microphone and its way to the server."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui.modules import HERE, JOINED, LATER, address, modules
from tests.ui.node import UI, in_node, module

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


def test_a_module_needs_no_other_than_it_imports(browser, url):
    for name in (name for name in modules() if not name.endswith("_worklet.js")):
        faults = []
        with browser.new_context() as context:
            page = context.new_page()
            page.on("pageerror", lambda fault, faults=faults: faults.append(fault))
            page.goto(f"{url}healthz")  # a document that runs nothing by itself
            assert page.evaluate("(url) => import(url).then(Object.keys)", f"/{address(name)}")
            assert not faults, name


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
    assert {*modules()} - {JOINED} == {path.name for path in HERE.glob("*.js")}


ENGLISH = "The sky is blue, because air scatters it.  No doubt. "
CHINESE = "天空之所以是蓝色的，是因为空气！MOSS 说：“对。”"
# An element as far as captions need one; the text comes in pieces, as a model makes it.
WORDS = """async (url, text, piece) => {
  const made = () => ({ textContent: "", classes: {}, children: [], append(child) { this.children.push(child); },
    replaceChildren(...children) { this.children = children; },
    classList: { said: false, toggle(name, on) { this[name] = on; } } });
  globalThis.document = { createElement: made };
  globalThis.ResizeObserver = class { observe() {} };
  const { Captions } = await import(url);
  const captions = new Captions(made());
  captions.follow = () => {};
  for (let at = 0; at < text.length; at += piece) captions.add(0, text.slice(at, at + piece));
  const words = () => [...captions.times(100, 1, true)].map(([element]) => element);
  const heard = [25, 50, 75, 100].map((at) => {
    captions.show(at, 100, 1, true);
    return words().filter(({ classList }) => classList.said).map(({ textContent }) => textContent).join("").length;
  });
  return { timed: captions.timed(100, 1), words: words().map(({ textContent }) => textContent), heard: heard.map((letters) => letters / text.length) };
}"""


def words(text: str, piece: int = 3) -> dict:
    return in_node(WORDS, module("stage.js"), text, piece)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
@pytest.mark.parametrize("piece", [1, 3, 100])
def test_words_are_marked_as_they_are_heard(text: str, piece: int):
    seen = words(text, piece)
    assert "".join(seen["words"]) == text
    for at, heard in zip((0.25, 0.5, 0.75, 1.0), seen["heard"], strict=True):
        assert at <= heard <= at + 0.2 or heard == 1.0


def test_a_chinese_word_is_one_sign_with_the_punctuation_behind_it():
    signs = [*"天空之所以是蓝色", "的，", *"是因为空", "气！", "MOSS", " 说：“", "对。”"]
    assert words(CHINESE)["words"] == signs


def test_words_are_told_with_their_seconds_and_chinese_sentences_stay_whole():
    timed = words("It is 3 P M. 天空是蓝的。对！", 100)["timed"]
    assert [text for text, *_ in timed] == ["It", "is", "3", "PM.", "天空是蓝的。", "对！"]
    assert timed[0][1] == 0 and timed[-1][2] == 100
    assert all(one[2] == after[1] for one, after in pairwise(timed))


@pytest.mark.parametrize("piece", [1, 100])
def test_letters_that_are_spelled_are_written_together(piece: int):
    text = "At three P M. Ask the C E O of A T and T. I am I, Plan B it is."
    assert "".join(words(text, piece)["words"]) == (
        "At three PM. Ask the CEO of AT and T. I am I, Plan B it is."
    )


PLAYED_HZ, BLOCK = 24_000, 128
MAX_WAIT_MS = 1500
OPTIONS = {"prebufferMs": 40, "maxPrebufferMs": 400, "maxWaitMs": MAX_WAIT_MS, "fadeMs": 4}
RING = """
  let made, clock = 0;
  class Processor { constructor() { this.port = { postMessage() {} }; } }
  const run = new Function("AudioWorkletProcessor", "registerProcessor", "sampleRate", "scope",
    `with (scope) { ${source} }`);
  run(Processor, (_, kind) => { made = kind; }, rate, { get currentTime() { return clock; } });
  const ring = new made({ processorOptions: options });
"""
RUN = """
return replies.map((chunks) => {
  const begun = clock;
  let sounds = null;
  if (after) ring.receive({ after });
  for (let at = 0; ring.state !== "done"; at += 1) {
    for (const [time, seconds] of chunks.filter(([time]) => Math.floor((time * rate) / block) === at)) {
      ring.receive({ pcm: new Int16Array(seconds * rate).fill(8000) });
      if (time === chunks.at(-1)[0]) ring.receive({ end: true });
    }
    ring.process([], [[new Float32Array(block)]]);
    clock += block / rate;
    if (sounds === null && ring.played > 0) sounds = clock - begun;
  }
  const seen = { sounds_s: sounds, gaps: ring.underruns, played: ring.played };
  ring.receive({ reset: 1 });
  return seen;
});
"""
IN_TIME = [[0.0, 0.2], [0.1, 0.3], [0.2, 0.4], [0.4, 0.4]]
LATE = [[0.0, 0.2], [0.6, 0.3], [0.7, 0.4], [0.9, 0.4]]  # by 0.4 s for who hears the first at once


def in_ring(steps: str, *given: Any) -> Any:
    source = (UI / "components" / "player_worklet.js").read_text(encoding="utf-8")
    page = f"async (source, rate, block, options, replies, after) => {{ {RING} {steps} }}"
    return in_node(page, source, PLAYED_HZ, BLOCK, OPTIONS, *given)


def play(*replies, after_ms: int = 0) -> list[dict]:
    return in_ring(RUN, replies, after_ms)


def test_where_others_are_answered_sound_begins_with_something_in_store():
    late = [[0.0, 0.215], [0.28, 0.24], [0.35, 0.4]]
    assert [play(late, after_ms=ms)[0]["gaps"] for ms in (0, 80)] == [1, 0]
    assert 0.1 < play(IN_TIME, after_ms=120)[0]["sounds_s"] < 0.15, "the second piece is enough"


def test_after_a_reply_that_came_late_the_next_one_waits_and_has_no_gap():
    first, second, third = play(LATE, LATE, LATE)
    assert first["gaps"] == 1 and first["sounds_s"] < 0.02
    assert second["gaps"] == third["gaps"] == 0
    assert 0.4 <= second["sounds_s"] < 0.7
    assert first["played"] == second["played"] == round(1.3 * PLAYED_HZ)


def test_after_one_that_had_hardly_enough_the_next_one_does_not_run_dry():
    nearly, late = [[0.0, 0.2], [0.18, 0.3]], [[0.0, 0.2], [0.21, 0.3]]
    assert [heard["gaps"] for heard in play(nearly, late)] == [0, 0]


def test_a_machine_that_has_become_fast_is_not_waited_for():
    *_, last = play(LATE, *[IN_TIME] * 8)
    assert last["gaps"] == 0 and last["sounds_s"] < 0.03
    at_once = [[0.0, 2.0]]
    assert play(LATE, at_once)[1]["sounds_s"] < 0.02, "enough is there"


def test_nobody_waits_for_ever():
    never = [[0.0, 0.2], [9.0, 0.3], [9.1, 0.4]]
    assert play(never, never)[1]["sounds_s"] <= MAX_WAIT_MS / 1000 + 0.02


HELD = """
const sound = (blocks) => Array.from({ length: blocks }, () => {
  const out = new Float32Array(block);
  ring.process([], [[out]]);
  return Array.from(out, (sample) => Math.round(sample * 32768));
});
ring.receive({ pcm: Int16Array.from({ length: rate }, (_, i) => i % 30000) });
const before = sound(3).flat();
ring.receive({ held: true });
const [fading, ...silent] = sound(4);
ring.receive({ held: false });
return { before, fading, silent: silent.flat(), after: sound(2).flat() };
"""


def test_what_is_held_fades_and_goes_on_where_it_was():
    heard = in_ring(HELD)
    assert not any(heard["silent"]) and heard["fading"][-1] == 0
    going_on = list(range(3 * BLOCK, 5 * BLOCK))
    assert heard["before"] == list(range(3 * BLOCK)) and heard["after"][BLOCK:] == going_on[BLOCK:]
    assert 0 < heard["fading"][1] <= going_on[1] and heard["after"][0] < going_on[0] / 2


LOST = "The connection to the server was lost; check it and try again."
SETTING = """
const json = (answer, ok = true) => ({ ok, status: ok ? 200 : 502, json: async () => JSON.parse(answer) });
const [sent, heard, failed, asked] = [[], [], [], []];
const door = { send: (event) => sent.push(event), sound: (pcm) => sent.push([...new Set(pcm)]) };
const window = (globalThis.window = { liveAudio: { state: { phase: "done", rate: 10 }, heard: 5, door } });
const answers = [];
globalThis.fetch = async (address) => {
  asked.push(address.split("/").at(-1));
  const answer = answers.shift();
  if (answer instanceof Error) throw answer;
  return answer;
};
globalThis.setTimeout = (go) => go();
const { Line } = await import(url);
const line = new Line((answer) => heard.push(answer.block), (sentence) => failed.push(sentence), () => "words");
const block = (number) => new Int16Array(4).fill(number);
"""


def happened(steps: str) -> dict:
    return in_node(
        f"async (url) => {{ {SETTING} {steps} return {{ sent, heard, failed, asked }}; }}",
        module("recorder.js"),
    )


def test_blocks_go_in_their_order_behind_what_the_page_says_and_before_what_it_plays():
    seen = happened("""
      line.begin(true);
      line.push(block(1));
      line.push(block(2));
      window.liveAudio.state.phase = "speaking";
      line.push(block(3), block(7));
      line.end();
    """)
    kinds = [one if isinstance(one, list) else one["type"].split(".")[1] for one in seen["sent"]]
    assert kinds == ["begin", "update", [1], [2], "update", [3, 7], "commit"]
    said = [one for one in seen["sent"] if "answering" in one]
    told = [(one["answering"], one["unheard"], one["played"]) for one in said]
    assert told == [(False, False, False), (True, True, True)]
    assert said[0]["saying"] == "words"  # of an echo


def test_what_is_heard_of_a_recording_before_or_behind_a_failure_is_nobodys():
    seen = happened("""
      line.begin(true);
      line.push(block(1));
      line.drop();
      line.begin(true);
      line.answered({ recording: 1, block: 0 });
      line.answered({ recording: 2, block: 7 });
      line.answered({ recording: 2, block: 8, last: true });
      line.answered({ recording: 2, block: 9 });
      line.begin(true);
      line.answered({ recording: 3, message: "No ear is free." });
      line.push(block(2));
    """)
    assert seen["heard"] == [7, 8] and seen["failed"] == ["No ear is free."]
    assert [1] in seen["sent"] and [2] not in seen["sent"]


def test_a_file_is_tried_again_where_the_network_fails_it_and_why_it_cannot_be_sent_is_told():
    seen = happened("""
      const send = (...given) => {
        answers.push(...given);
        return line.sendFile("file").then(({ utterance }) => heard.push(utterance), ({ message }) => failed.push(message));
      };
      const lost = new TypeError("Failed to fetch");
      await send(lost, json('{"utterance": "u"}'));
      await send(lost, lost, lost);
      await send(json("<html>502</html>", false));
      await send(json("<html>200</html>"));
      await send(json('{"detail": "It is too long."}', false));
    """)
    assert seen["heard"] == ["u"] and seen["asked"] == ["hear"] * 8
    assert seen["failed"] == [LOST, LOST, LOST, "It is too long."]


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
    "one after the other": ("""
      for (let i = 0; i < 2; i++) {
        capture.start();
        await grant(i);
        await capture.finish();
      }""", [0, 0, 2, 0, False]),
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


@pytest.mark.parametrize(("tone_hz", "level"), [(1_000, 0.5), (6_000, 0.5), (10_000, 0.0)])
def test_a_tone_arrives_at_the_rate_of_the_recogniser_and_what_it_cannot_hold_does_not(
    tone_hz, level
):
    heard = in_browser(
        """
      const pieces = [];
      capture.listener = (pcm) => pieces.push(...pcm);
      const start = capture.start();
      await grant(0);
      await start;
      for (let at = 0; at < 48_000; at += 128) {
        const block = Float32Array.from({ length: 128 }, (_, i) => 0.5 * Math.sin(at + i));
        for (const { fed, processor } of nodes) if (fed) processor.process([[block], []]);
      }
      return pieces;
    """.replace("Math.sin(at + i)", f"Math.sin(2 * Math.PI * {tone_hz} * (at + i) / 48_000)")
    )
    times = np.arange(len(heard)) / RATE_HZ
    wanted = 32767 * level * np.sin(2 * np.pi * tone_hz * times)
    assert len(heard) > 0.9 * RATE_HZ
    assert np.abs(heard - wanted)[100:].max() < 100
