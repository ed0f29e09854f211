"""Latency of the page's reaction to a voice: `python -m scripts.bench.service.talk`, JSON.

A scripted service answers with endless sound, and Chromium's fake microphone plays a sentence over
and over, with a pause after it. Times begin when a block of the microphone arrives in the browser:
the way from the air to it is not in them, and what the loudspeaker still holds neither.

    stop    from the first loud block of the voice to the answer falling silent: hands-free,
            while it is speaking
    turn    from the last loud block to the question being asked in the page: the pause that ends a
            turn is in it
    send    from the second press of the button to the service being asked, with the codes of the
            recording

Every sentence is waited for as long as it takes to be said: 8 turns take a minute and a half, more
on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.audio.pcm import write_wav
from moss_engine.audio.turn_taking import END_S, INTERRUPT_S
from moss_engine.config import REPO_ROOT
from moss_engine.ui.config import PageConfig
from scripts.bench.service.page import tools
from scripts.progress import Progress

SAMPLE = REPO_ROOT / "assets" / "samples" / "good_morning.flac"
PAUSE_S = 3.0
LOUD = 0.05
TURN_LIMIT_S = 60.0  # many times what a turn takes
TALKED = "Math.min(seen.stops.length, seen.turns.length)"
WATCH = """() => {
  window.seen = { stops: [], turns: [], loud: 0, onset: 0 };
  const listener = recorder.capture.listener;
  recorder.capture.listener = (pcm, level) => {
    const now = performance.now();
    if (level > LOUD) {
      if (now - seen.loud > 1000) seen.onset = now;
      seen.loud = now;
    }
    listener(pcm, level);
  };
  let phase = "idle";
  new MutationObserver(() => {
    const next = document.body.dataset.livePhase;
    if (next === phase) return;
    if (next === "stopped") seen.stops.push(performance.now() - seen.onset);
    if (next === "sent") seen.turns.push(performance.now() - seen.loud);
    phase = next;
  }).observe(document.body, { attributeFilter: ["data-live-phase"] });
}""".replace("LOUD", str(LOUD))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.talk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--turns", type=int, default=6, metavar="N", help="turns of the conversation (6)"
    )
    parser.add_argument("--port", type=int, default=7962, help="port for the page (7962)")
    options = parser.parse_args()
    if options.turns < 2:
        raise ConfigError("Give --turns from 2 on.")
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {os.getloadavg()[0]:.1f} of "
        f"them busy before",
        "turns": options.turns,
        "pause_that_ends_a_turn_ms": round(1000 * END_S),
        "speech_that_interrupts_ms": round(1000 * INTERRUPT_S),
    }
    for name, values in measure(options.turns, options.port).items():
        report |= {
            f"{name}_median_ms": round(statistics.median(values), 1),
            f"{name}_worst_ms": round(max(values), 1),
        }
    print(json.dumps(report, indent=1))


def measure(turns: int, port: int) -> dict[str, list[float]]:
    """Milliseconds by name, one for each turn."""
    browsing, support = tools()
    from moss_engine.audio.voice_activity import load_detector
    from moss_engine.ui.server import launch

    load_detector()  # for its sentence, where a package is missing
    service = support.FakeService(support.Script(seconds=60.0, rtf=0.2))
    page = launch(service, PageConfig(port=port))
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            browsing.chromium(
                "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream",
                f"--use-file-for-fake-audio-capture={write_question(Path(folder))}",
            ) as browser,
        ):
            visit = browsing.Visit(browser, f"http://127.0.0.1:{port}/", permissions=["microphone"])
            visit.page.wait_for_function("window.recorder?.ready")
            visit.page.locator("#mode label", has_text="Speak to it").click()
            progress = Progress(2 * turns, "questions")
            sends = [send(visit, service, progress) for _ in range(turns)]
            return {"send": sends, **talk(visit, turns, progress)}
    finally:
        page.close(verbose=False)


def write_question(folder: Path) -> Path:
    """The sentence that the fake microphone plays, with a pause after it."""
    import soundfile

    pcm, rate_hz = soundfile.read(SAMPLE, dtype="int16")
    path = folder / "question.wav"
    write_wav(path, np.concatenate([pcm, np.zeros(round(PAUSE_S * rate_hz), np.int16)]), rate_hz)
    return path


def send(visit: Any, service: Any, progress: Progress) -> float:
    """One question by the button: milliseconds on the wall clock of this machine."""
    visit.page.locator(".rec-talk").click()
    visit.page.wait_for_function("recorder.seconds > 1")
    pressed_ms = visit.page.evaluate("""() => {
      const pressed = Date.now();
      document.querySelector(".rec-talk").click();
      return pressed;
    }""")
    visit.wait("speaking")
    visit.page.locator("#stop").click()
    visit.wait("stopped")
    progress.advance(1)
    return 1000 * service.asked_s[-1] - pressed_ms


def talk(visit: Any, turns: int, progress: Progress) -> dict[str, list[float]]:
    """A hands-free conversation, every answer interrupted by the next question.

    Raises MossError, with what the page says, when it listens no longer.
    """
    visit.page.evaluate(WATCH)
    visit.page.locator(".rec-free").click()
    for turn in range(1, turns + 1):
        visit.page.wait_for_function(
            f"{TALKED} >= {turn} || recorder.state === 'off'", timeout=1000 * TURN_LIMIT_S
        )
        if visit.page.evaluate(TALKED) < turn:
            said = visit.page.locator("#problem").inner_text()
            raise MossError(
                f"The page closed its microphone after {turn - 1} turns: "
                f"{said or 'it does not say why.'}"
            )
        progress.advance(1)
    progress.end()
    seen = visit.page.evaluate("seen")
    return {"stop": seen["stops"][:turns], "turn": seen["turns"][:turns]}


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
