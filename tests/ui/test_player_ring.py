"""The ring buffer of the player, run on a clock of its own: when a reply begins to sound."""

from __future__ import annotations

from tests.ui.node import UI, in_node

RATE_HZ, BLOCK = 24_000, 128
PREBUFFER_MS, MAX_WAIT_MS = 40, 1500
RUN = """async (source, rate, block, replies, options, after) => {
  let made, clock = 0;
  const posted = [];
  class Port { postMessage(message) { posted.push(message); } }
  class Processor { constructor() { this.port = new Port(); } }
  const run = new Function("AudioWorkletProcessor", "registerProcessor", "sampleRate", "scope",
    `with (scope) { ${source} }`);
  run(Processor, (_, kind) => { made = kind; }, rate, { get currentTime() { return clock; } });
  const ring = new made({ processorOptions: options });
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
}"""
IN_TIME = [[0.0, 0.2], [0.1, 0.3], [0.2, 0.4], [0.4, 0.4]]
LATE = [[0.0, 0.2], [0.6, 0.3], [0.7, 0.4], [0.9, 0.4]]  # by 0.4 s for who hears the first at once

OPTIONS = {
    "prebufferMs": PREBUFFER_MS,
    "maxPrebufferMs": 400,
    "maxWaitMs": MAX_WAIT_MS,
    "fadeMs": 4,
}


def play(*replies, after_ms: int = 0) -> list[dict]:
    source = (UI / "components" / "player_worklet.js").read_text(encoding="utf-8")
    return in_node(RUN, source, RATE_HZ, BLOCK, replies, OPTIONS, after_ms)


def test_what_comes_in_time_sounds_at_once():
    for heard in play(IN_TIME, IN_TIME):
        assert heard["gaps"] == 0 and heard["sounds_s"] < 0.02


def test_where_others_are_answered_sound_begins_with_something_in_store():
    late = [[0.0, 0.215], [0.28, 0.24], [0.35, 0.4]]
    assert [play(late, after_ms=ms)[0]["gaps"] for ms in (0, 80)] == [1, 0]
    assert 0.1 < play(IN_TIME, after_ms=120)[0]["sounds_s"] < 0.15, "the second piece is enough"


def test_after_a_reply_that_came_late_the_next_one_waits_and_has_no_gap():
    first, second, third = play(LATE, LATE, LATE)
    assert first["gaps"] == 1 and first["sounds_s"] < 0.02
    assert second["gaps"] == third["gaps"] == 0
    assert 0.4 <= second["sounds_s"] < 0.7
    assert first["played"] == second["played"] == round(1.3 * RATE_HZ)


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


HELD = """async (source, rate, block, options) => {
  let made;
  class Processor { constructor() { this.port = { postMessage() {} }; } }
  const run = new Function("AudioWorkletProcessor", "registerProcessor", "sampleRate", "currentTime", source);
  run(Processor, (_, kind) => { made = kind; }, rate, 0);
  const ring = new made({ processorOptions: options });
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
}"""


def test_what_is_held_fades_and_goes_on_where_it_was():
    source = (UI / "components" / "player_worklet.js").read_text(encoding="utf-8")
    heard = in_node(HELD, source, RATE_HZ, BLOCK, OPTIONS)
    assert not any(heard["silent"]) and heard["fading"][-1] == 0
    going_on = list(range(3 * BLOCK, 5 * BLOCK))
    assert heard["before"] == list(range(3 * BLOCK)) and heard["after"] == going_on
    assert 0 < heard["fading"][1] <= going_on[1]
