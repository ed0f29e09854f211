"""Small talk: tools, what is known by heart, what the network was taught, and admissions."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.talk import by_heart
from moss_engine.talk.admissions import admit
from moss_engine.talk.answer import Question, Recite, Say
from moss_engine.talk.learned import question as learned
from moss_engine.talk.small_talk import MAX_SESSIONS, SmallTalk
from moss_engine.text.spoken.text import spoken_text
from tests.talk.judged_answers import JUDGED, VERDICTS, replies

HERE = Path(__file__).parent
SENSIBLE, WRONG = 0.70, 0.05
UNKNOWN = ("why is that so", "asdfghjkl", "what is the weather tomorrow", "call my mother")
"""A question for every kind of admission."""
ADMITTED = tuple({admit(text, count).partition(". ")[0] for text in UNKNOWN for count in range(6)})


@pytest.fixture
def talk() -> SmallTalk:
    return SmallTalk((0.7, 1.5))


def is_admission(answer: str) -> bool:
    return answer.startswith(ADMITTED)


def said(talk: SmallTalk, text: str, **values) -> str:
    part = talk.reply(Question(text, session_id="visitor", **values))
    assert isinstance(part, Say)
    return part.text


def test_slower_lasts_until_the_page_says_otherwise(talk):
    asked = Question("slower, please", session_id="visitor")
    first = talk.reply(asked)
    assert first.speed == 0.83 and "slower" in first.text
    assert talk.reply(replace(asked, text="hello")).speed == 0.83
    assert talk.reply(replace(asked, text="hello", session_id="other")).speed == 1.0
    assert talk.reply(replace(asked, text="hello", speed=1.2)).speed == 1.2


def test_without_a_choice_of_rates_none_is_promised():
    assert is_admission(said(SmallTalk(None), "speak slower"))


def test_jokes_take_turns(talk):
    assert len({said(talk, "tell me a joke") for _ in range(4)}) == 4


def test_a_question_that_is_like_a_known_one_is_known_and_one_that_is_not_is_admitted(talk):
    assert "Nano" in said(talk, "so who exactly are you then?")
    for unknown in ("why is the grass wet", "who is your father's boss", "what is your shoe size"):
        assert is_admission(said(talk, unknown)), unknown


def test_what_the_visitor_asks_of_themselves_is_not_answered_of_the_voice(talk):
    asked = ("how old am I", "where do I live", "am I a robot", "how?", "who?")
    for unknown in asked:
        assert is_admission(said(talk, unknown)), unknown
    assert said(talk, "what?") == "I have said nothing yet."
    assert "young" in said(talk, "how old are you") and "Nano" in said(talk, "who am I talking to")


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("are you recording me", "forgotten"),
        ("Are you recording this?", "forgotten"),
        ("Do I need the internet?", "without the internet"),
        ("are you a recording", "synthetic"),
        ("My name is Bob", "Nice to meet you"),
        ("hello, my name is Mary Ann Smith.", "Nice to meet you"),
        ("What is my name?", "do not know you"),
        ("how are you doing today?", "Very well"),
        ("I want to kill myself", "crisis line"),
        ("I don't want to live anymore", "crisis line"),
        ("no thank you", "All right, then."),
        ("No, thanks!", "All right, then."),
        ("thank you", "You are welcome."),
    ],
)
def test_what_is_said_often_is_answered_by_what_it_means(talk, asked, wanted):
    assert wanted in said(talk, asked)


def test_admissions_are_varied_and_carry_one_suggestion():
    told = [admit("why is that so", count) for count in range(6)]
    assert len(set(told)) == 6 and all(text.count(". ") == 1 for text in told)
    assert len(ADMITTED) == 6 + 3 + 2 + 2
    assert "understand" in admit("asdfghjkl", 0)
    assert "weather" in admit("what is the weather tomorrow", 0)


def test_only_what_the_network_was_taught_is_asked_of_it(talk):
    assert learned('what\'s the opposite of "hot"?') == "What is the opposite of hot?"
    assert learned("capital of the united states") == "What is the capital of the United States?"
    assert learned("Which day comes after friday?") == "Which day comes after Friday?"
    assert learned("what is the capital of Wakanda?") is None
    assert learned("what is the opposite of blue") is None
    assert learned("what does rapid mean") == "What does rapid mean?"
    assert learned("what is the twelfth month") == "What is the twelfth month?"
    for unknown in ("what does that mean", "what does it mean", "what is the meaning of this"):
        assert learned(unknown) is None, unknown
    assert learned("define it") is None and learned("what is the tenth day") is None
    part = talk.reply(Question("What is the capital of France?"))
    assert part == Recite("What is the capital of France?")


def test_every_answer_by_heart_can_be_spoken():
    exact, _ = by_heart._table()
    assert all(spoken_text(answer) for answers in exact.values() for answer in answers)


def test_visitors_are_forgotten_in_turn(talk):
    talk.reply(Question("slower", session_id="visitor"))
    for number in range(MAX_SESSIONS):
        talk.reply(Question("hello", session_id=str(number)))
    assert talk.reply(Question("hello", session_id="visitor")).speed == 1.0


def test_every_answer_that_was_read_and_judged_is_the_one_that_is_given_today():
    """Where this fails: `python -m tests.talk.judged_answers`, and read the new answers."""
    judged = json.loads(JUDGED.read_text(encoding="utf-8"))
    asked = replies()
    assert len(asked) == 120 and [entry["question"] for entry in judged["answers"]] == [
        question for question, _ in asked
    ]
    changed = [
        (question, part)
        for entry, (question, part) in zip(judged["answers"], asked, strict=True)
        if (entry["answer"] if isinstance(part, Say) else entry.get("recites"))
        != (part.text if isinstance(part, Say) else part.question)
    ]
    assert changed == []
    counts = Counter(entry["verdict"] for entry in judged["answers"])
    assert {name: counts[name] for name in VERDICTS} == {name: judged[name] for name in VERDICTS}
    assert counts.total() == 120 and set(counts) <= set(VERDICTS)
    assert counts["sensible"] >= SENSIBLE * 120 and counts["wrong"] <= WRONG * 120


def questions(name: str) -> list[tuple[str, str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [(asked, wanted) for asked, _, wanted in (line.partition(" | ") for line in lines)]


@pytest.mark.parametrize("name", ["questions.txt", "questions_held.txt"])
def test_most_questions_are_answered_sensibly_and_hardly_any_wrongly(talk, name):
    """A pattern says which answers are sensible; the network's own answers, which are known to be
    right for what it is asked here, count as the question asked of it."""
    asked = questions(name)
    sensible, wrong = [], []
    history = (("user", "My dog is old."), ("assistant", "How nice."))
    for text, wanted in asked:
        part = talk.reply(Question(text, history, session_id="visitor"))
        if isinstance(part, Recite) or (
            re.search(wanted, part.text.lower(), re.S) and not is_admission(part.text)
        ):
            sensible.append(text)
        elif not is_admission(part.text):
            wrong.append((text, part.text))
    assert len(asked) == 60
    assert len(sensible) >= SENSIBLE * len(asked)
    assert len(wrong) <= WRONG * len(asked), wrong
