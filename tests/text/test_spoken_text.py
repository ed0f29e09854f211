"""Written English -> spoken words, and its cutting into sentences."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moss_engine.text.spoken import dates, formulas, numbers, signs, text, units
from moss_engine.text.spoken.cardinals import cardinal, digits, ordinal, year
from moss_engine.text.spoken.numbers import numbers_to_words
from moss_engine.text.spoken.rules import Rule, needs_of
from moss_engine.text.spoken.text import MAX_WORD_LETTERS, as_sentence, split_sentences, spoken_text


def known(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


SENTENCES: dict[str, Any] = known("sentences.json")
TABLE: dict[str, str] = known("spoken.json")
"""Texts as they are written, and as they are said."""


@pytest.mark.parametrize(("written", "said"), TABLE.items(), ids=lambda text: text[:30])
def test_table(written: str, said: str) -> None:
    assert spoken_text(written) == said
    assert spoken_text(said) == said, "what is said is read as it stands"


def test_what_nobody_would_listen_to_is_not_read_out() -> None:
    assert spoken_text("9^" * 500) == "a code of one thousand characters"
    assert spoken_text("≤" * 9 + " 5") == "less than or equal to five"
    assert spoken_text("Features\n++++++++\nIt reads.") == "Features. It reads."
    listed = ",".join(map(str, range(1, 101)))
    assert spoken_text(listed).startswith("one, two, three, four, five, six, seven, eight, nine")


def test_a_rule_that_is_left_out_would_have_found_nothing() -> None:
    tables = [
        table
        for module in (dates, formulas, numbers, signs, text, units)
        for table in vars(module).values()
        if isinstance(table, tuple) and table and isinstance(table[0], Rule)
    ]
    for pattern, _, needs in dict.fromkeys(rule for table in tables for rule in table):
        for written in TABLE:
            if pattern.search(written):
                assert all(any(one in written for one in texts) for texts in needs), pattern.pattern
    assert needs_of(re.compile(r"\bDr\.(?=\s+[A-Z])")) == (("Dr.",),)
    assert needs_of(re.compile(r"(?i)a+|\d:(?:b|c)?")) == ()


ALLOWED = re.compile(r"(?:[A-Za-z]+(?:['-][A-Za-z]+)*[.,?!;:]?(?: (?=[A-Za-z])|$))*")
PIECES = st.sampled_from(
    [
        *TABLE,
        *"Dr. St. a.m. U.S. ' - . ... I A II NASAs x 12 1/2 $ € % ° @ 😀 本 é ½ ⅷ".split(),
        *"ﬁ İ ß ǅ Q. aaaa JJJJ Mr No. etc. :) ’s ١٢".split(),
        "\n\n",
        "http://a.b",
        "\u0301",
        "\u202e",
    ]
)


@pytest.mark.parametrize("empty", ["\n" * 4000, "\n \n" * 1500, "\u200d\n" * 2000])
def test_any_number_of_empty_lines_is_one(empty: str) -> None:
    for mark in (".", "!", ""):
        assert spoken_text(f"One{mark}{empty}Two") == spoken_text(f"One{mark}\n\nTwo")


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join), st.lists(PIECES).map("".join)))
@example("I.I.")
@example("a.b.c.")
@example("SunAug")
@example('İMon-Fri at 8:00"about 10"')
@settings(deadline=None, max_examples=100)
def test_any_text_becomes_plain_words_once(text: str) -> None:
    said = spoken_text(text)
    assert ALLOWED.fullmatch(said), said
    assert all(len(word) <= MAX_WORD_LETTERS for word in re.findall("[A-Za-z]+", said))
    assert spoken_text(said) == said


@given(st.text(alphabet="0123456789.,:/-$% apmkgst", max_size=24))
@settings(deadline=None, max_examples=300)
def test_no_figure_is_left(text: str) -> None:
    assert not re.search(r"\d", numbers_to_words(text))


def test_number_words() -> None:
    assert cardinal(12_305) == "twelve thousand three hundred five"
    assert cardinal(10**12) == " ".join(["one", *["zero"] * 12])
    assert ordinal(121) == "one hundred twenty-first"
    assert [year(y) for y in (1066, 1900, 1905, 2000, 2010)] == [
        "one thousand sixty-six",
        "nineteen hundred",
        "nineteen oh five",
        "two thousand",
        "twenty ten",
    ]
    assert digits("2-04") == "two zero four"


@pytest.mark.parametrize(("text", "sentences"), SENTENCES["cut"].items(), ids=lambda x: str(x)[:30])
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, 200) == sentences


def test_long_sentences_are_cut_where_a_reader_pauses() -> None:
    text = (
        "We came home late in the evening, tired and hungry; nobody had cooked, so we went out "
        "again to eat."
    )
    assert split_sentences(text, 60) == [
        "We came home late in the evening, tired and hungry;",
        "nobody had cooked, so we went out again to eat.",
    ]
    assert split_sentences("one two three four five six", 12) == [
        "one two",
        "three four",
        "five six",
    ]
    assert split_sentences("abcdefghij" * 3, 8) == ["abcdefgh", "ijabcdef", "ghijabcd", "efghij"]


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join)), st.integers(1, 60))
@settings(deadline=None, max_examples=200)
def test_cutting_loses_nothing(text: str, max_chars: int) -> None:
    pieces = split_sentences(text, max_chars)
    assert all(0 < len(piece) <= max_chars and piece == piece.strip() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@pytest.mark.parametrize(("typed", "sentence"), SENTENCES["read as"].items())
def test_a_text_is_read_as_a_sentence(typed: str, sentence: str) -> None:
    assert as_sentence(typed) == sentence == as_sentence(sentence)
