"""What stops an answer in the browser: `python -m scripts.bench.service.barge_in`, JSON.

The page runs in Chromium, hands-free, with its recogniser; the built-in voice recites everyday
sentences. Chromium's fake microphone asks one question, then it plays, while the answer is heard,
ten minutes of what must not interrupt it, and behind each of them a question that must.

    noise, coughs, murmurs   as `scripts.bench.service.ear` makes them
    other_echo               sentences through a simulated room, 20 dB softer than the visitor:
                             other ones than the answer's, so that neither the browser's echo
                             canceller nor their words give them away
    own_echo                 what the page plays, OWN_DELAY_S later, and with no echo canceller
    hesitations, _s          how often the answer was silent for a moment, and for how long in all
    silence_ms               from a question's first loud block to the answer falling silent
    peak_db                  the loudest sample that the page got of a sound, against full scale

`--into` keeps what is known of other sounds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.audio.pcm import to_pcm16, write_wav
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.build import build_listening_service
from moss_engine.client import open_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.service.local import LocalService
from moss_engine.talk.answer import Part, Question, Say
from moss_engine.talk.modes import talking_modes
from moss_engine.talk.service import TalkingService
from moss_engine.ui.config import PageConfig
from scripts.bench.service import ear
from scripts.bench.service.hands_free import SPOKEN
from scripts.bench.service.page import tools
from scripts.judges.sentences import EVERYDAY

MINUTES = {"noise": 3.0, "coughs": 2.0, "murmurs": 1.0, "other_echo": 2.0, "own_echo": 2.0}
OWN_DELAY_S = 0.15
BEFORE_S, ANSWER_S = 4.0, 5.0  # of silence before the first question, and around the sound
LAST_S = 10.0  # in which the last question must have stopped the answer
RECITED = 100  # sentences: longer than any of the sounds
WATCH = """() => {
  window.seen = { stops: 0, silences: [], holds: 0, silent_ms: 0, since: null, loud: 0, onset: 0,
    peak: 0 };
  const { stop, player } = liveAudio;
  const [pause, resume] = [player.pause.bind(player), player.resume.bind(player)];
  liveAudio.stop = (...values) => {
    seen.stops += liveAudio.state.phase === "speaking";
    return stop(...values);
  };
  player.pause = () => {
    seen.holds += 1;
    seen.since = performance.now();
    seen.silences.push(seen.since - seen.onset);
    pause();
  };
  player.resume = () => {
    if (seen.since) seen.silent_ms += performance.now() - seen.since;
    seen.since = null;
    resume();
  };
  const listener = recorder.capture.listener;
  recorder.capture.listener = (pcm, level) => {
    const now = performance.now();
    seen.peak = Math.max(seen.peak, level);
    if (level > LOUD) {
      if (now - seen.loud > 1000) seen.onset = now;
      seen.loud = now;
    }
    listener(pcm, level);
  };
}""".replace("LOUD", "0.15")
ROOM = """(() => { // the microphone hears the questions, and what the page plays
  const connect = AudioNode.prototype.connect;
  const played = [];
  let microphone = null;
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 1073741823.5 - 1;
  const room = (context) => { // as ear.room
    const size = Math.round(ECHO_S * context.sampleRate);
    const fading = (_, i) => 1.7 * random() * 10 ** ((-3 * i) / size);
    const taps = Float32Array.from({ length: size }, fading);
    taps[0] = 3;
    const level = 10 ** (ECHO_DB / 20) / Math.sqrt(taps.reduce((sum, tap) => sum + tap * tap, 0));
    const buffer = context.createBuffer(1, size, context.sampleRate);
    buffer.copyToChannel(taps.map((tap) => level * tap), 0);
    return new ConvolverNode(context, { disableNormalization: true, buffer });
  };
  const listen = (stream) =>
    connect.call(microphone.context.createMediaStreamSource(stream), microphone);
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode && target.context instanceof AudioContext) {
      const { context } = target;
      const delay = new DelayNode(context, { delayTime: DELAY_S });
      const nodes = [this, delay, room(context), context.createMediaStreamDestination()];
      nodes.slice(1).forEach((node, i) => connect.call(nodes[i], node));
      played.push(nodes[3].stream);
      if (microphone) listen(nodes[3].stream);
    }
    return connect.call(this, target, ...rest);
  };
  navigator.mediaDevices.getUserMedia = async () => {
    if (!microphone) {
      microphone = new AudioContext().createMediaStreamDestination();
      played.forEach(listen);
    }
    return microphone.stream.clone();
  };
  window.askAloud = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const samples = new Float32Array(bytes.buffer);
    const buffer = microphone.context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(microphone.context, { buffer });
    connect.call(source, microphone);
    source.start();
  };
})()"""
for name, value in {
    "DELAY_S": OWN_DELAY_S,
    "ECHO_S": ear.ECHO_S,
    "ECHO_DB": ear.ECHO_DB,
    "RATE": RATE_HZ,
}.items():
    ROOM = ROOM.replace(name, str(value))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.barge_in",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sounds", default=",".join(MINUTES), metavar="NAMES", help="some of them (all)"
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="a report to be completed")
    parser.add_argument("--port", type=int, default=7964, help="port for the page (7964)")
    options = parser.parse_args()
    names = options.sounds.split(",")
    if unknown := set(names) - set(MINUTES):
        raise ConfigError(f"--sounds {unknown.pop()!r} is unknown; name some of {list(MINUTES)}.")
    report: dict[str, Any] = {}
    if options.into and options.into.exists():
        report = json.loads(options.into.read_text())
    report["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    found = report.get("sounds", {})
    for name, figures in measure(names, options.port):
        found[name] = figures
        report |= totals(found)
        if options.into:
            options.into.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def totals(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "sounds": {name: found[name] for name in MINUTES if name in found},
        "minutes": round(sum(one["seconds"] for one in found.values()) / 60, 1),
        **{
            name: sum(one[name] for one in found.values())
            for name in ("false_barge_ins", "true_barge_ins")
        },
    }


def measure(names: list[str], port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each sound with its figures."""
    from moss_engine.ui.server import launch

    browsing, _ = tools()
    with open_service() as client:
        question = ear.spoken(client, ear.QUESTION, 0)
        said = []
        if "other_echo" in names:
            said = [ear.spoken(client, text, seed) for seed, text in enumerate(EVERYDAY[:30])]
    below = build_listening_service(EngineConfig(), TalkConfig())
    service = reciting(below)
    service.start()
    page = launch(service, PageConfig(port=port))
    try:
        url = str(page.local_url)
        for name in names:
            yield name, heard(browsing, url, name, question, said)
    finally:
        page.close(verbose=False)
        service.close()


class Recital:
    """Answers every question with the same sentences."""

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        for index in range(RECITED):
            yield Say(EVERYDAY[-1 - index % len(EVERYDAY)])


def reciting(below: LocalService) -> TalkingService:
    info = asyncio.run(below.describe())
    return TalkingService(below, replace(info, modes=talking_modes(info)), Recital())


def sound(name: str, said: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """float32 [n] at RATE_HZ."""
    minutes = MINUTES[name]
    if name == "noise":
        return ear.noise(minutes, rng)
    if name == "coughs":
        return ear.coughs(minutes, rng)
    if name == "murmurs":
        return ear.spread([ear.murmur(110.0), ear.murmur(190.0)], minutes)
    return ear.room(ear.spread(said, minutes, 0.3), rng)


def heard(
    browsing: Any, url: str, name: str, question: np.ndarray, said: list[np.ndarray]
) -> dict[str, Any]:
    """What a sound does to the answer that is heard meanwhile, and a question behind it."""
    own, seconds = name == "own_echo", 60 * MINUTES[name]
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        if not own:
            path = Path(folder) / "microphone.wav"
            wave = sound(name, said, np.random.default_rng(0))
            pauses = [np.zeros(round(s * RATE_HZ), np.float32) for s in (BEFORE_S, ANSWER_S, 99.0)]
            parts = [pauses[0], question, pauses[1], wave, pauses[1], question, pauses[2]]
            write_wav(path, to_pcm16(np.concatenate(parts)), RATE_HZ)
            flags.append(f"--use-file-for-fake-audio-capture={path}%noloop")
        with browsing.chromium(*flags) as browser:
            tab = browsing.Visit(browser, url, ROOM if own else "", permissions=["microphone"])
            before, after = listened(tab, question if own else None, seconds)
    return {
        "seconds": round(seconds),
        "peak_db": round(20 * math.log10(max(before["peak"], 1e-5)), 1),
        "false_barge_ins": before["stops"],
        "hesitations": before["holds"],
        "hesitations_s": round(before["silent_ms"] / 1000, 1),
        "true_barge_ins": after["stops"] - before["stops"],
        "silence_ms": [round(ms) for ms in after["silences"][before["holds"] :][:1]],
    }


def listened(
    tab: Any, question: np.ndarray | None, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was seen before the last question and after it. The microphone's file asks the
    questions, or the page does."""
    page = tab.page
    page.wait_for_function("window.recorder?.ready")
    for choice in SPOKEN:
        page.locator(f".switches label:has({choice})").click()
    page.evaluate(WATCH)
    page.locator(".rec-free").click()
    page.wait_for_function("recorder.state === 'listening'")
    if question is not None:
        ask(page, question)
    tab.wait("speaking")
    page.evaluate(
        "Object.assign(seen, { stops: 0, holds: 0, silences: [], silent_ms: 0, peak: 0 })"
    )
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + ANSWER_S - 1.0 + seconds:
        page.wait_for_timeout(500)
        if page.evaluate("recorder.state") == "off":
            said = page.locator("#problem").inner_text()
            raise MossError(f"The page closed its microphone: {said or 'it says nothing.'}")
    before = page.evaluate("structuredClone(seen)")
    if question is not None:
        ask(page, question)
    page.wait_for_timeout(1000 * LAST_S)
    return before, page.evaluate("structuredClone(seen)")


def ask(page: Any, question: np.ndarray) -> None:
    """By the page's own microphone."""
    page.evaluate("askAloud", base64.b64encode(question.astype("<f4").tobytes()).decode())


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
