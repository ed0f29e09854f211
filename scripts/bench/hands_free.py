"""Talking to the built-in voice in Chromium, hands-free.

The page runs with its recogniser and the built-in voice; Chromium's fake microphone asks QUESTIONS
over and over, in one voice after the other, so that a long answer is interrupted by the next
question.

    first_sound   from the last loud block of a question to the first sample of the answer at the
                  loudspeaker
    unanswered    questions to which no answer sounded
    interrupted   questions that were asked while an answer sounded
    silence       from the first loud block of such a question to the answer falling silent
    underruns     how often an answer stopped because its next sound was not there
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.audio.pcm import to_pcm16, write_wav
from moss_engine.build import build_talking_service
from moss_engine.client import open_service
from moss_engine.config import EngineConfig, TalkConfig
from scripts.bench.browser import page_browser, served
from scripts.bench.common import Report, machine, spread
from scripts.command import count

QUESTIONS = (
    "What can you do?",
    "How is the weather?",
    "Tell me a joke.",
    "Where are you from?",
    "What time is it?",
    "What is seven times eight?",
    "Do you like music?",
    "What should I cook tonight?",
    "How far away is the moon?",
    "Who wrote Hamlet?",
)
RATE_HZ = 24_000
PAUSE_S, TURN_LIMIT_S = 4.0, 60.0
LOUD = 0.05
SPOKEN = "#mode-notes [data-input=speech][data-output=speech]"
WATCH = """(loud) => {
  window.seen = {
    starts: [], asked: [], silences: [], underruns: 0, before: 0, loud: 0, onset: 0, onsets: 0,
    run: null, held: null,
  };
  const listener = recorder.capture.listener;
  recorder.capture.listener = (pcm, level, played) => {
    const now = performance.now();
    if (level > loud) {
      if (now - seen.loud > 1000) {
        seen.onset = now;
        seen.onsets += 1;
      }
      seen.loud = now;
    }
    listener(pcm, level, played);
  };
  const { player } = liveAudio;
  const hold = player.hold.bind(player);
  player.hold = (held) => {
    seen.held = held ? performance.now() : null;
    hold(held);
  };
  const stop = liveAudio.stop;
  liveAudio.stop = () => {
    if (seen.held) seen.silences.push(seen.held - seen.onset);
    seen.held = null;
    stop();
  };
  setInterval(() => {
    const { run, firstMs, underruns } = liveAudio.state;
    seen.underruns += Math.max(0, (underruns || 0) - seen.before);
    seen.before = underruns || 0;
    if (!run || run === seen.run || !firstMs) return;
    seen.run = run;
    seen.starts.push(firstMs + player.outputLatencyMs - seen.loud);
    seen.asked.push(seen.onsets - 1);
  }, 10);
}"""
"""Watches a conversation by voice. `starts` are the times from the last loud block of a question to
the answer's first sample at the loudspeaker, `asked` the numbers of these questions, `silences` the
times from a voice's first loud block to the silence of the answer that it stopped."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=count, default=200, metavar="N", help="answers (200)")


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine())
    with open_service() as client:
        asked = list(itertools.product(client.info.voices, QUESTIONS))
        pause = np.zeros(round(PAUSE_S * RATE_HZ), np.float32)
        said = [[pause, client.say(text, voice=voice).samples] for voice, text in asked]
        assert client.info.sample_rate_hz == RATE_HZ
    wave = np.concatenate(list(itertools.chain(*said)))
    service = build_talking_service(EngineConfig(), TalkConfig())
    with served(service) as url, hearing(wave) as browser:
        tab = talk_hands_free(browser, url)
        for turn in range(1, args.turns + 1):
            over = "(n) => seen.starts.length >= n || recorder.state === 'off'"
            tab.page.wait_for_function(over, arg=turn, timeout=1000 * TURN_LIMIT_S)
            if tab.page.evaluate("recorder.state") == "off":
                why = tab.page.locator("#problem").inner_text()
                raise MossError(f"The page closed its microphone: {why or 'it does not say why.'}")
            if turn % 5 == 0 or turn == args.turns:
                report.say(f"{turn} turns")
                report.add(**figures(tab.page.evaluate("seen"), turn))


@contextmanager
def hearing(wave: np.ndarray) -> Iterator[Any]:
    """A Chromium whose microphone plays `wave`, float32 [n] at RATE_HZ, over and over."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "microphone.wav"
        write_wav(path, to_pcm16(wave), RATE_HZ)
        flags = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
        played = f"--use-file-for-fake-audio-capture={path}"
        with page_browser.chromium(*flags, played) as browser:
            yield browser


def talk_hands_free(browser: Any, url: str) -> Any:
    """A tab that listens hands-free, in which WATCH runs."""
    tab = page_browser.Visit(browser, url, permissions=["microphone"])
    tab.page.wait_for_function("window.recorder")
    mode = tab.page.locator(SPOKEN).first.get_attribute("data-mode")
    tab.page.locator(f'#mode label:has([value="{mode}"])').click()
    tab.page.evaluate(WATCH, LOUD)
    tab.page.locator(".rec-free").click()
    return tab


def figures(seen: dict[str, Any], turns: int) -> dict[str, Any]:
    starts, numbers = seen["starts"][:turns], seen["asked"][:turns]
    silences = seen["silences"]
    return {
        "turns": turns,
        **spread("first_sound", starts),
        "unanswered": max(numbers) + 1 - len(set(numbers)),
        "interrupted": len(silences),
        **(spread("silence", silences) if silences else {}),
        "underruns": seen["underruns"],
        "starts": [round(ms, 1) for ms in starts],
        "asked": [QUESTIONS[number % len(QUESTIONS)] for number in numbers],
    }
