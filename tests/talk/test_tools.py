"""The tools of the small talk: what is asked for is found, and nothing else."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from moss_engine.api.metrics import RequestMetrics
from moss_engine.api.request import Message, Text
from moss_engine.talk import calculator, tools
from moss_engine.talk.answer import Question
from moss_engine.talk.small_talk import SmallTalk

NOON = datetime(2026, 2, 28, 12, 5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("what's 17 times 3", "51"),
        ("What is twenty-five plus seventeen?", "42"),
        ("how much is one million minus one", "999,999"),
        ("12 * (3 + 4)", "84"),
        ("7 minus 12", "-5"),
        ("one divided by three", "about 0.3333"),
        ("subtract 3 from ten", "7"),
        ("the square root of 144", "12"),
        ("5 squared", "25"),
        ("2 to the power of 64", "18,446,744,073,709,551,616"),
        ("15 percent of 80", "12"),
        ("two point five times four", "10"),
        ("three hundred and five plus five", "310"),
        ("double 21", "42"),
        ("what is half of 9", "4.5"),
        ("twenty five plus one hundred and twenty", "145"),
        ("12:4", "3"),
        ("Could you please tell me what 6 x 7 is?", None),
        ("what is 6 x 7", "42"),
    ],
)
def test_sums_are_exact(asked, said):
    assert calculator.answered(asked) == (said and f"That is {said}.")


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "seven",
        "I have two dogs and a cat",
        "3 +",
        "7 of 9",
        "twenty twenty six minus nineteen ninety",
        "five five five plus one",
        "is it 5:30",
    ],
)
def test_what_is_no_sum_is_left_alone(asked):
    assert calculator.answered(asked) is None


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
    begun_s = time.thread_time()
    said = talk.reply(Question(asked)).text
    took_s = time.thread_time() - begun_s
    assert took_s < 0.2  # 50 ms on a machine that is not busy
    assert len(said) < 200


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("What time is it?", "It is 12:05 PM."),
        ("what day is it today", "Today is Saturday."),
        ("What's the date?", "Today is Saturday, February 28, 2026."),
        ("what day is tomorrow", "Tomorrow is Sunday, March 1, 2026."),
        ("which year is it", "It is 2026."),
        ("what time is the train", None),
    ],
)
def test_the_clock_is_read(asked, said):
    assert tools.clock(asked, NOON) == said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Repeat after me: I like tea.", "I like tea."),
        ("can you repeat after me hello world", "Hello world"),
        ('Say "I love robots"', "I love robots"),
        ("please say the word banana", "Banana"),
        ("What did I just say?", "You said: My dog is old."),
        ("can you repeat that please", "How nice."),
        ("What?", "How nice."),
        ("Say something", None),
        ("say hello", None),
        ("What do you say?", None),
    ],
)
def test_what_was_said_is_said_again(asked, said):
    before = (Message("user", Text("My dog is old.")), Message("assistant", Text("How nice.")))
    assert tools.said_again(asked, before) == said


def test_at_the_beginning_nothing_was_said():
    assert "first question" in (tools.said_again("what did I just say", ()) or "")
    assert tools.said_again("say that again", ()) == "I have said nothing yet."


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("spell cat", "C, A, T."),
        ("How do you spell 'rhythm'?", "R, H, Y, T, H, M."),
        ("how is the weather", None),
        ("spell it", None),
        ('spell "it"', "I, T."),
        ("spell the word it", "I, T."),
        ("spell your name", "N, A, N, O."),
        ("spell " + "a" * 99, "I spell one word at a time; give me a shorter one."),
    ],
)
def test_words_are_spelled(asked, said):
    assert tools.spelled(asked) == said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("count to five", "One, two, three, four, five."),
        ("Could you count from 3 to 5 for me?", "Three, four, five."),
        ("count backwards from three", "Three, two, one, zero."),
        ("count to a million", tools.TOO_FAR),
        ("count on me", None),
        ("count to the moon", None),
    ],
)
def test_numbers_are_counted(asked, said):
    assert tools.counted(asked) == said


@pytest.mark.parametrize(
    ("asked", "rate"),
    [
        ("slower, please", 0.83), ("speak slower", 0.83), ("Could you talk more slowly?", 0.83),
        ("you speak too fast", 0.83), ("slow down", 0.83), ("faster please", 1.2),
        ("speak a bit faster", 1.2), ("speak at normal speed again", 1.0), ("why so slow", None),
        ("slow food is good", None), ("what is fast", None),
    ],
)  # fmt: skip
def test_the_speaking_rate_is_asked_for(asked, rate):
    found = tools.other_rate(asked, 1.0, 0.7, 1.5)
    assert (found and found[0]) == rate


def test_the_speaking_rate_has_ends():
    assert tools.other_rate("faster", 1.5, 0.7, 1.5) == (1.5, "I cannot speak any faster.")
    assert tools.other_rate("slower", 0.75, 0.7, 1.5) == (0.7, "All right, I speak slower now.")


def measured() -> RequestMetrics:
    values = dict.fromkeys(RequestMetrics.__dataclass_fields__, 0)
    return RequestMetrics(**{**values, "ttfa_ms": 250.0, "rtf": 0.4})


def test_the_figures_are_those_of_the_answer_before():
    assert "after 0.25 seconds" in (tools.measured("How fast are you?", measured()) or "")
    assert "2.5 times as fast" in (tools.measured("is this real time", measured()) or "")
    assert "Ask me again" in (tools.measured("Is this real time?", None) or "")
    assert tools.measured("is this real", measured()) is None
