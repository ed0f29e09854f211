"""Texts made to take long: a few characters again and again, up to the longest text that is taken.

worst_ms     of processor time, the least of three, of all patterns at MOST characters
growth       the most that a doubling from LEAST on makes of a time, which is TELLING_MS by then
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from moss_engine.talk.calculator import answered
from moss_engine.text.language import doubt
from moss_engine.text.spoken.text import spoken_text
from scripts.bench.common import Report, machine

MOST, LEAST, TRIES, TELLING_MS = 4096, 512, 3, 1.0
PATTERNS = (
    '1e10 |x@y.z |9^|?!|½|a-|\u200d|1 a |\\"|a.|A. |$1 |1/2 |1:2 |http://a.b |3-4-|(|[|<a>|`a`|'
    "**a** |- a\n|#a |1,000 |2020-01-01 |10% |5 km |St. |Dr. A |e.g. |IV |a'|it's |AAA |aA|_a|a_b |"
    "/a|a/b |1.2.3.4 |...|—|😀|é|日|ا|Я |a\n|\n\n|&amp;|{a}|x^2 |x=1 |a=b;|0x1f |deadbeef1 |1-800-|"
    "555-1234 |(555) 555-5555 |5'10\" |$5/kg |mph |60s |1990s |Jan 1 |3pm |12:30 |1st |chapter IV |"
    "Wars I and II |a b |www.|C:\\a |~/a |a@b |#1 |No. 5 |+1 |±1 |1±|1×2 |√2 |π |α |°C |20°C |$$|"
    "\\frac{1}{2} |$x$ |![a](b) |[a](b) |[^1] |> a\n|```\n|---\n|=|==a==|~~|!|?|a |A |1|1 |1,|1.|"
    "a1|A1-|7/8/9 |am |U.S. |iPhone5 |10-20 |10,5 km |S1E2 |ten (10) |1 000 |two 4 |u 2 |"
    "rated 5/5 |1m 2s |1h 2m |9^900*|1/3+|sqrt |two plus |minus |7 percent of |2 times |\u200d\n"
).split("|")


def add_options(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), patterns=len(PATTERNS), characters=MOST)
    for name, function in (
        ("spoken_text", spoken_text),
        ("doubt", doubt),
        ("calculator", lambda text: answered(f"What is {text}?")),
    ):
        worst, growth = (0.0, ""), (0.0, "")
        for pattern in PATTERNS:
            before_ms, size = took_ms(function, pattern, LEAST), LEAST
            while size < MOST:
                size *= 2
                now_ms = took_ms(function, pattern, size)
                if now_ms >= TELLING_MS:
                    growth = max(growth, (round(now_ms / before_ms, 2), pattern))
                before_ms = now_ms
            worst = max(worst, (round(before_ms, 1), pattern))
        found = {"worst_ms": worst[0], "by": worst[1], "growth": growth[0], "grows": growth[1]}
        report.say(f"{name}: {found}")
        report.add(**{name: found})


def took_ms(function: Callable[[str], object], pattern: str, size: int) -> float:
    text, times_s = (pattern * (size // len(pattern) + 1))[:size], []
    for _ in range(TRIES):
        began_s = time.process_time()
        function(text)
        times_s.append(time.process_time() - began_s)
    return 1000 * min(times_s)
