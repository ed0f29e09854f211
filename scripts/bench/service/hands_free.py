"""Talking to the built-in voice in a browser: `python -m scripts.bench.service.hands_free`, JSON.

The page runs with its recogniser and the built-in voice; Chromium's fake microphone asks the same
question over and over, hands-free, so that every answer is interrupted by the next question.

    first_sound   from the last loud block of the question to the first sample of the answer at the
                  loudspeaker
    silence       from the first loud block of the voice to the answer falling silent
    underruns     where an answer stopped because its next sound was not there
    memory_mb     what the process holds at the end, which is the program's and this one
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.audio.pcm import to_pcm16, write_wav
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.build import build_talking_service
from moss_engine.client import open_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.ui.config import PageConfig
from scripts.bench.service.page import tools
from scripts.judges.words import resample
from scripts.progress import Progress

QUESTION = "What can you do?"  # its answer is longer than the pause
PAUSE_S = 4.0
LOUD = 0.05
TURN_LIMIT_S = 60.0
SPOKEN = ("[name=does][value=chat]", "[name=input][value=speech]", "[name=output][value=speech]")
WATCH = """() => {
  window.seen = { starts: [], stops: [], underruns: 0, before: 0, loud: 0, onset: 0, run: null };
  const listener = recorder.capture.listener;
  recorder.capture.listener = (pcm, level) => {
    const now = performance.now();
    if (level > LOUD) {
      if (now - seen.loud > 1000) seen.onset = now;
      seen.loud = now;
    }
    listener(pcm, level);
  };
  const pause = liveAudio.player.pause.bind(liveAudio.player);
  liveAudio.player.pause = () => {
    seen.stops.push(performance.now() - seen.onset);
    pause();
  };
  setInterval(() => {
    const { run, firstMs, latencyMs, transcript, underruns } = liveAudio.state;
    seen.underruns += Math.max(0, (underruns || 0) - seen.before);
    seen.before = underruns || 0;
    if (!run || run === seen.run || !firstMs) return;
    seen.run = run;
    seen.starts.push(firstMs + latencyMs - seen.loud);
  }, 10);
}""".replace("LOUD", str(LOUD))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.hands_free",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=int, default=20, metavar="N", help="questions (20)")
    parser.add_argument("--port", type=int, default=7963, help="port for the page (7963)")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {os.getloadavg()[0]:.1f} busy",
        "turns": options.turns,
        **measure(options.turns, options.port),
    }
    print(json.dumps(report, indent=1))


def measure(turns: int, port: int) -> dict[str, Any]:
    """The figures of all turns."""
    from moss_engine.ui.server import launch

    browsing, _ = tools()
    with tempfile.TemporaryDirectory() as folder:
        question = write_question(Path(folder))
        service = build_talking_service(EngineConfig(), TalkConfig())
        service.start()
        page = launch(service, PageConfig(port=port))
        flags = (
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-audio-capture={question}",
        )
        try:
            with browsing.chromium(*flags) as browser:
                tab = browsing.Visit(browser, page.local_url, permissions=["microphone"])
                seen = talk(tab, turns)
        finally:
            page.close(verbose=False)
            service.close()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        **summary("first_sound", seen["starts"]),
        **summary("silence", seen["stops"]),
        "underruns": seen["underruns"],
        "memory_mb": round(memory_mb),
    }


def write_question(folder: Path) -> Path:
    """The question that the fake microphone plays, with a pause after it."""
    with open_service() as client:
        speech = client.say(QUESTION, voice=client.info.voices[-1])
    wave = resample(speech.samples, speech.sample_rate_hz, RATE_HZ)
    path = folder / "question.wav"
    pause = np.zeros(round(PAUSE_S * RATE_HZ), np.float32)
    write_wav(path, to_pcm16(np.concatenate([wave, pause])), RATE_HZ)
    return path


def talk(tab: Any, turns: int) -> dict[str, Any]:
    """What a tab has seen after so many turns."""
    tab.page.wait_for_function("window.recorder?.ready")
    for choice in SPOKEN:
        tab.page.locator(f".switches label:has({choice})").click()
    tab.page.evaluate(WATCH)
    tab.page.locator(".rec-free").click()
    progress = Progress(turns, "turns")
    for turn in range(1, turns + 1):
        tab.page.wait_for_function(
            f"seen.starts.length >= {turn} || recorder.state === 'off'", timeout=1000 * TURN_LIMIT_S
        )
        if tab.page.evaluate("recorder.state") == "off":
            said = tab.page.locator("#problem").inner_text()
            raise MossError(f"The page closed its microphone: {said or 'it says nothing.'}")
        progress.advance(1)
    progress.end()
    return tab.page.evaluate("seen")


def summary(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}_median_ms": round(statistics.median(values), 1),
        f"{name}_worst_ms": round(max(values), 1),
    }


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
