"""Talking to the built-in voice in Chromium, hands-free.

The page runs with its recogniser and the built-in voice; Chromium's fake microphone asks the same
question over and over, so that every answer is interrupted by the next question. A run ends after
--minutes; the same command with the same --out goes on where it ended. With --tabs all listen to
the same microphone, and talk at the same time.

    first_sound   from the last loud block of the question to the first sample of the answer at the
                  loudspeaker
    silence       from the first loud block of the voice to the answer falling silent
    underruns     where an answer stopped because its next sound was not there
    memory_mb     what the process holds at the end, which is the program's and this one
"""

from __future__ import annotations

import argparse
import resource
import time

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
    parser.add_argument("--turns", type=count, default=200, metavar="N", help="questions (200)")
    parser.add_argument("--tabs", type=count, default=1, metavar="N", help="who ask (1)")
    parser.add_argument("--minutes", type=float, default=9.0, help="of a run (9)")


def run(args: argparse.Namespace, report: Report) -> None:
    report.go_on()
    kept = {"starts": [], "silences": [], "underruns": 0, **report.values.get("seen", {})}
    report.add(machine=machine(), tabs=args.tabs)
    with open_service() as client:
        asked = client.say(QUESTION, voice=client.info.voices[-1])
    assert asked.sample_rate_hz == RATE_HZ
    wave = np.concatenate([asked.samples, np.zeros(round(PAUSE_S * RATE_HZ), np.float32)])
    service = build_talking_service(EngineConfig(), TalkConfig())
    with served(service) as url, hearing(wave) as browser:
        tabs = [talk_hands_free(browser, url) for _ in range(args.tabs)]
        until_s, turns, wanted = time.monotonic() + 60 * args.minutes, 0, args.turns
        while len(kept["starts"]) + turns * args.tabs < wanted and time.monotonic() < until_s:
            turns += 1
            for tab in tabs:
                enough = "(n) => Math.min(seen.starts.length, seen.silences.length) >= n"
                over = f"(n) => ({enough})(n) || recorder.state === 'off'"
                tab.page.wait_for_function(over, arg=turns, timeout=1000 * TURN_LIMIT_S)
                require_listening(tab)
            if turns % 5 == 0:
                report.say(f"{turns} turns")
        found = [tab.page.evaluate("seen") for tab in tabs]
    seen = {
        what: kept[what] + [round(ms, 1) for one in found for ms in one[what][:turns]]
        for what in ("starts", "silences")
    }
    underruns = kept["underruns"] + sum(one["underruns"] for one in found)
    report.add(
        turns=len(seen["starts"]),
        **spread("first_sound", seen["starts"]),
        **spread("silence", seen["silences"]),
        underruns=underruns,
        memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        seen=seen | {"underruns": underruns},
    )
