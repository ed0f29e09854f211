"""The tools of the small talk: what is asked for is found, and nothing else."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from moss_engine.api.request import Message, Text
from moss_engine.talk import calculator, tools
from moss_engine.talk.answer import Question
from moss_engine.talk.small_talk import SmallTalk
from tests.talk.talk_support import reply

NOON = datetime(2026, 2, 28, 12, 5)
TABLES = json.loads(Path(__file__).with_name("tools.json").read_text(encoding="utf-8"))
"""What is asked, and what is said; null where something else was asked for."""


BEFORE = (Message("user", Text("My dog is old.")), Message("assistant", Text("How nice.")))
TOOLS = {
    "sums": calculator.answered,
    "clock": lambda asked: tools.clock(asked, NOON),
    "said again": lambda asked: tools.said_again(asked, BEFORE),
    "spelled": tools.spelled,
    "counted": tools.counted,
    "rates": lambda asked: (tools.other_rate(asked, 1.0, 0.7, 1.5) or (None,))[0],
}


@pytest.mark.parametrize(
    ("tool", "asked", "said"),
    [(tool, asked, said) for tool in TOOLS for asked, said in TABLES[tool].items()],
)
def test_a_tool_does_what_is_asked_of_it_and_leaves_all_else_alone(tool, asked, said):
    assert TOOLS[tool](asked) == said


def test_what_nobody_can_say_is_said_to_be_so():
    assert calculator.answered("1 divided by 0") == calculator.NO_DIVISION
    for endless in ("9 ^ 9 ^ 9", "10 to the power of 400", "9" * 30 + " * " + "9" * 30):
        assert calculator.answered(endless) == calculator.TOO_LONG
    assert calculator.answered("(" * 300 + "1") is None
    assert calculator.answered("what is " + "1 + " * 90 + "1") == "That is 91."


@pytest.mark.parametrize(
    "asked",
    [
        "What is " + "+".join(f"1/{1009 + n}^480" for n in range(20)) + "?",
        "9^900*9^900",
        "1 + " * 900 + "1",
        "2^300*3^-2000",
        "1 trillion" + " trillion" * 30 + " + 1",
        "please " * 500 + "1+1",
        "the sum of " * 300,
    ],
)
def test_no_sum_takes_long(asked):
    """Each blocked for seconds, or raised ValueError for a number too long for Python to write."""
    talk = SmallTalk((0.7, 1.5))
    begun_s = time.process_time()
    said = reply(talk, Question(asked)).text
    took_s = time.process_time() - begun_s
    assert took_s < 0.2  # 50 ms on a machine that is not busy
    assert len(said) < 200


def test_at_the_beginning_nothing_was_said():
    assert "first question" in (tools.said_again("what did I just say", ()) or "")
    assert tools.said_again("say that again", ()) == "I have said nothing yet."


def test_what_is_too_long_is_neither_spelled_nor_counted():
    assert tools.spelled("spell " + "a" * 99) == (
        "I spell one word at a time; give me a shorter one."
    )
    assert tools.counted("count to a million") == tools.TOO_FAR


def test_the_speaking_rate_has_ends():
    assert tools.other_rate("faster", 1.5, 0.7, 1.5) == (1.5, "I cannot speak any faster.")
    assert tools.other_rate("slower", 0.75, 0.7, 1.5) == (0.7, "All right, I speak slower now.")
