"""Talking to the built-in voice in Chromium, hands-free.

The page runs with its recogniser and the built-in voice; Chromium's fake microphone asks the same
question over and over, so that every answer is interrupted by the next question.

    first_sound   from the last loud block of the question to the first sample of the answer at the
                  loudspeaker
    silence       from the first loud block of the voice to the answer falling silent
    underruns     where an answer stopped because its next sound was not there
    memory_mb     what the process holds at the end, which is the program's and this one
"""

from __future__ import annotations

import argparse
import resource

import numpy as np

from moss_engine.build import build_talking_service
from moss_engine.client import open_service
from moss_engine.config import EngineConfig, TalkConfig
from scripts.bench.browser import (
    RATE_HZ,
    TURN_LIMIT_S,
    hearing,
    require_listening,
    served,
    talk_hands_free,
)
from scripts.bench.common import Report, count, machine, spread

QUESTION = "What can you do?"  # its answer is longer than the pause
PAUSE_S = 4.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=count, default=20, metavar="N", help="questions (20)")


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), turns=args.turns)
    with open_service() as client:
        asked = client.say(QUESTION, voice=client.info.voices[-1])
    assert asked.sample_rate_hz == RATE_HZ
    wave = np.concatenate([asked.samples, np.zeros(round(PAUSE_S * RATE_HZ), np.float32)])
    service = build_talking_service(EngineConfig(), TalkConfig())
    with served(service) as url, hearing(wave) as browser:
        tab = talk_hands_free(browser, url)
        for turn in range(1, args.turns + 1):
            enough = "(n) => Math.min(seen.starts.length, seen.silences.length) >= n"
            over = f"(n) => ({enough})(n) || recorder.state === 'off'"
            tab.page.wait_for_function(over, arg=turn, timeout=1000 * TURN_LIMIT_S)
            require_listening(tab)
            report.say(f"{turn} turns")
        seen = tab.page.evaluate("seen")
    report.add(
        **spread("first_sound", seen["starts"][: args.turns]),
        **spread("silence", seen["silences"][: args.turns]),
        underruns=seen["underruns"],
        memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    )
