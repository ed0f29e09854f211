"""Talking to the built-in voice in Chromium, hands-free.

The page runs with its recogniser and the built-in voice; Chromium's fake microphone asks QUESTIONS
over and over, in one voice after the other, so that a long answer is interrupted by the next
question. A run ends after --minutes; the same command with the same --out goes on where it ended.
With --tabs all listen to the same microphone, and talk at the same time.

    first_sound   from the last loud block of a question to the first sample of the answer at the
                  loudspeaker, of all and the median of each question
    unanswered    questions behind which no answer sounded
    interrupted   questions over an answer that sounded
    silence       from their first loud block to the answer falling silent
    went_on       answers that fell silent and went on, as nobody spoke to stop them
    underruns     where an answer stopped because its next sound was not there
    memory_mb     what the process holds at the end, which is the program's and this one
"""

from __future__ import annotations

import argparse
import itertools
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
PAUSE_S = 4.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=count, default=200, metavar="N", help="answers (200)")
    parser.add_argument("--tabs", type=count, default=1, metavar="N", help="who ask (1)")
    parser.add_argument("--minutes", type=float, default=9.0, help="of a run (9)")


def run(args: argparse.Namespace, report: Report) -> None:
    report.go_on()
    nothing = {"starts": [], "asked": [], "silences": []}
    nothing |= {"unanswered": 0, "underruns": 0, "goings": 0}
    seen = nothing | report.values.get("seen", {})
    report.add(machine=machine(), tabs=args.tabs)
    with open_service() as client:
        asked = list(itertools.product(client.info.voices, QUESTIONS))
        pause = np.zeros(round(PAUSE_S * RATE_HZ), np.float32)
        said = [[pause, client.say(text, voice=voice).samples] for voice, text in asked]
        assert client.info.sample_rate_hz == RATE_HZ
    wave = np.concatenate(list(itertools.chain(*said)))
    service = build_talking_service(EngineConfig(), TalkConfig())
    with served(service) as url, hearing(wave) as browser:
        tabs = [talk_hands_free(browser, url) for _ in range(args.tabs)]
        until_s, turns, wanted = time.monotonic() + 60 * args.minutes, 0, args.turns
        while len(seen["starts"]) + turns * args.tabs < wanted and time.monotonic() < until_s:
            turns += 1
            for tab in tabs:
                over = "(n) => seen.starts.length >= n || recorder.state === 'off'"
                tab.page.wait_for_function(over, arg=turns, timeout=1000 * TURN_LIMIT_S)
                require_listening(tab)
            if turns % 5 == 0:
                report.say(f"{turns} turns")
        for found in [tab.page.evaluate("seen") for tab in tabs]:
            numbers = found["asked"][:turns]
            seen["starts"] += [round(ms, 1) for ms in found["starts"][:turns]]
            seen["asked"] += [QUESTIONS[number % len(QUESTIONS)] for number in numbers]
            seen["silences"] += [round(ms, 1) for ms in found["silences"]]
            seen["unanswered"] += max(numbers, default=-1) + 1 - len(set(numbers))
            for name in ("underruns", "goings"):
                seen[name] += found[name]
    times = dict.fromkeys(seen["asked"])
    for text in times:
        waited = [ms for ms, to in zip(seen["starts"], seen["asked"], strict=True) if to == text]
        times[text] = round(float(np.median(waited)), 1)
    report.add(
        turns=len(seen["starts"]),
        **spread("first_sound", seen["starts"]),
        questions=times,
        unanswered=seen["unanswered"],
        interrupted=len(seen["silences"]),
        **(spread("silence", seen["silences"]) if seen["silences"] else {}),
        went_on=seen["goings"],
        underruns=seen["underruns"],
        memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        seen=seen,
    )
