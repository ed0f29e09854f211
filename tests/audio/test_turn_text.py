"""What the words of a turn say about its end."""

from __future__ import annotations

import pytest

from moss_engine.audio.turn_text import (
    MEANT_S,
    PAUSE_OPEN_S,
    PAUSE_WHOLE_S,
    interrupts,
    is_echo,
    is_murmur,
    pause_s,
)


@pytest.mark.parametrize("text", ["What time is it?", "Tell me a joke.", "Count to 10.", "Hello"])
def test_after_a_whole_sentence_the_pause_is_short(text):
    assert pause_s(text) == PAUSE_WHOLE_S


@pytest.mark.parametrize(
    "text", ["What is the capital of.", "I would like, um", "Well,", "", "And"]
)
def test_in_the_middle_of_one_it_is_long(text):
    assert pause_s(text) == PAUSE_OPEN_S


def test_who_only_listens_says_nothing():
    assert all(map(is_murmur, ("", "Mm-hmm.", "Mhm, uh-huh.", "Hmm...", "Oh!")))
    assert not any(map(is_murmur, ("No.", "Mm, stop.", "Okay", "7")))


def test_an_answer_is_interrupted_by_words_that_mean_it():
    assert interrupts("Tell me a joke.", MEANT_S) and interrupts("Stop!", 0.3)
    assert not interrupts("No.", 0.4), "a murmur is often taken for it"
    assert not interrupts("Right.", 0.3) and not interrupts("Mm-hmm.", 2.0)


SAYING = " My train leaves at 7:45, so please wait for me. Doctor Sanders will see you"


def test_an_answer_is_not_interrupted_by_its_own_words():
    for heard in ("So please wait.", "please wait for me. Doctor", "Forty five. So please,"):
        assert is_echo(heard, SAYING), heard
        assert not interrupts(heard, 2.0, SAYING) and interrupts(heard, 2.0)


def test_other_words_interrupt_it_also_where_some_are_its_own():
    for heard in ("Wait, stop.", "When does my train go back?", "Who is Doctor Miller?"):
        assert interrupts(heard, 2.0, SAYING), heard
    assert not is_echo("", SAYING) and not is_echo("Wait.", "")
