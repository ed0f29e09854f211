"""Small talk: tools, what is known by heart, and admissions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.api.request import Message, Text
from moss_engine.talk import by_heart
from moss_engine.talk.answer import Question
from moss_engine.talk.small_talk import MAX_SESSIONS, SmallTalk, admit
from moss_engine.text.spoken.text import spoken_text
from moss_engine.ui.parts.words import examples_of
from tests.talk.talk_support import reply
from tests.ui.page_support import READ

HERE = Path(__file__).parent
SENSIBLE, WRONG = 0.70, 0.05
UNKNOWN = ("why is that so", "asdfghjkl", "what is the weather tomorrow", "call my mother")
"""A question for every kind of admission."""
ADMITTED = tuple(
    {admit(text, count, suggests=False)[:-1] for text in UNKNOWN for count in range(6)}
)


def questions(name: str) -> list[tuple[str, str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [(asked, wanted) for asked, _, wanted in (line.partition(" | ") for line in lines)]


@pytest.fixture
def talk() -> SmallTalk:
    return SmallTalk((0.7, 1.5))


def is_admission(answer: str) -> bool:
    return answer.startswith(ADMITTED)


def said(talk: SmallTalk, text: str, **values) -> str:
    return reply(talk, Question(text, session_id="visitor", **values)).text


def test_slower_lasts_until_the_page_says_otherwise(talk):
    asked = Question("slower, please", session_id="visitor")
    first = reply(talk, asked)
    assert first.speed == 0.83 and "slower" in first.text
    assert reply(talk, replace(asked, text="hello")).speed == 0.83
    assert reply(talk, replace(asked, text="hello", session_id="other")).speed == 1.0
    assert reply(talk, replace(asked, text="hello", speed=1.2)).speed == 1.2


def test_without_a_choice_of_rates_none_is_promised():
    assert is_admission(said(SmallTalk(None), "speak slower"))


def test_another_joke_is_another_one_until_all_were_told(talk):
    first = said(talk, "tell me a joke")
    assert said(talk, "hello") == "Hello, nice to hear from you."
    told = [first, *(said(talk, text) for text in ("another joke", "Another one!", "one more"))]
    assert len(set(told)) == 4
    assert said(talk, "hi") == "Hello again."
    assert reply(talk, Question("a joke please", session_id="other")).text == first


def test_a_question_that_is_like_a_known_one_is_known_and_one_that_is_not_is_admitted(talk):
    assert "Nano" in said(talk, "so who exactly are you then?")
    unknown_ones = ("why is the grass wet", "who is your father's boss", "what is your shoe size")
    made_up_ones = ("What is the capital of France?", "what is the plural of mouse", "define it")
    for unknown in (*unknown_ones, *made_up_ones):
        assert is_admission(said(talk, unknown)), unknown


def test_what_the_page_offers_to_ask_is_known(talk):
    offered = examples_of(replace(READ, split_sentences=False, history=True), scripted=True)
    assert len(offered) == 4
    assert [text for _, text in offered if is_admission(said(talk, text))] == []


def test_what_the_visitor_asks_of_themselves_is_not_answered_of_the_voice(talk):
    asked = ("how old am I", "where do I live", "am I a robot", "how?", "who?")
    for unknown in asked:
        assert is_admission(said(talk, unknown)), unknown
    assert said(talk, "what?") == "I have said nothing yet."
    assert "young" in said(talk, "how old are you") and "Nano" in said(talk, "who am I talking to")


@pytest.mark.parametrize(("asked", "wanted"), questions("questions_sure.txt"))
def test_what_is_said_often_is_answered_by_what_it_means(talk, asked, wanted):
    assert wanted in said(talk, asked)


def test_admissions_are_varied_and_offer_something_every_other_time(talk):
    told = [said(talk, "why is that so") for _ in range(6)]
    assert len(set(told)) == 6
    assert [text.count(". ") for text in told] == [1, 0, 1, 0, 1, 0]
    assert len(ADMITTED) == 6 + 3 + 2 + 2
    assert "understand" in admit("asdfghjkl", 0)
    assert "weather" in admit("what is the weather tomorrow", 0)
    said(talk, "hello")
    assert said(talk, "why is that so").count(". ") == 1


def test_sadness_is_met_with_a_kind_sentence(talk):
    for sad in (
        "I am so sad today",
        "My dog died yesterday.",
        "i'm feeling very lonely",
        "I feel down",
    ):
        assert "sorry" in said(talk, sad), sad
    assert is_admission(said(talk, "why are so many people sad"))
    assert is_admission(said(talk, "is my cat sad"))


def test_every_answer_by_heart_can_be_spoken():
    exact, _ = by_heart._table()
    assert all(spoken_text(answer) for answers in exact.values() for answer in answers)


def test_visitors_are_forgotten_in_turn(talk):
    reply(talk, Question("slower", session_id="visitor"))
    for number in range(MAX_SESSIONS):
        reply(talk, Question("hello", session_id=str(number)))
    assert reply(talk, Question("hello", session_id="visitor")).speed == 1.0


@pytest.mark.parametrize("name", ["questions.txt", "questions_held.txt"])
def test_most_questions_are_answered_sensibly_and_hardly_any_wrongly(talk, name):
    """A pattern says which answers are sensible."""
    asked = questions(name)
    sensible, wrong = [], []
    before = (Message("user", Text("My dog is old.")), Message("assistant", Text("How nice.")))
    for text, wanted in asked:
        answer = reply(talk, Question(text, before, session_id="visitor")).text
        if is_admission(answer):
            continue
        if re.search(wanted, answer.lower(), re.S):
            sensible.append(text)
        else:
            wrong.append((text, answer))
    assert len(asked) == 60
    assert len(sensible) >= SENSIBLE * len(asked)
    assert len(wrong) <= WRONG * len(asked), wrong
