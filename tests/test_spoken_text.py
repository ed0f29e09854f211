"""Written English -> spoken words, and its cutting into sentences."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moss_engine.spoken.numbers import cardinal, digits, numbers_to_words, ordinal, year
from moss_engine.spoken.sentences import split_sentences
from moss_engine.spoken.text import MAX_WORD_LETTERS, spoken_text

TABLE = {
    # numbers
    "I have 3 cats and 1,234 dogs.": "I have three cats and one thousand two hundred thirty-four dogs.",
    "It is -5 outside, or 0.": "It is minus five outside, or zero.",
    "Pi is 3.14159.": "Pi is three point one four one five nine.",
    "50% of 2.5%": "fifty percent of two point five percent",
    "In 1999, 2005 and 2026.": "In nineteen ninety-nine, two thousand five and twenty twenty-six.",
    "The 1990s and the '80s.": "The nineteen nineties and the eighties.",
    "1st, 2nd, 3rd and 22nd": "first, second, third and twenty-second",
    "1/2 cup, 3/4 mile, 2 1/2 hours": "one half cup, three quarters mile, two and a half hours",
    "pages 5-10": "pages five to ten",
    "1990-1995": "nineteen ninety to nineteen ninety-five",
    "v1.2.3": "v one point two point three",
    "code 0042": "code zero zero four, two",
    "3 + 4 = 7": "three plus four equals seven",
    "5*3": "five times three",
    "What is 7 - 3?": "What is seven minus three?",
    "12-5 = ?": "twelve minus five equals?",
    "what's 3 x 4": "what's three times four",
    "7-3": "seven minus three",
    "What is 8/2?": "What is eight divided by two?",
    "What is 11/21/2026?": "What is November twenty-first, twenty twenty-six?",
    "x^2 and 2^8": "x squared and two to the power of eight",
    "1.5e-3": "one point five times ten to the power of minus three",
    "5 > 3, 3 ≤ 4, 1 != 2": "five greater than three, three less than or equal to four, one not equal to two",
    "1920x1080": "nineteen twenty by one thousand eighty",
    "1½ cups, ¾": "one and a half cups, three quarters",
    "24/7": "twenty-four seven",
    # money
    "$5": "five dollars",
    "$1": "one dollar",
    "$5.20": "five dollars and twenty cents",
    "$0.99": "ninety-nine cents",
    "$3 million": "three million dollars",
    "$5-$10 and 50¢": "five dollars to ten dollars and fifty cents",
    "£0.50 or €1 or 20 €": "fifty pence or one euro or twenty euros",
    # times and dates
    "at 3:45 pm": "at three forty-five P M",
    "at 3:00 or 15:30 or 9:05": "at three o'clock or fifteen thirty or nine oh five",
    "at 7 a.m. sharp": "at seven A M sharp",
    "2026-11-21": "November twenty-first, twenty twenty-six",
    "11/21/2026": "November twenty-first, twenty twenty-six",
    "Nov 21st": "November twenty-first",
    "November 3, 1984": "November third, nineteen eighty-four",
    "21.11.2026 at 00:00": "the twenty-first of November twenty twenty-six at midnight",
    "31/12/2026, 99/99/2026": "December thirty-first, twenty twenty-six, ninety-nine ninety-nine twenty twenty-six",
    "45.45.2026, 10.2.1": "forty-five point forty-five point twenty twenty-six, ten point two point one",
    "at 3:07:45, 31:75": "at three oh seven and forty-five seconds, thirty-one to seventy-five",
    "4 July 2020": "the fourth of July twenty twenty",
    # telephones
    "555-1234": "five five five, one two three four",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "0800 123 4567": "zero eight zero zero, one two three, four five six seven",
    # units
    "5'11\" tall": "five foot eleven tall",
    "5 kg at 100 km/h": "five kilograms at one hundred kilometers per hour",
    "21°C and 1 °F": "twenty-one degrees Celsius and one degree Fahrenheit",
    "1 m, 6 ft": "one meter, six feet",
    # abbreviations
    "Mr. and Mrs. Smith met Dr. Jones.": "Mister and Missus Smith met Doctor Jones.",
    "Elm St. near St. John": "Elm Street near Saint John",
    "e.g. this, i.e. that, etc.": "for example this, that is that, et cetera.",
    "No. 5 is alive. No. I said no.": "Number five is alive. No. I said no.",
    "the U.S. and the UK": "the U S and the U K",
    "NASA, the FBI and my PhD": "Nasa, the F B I and my P H D",
    "It's OK.": "It's okay.",
    "HELLO WORLD THIS IS LOUD": "hello world this is loud",
    "HELLO": "Hello",
    "This is VERY good, I CAN'T complain": "This is very good, I can't complain",
    "THANKS": "Thanks",
    "how r u, r u ok, n o r a d": "how are you, are you okay, n o r a d",
    "fig. 3 on p. 12": "figure three on page twelve",
    "e.g.this": "for example this",
    "J. R. R. Tolkien wrote it.": "J R R Tolkien wrote it.",
    "Vitamin C. It helps.": "Vitamin C. It helps.",
    "Henry VIII and World War II, Chapter IV": "Henry the eighth and World War two, Chapter four",
    # signs
    "A & B, C + D, 50 @ 2": "A and B, C plus D, fifty at two",
    "#1 and #winning": "number one and hashtag winning",
    "C# and C++": "C sharp and C plus plus",
    "his/her and/or w/o": "his or her and or without",
    "yes — no – maybe": "yes, no, maybe",
    "(in brackets) and [more]": "in brackets, and, more",
    'He said: "Hello!"': "He said: Hello!",
    "<b>bold</b>": "bold",
    "wait... what?!": "wait, what?",
    "One.\n\nTwo\nthree": "One. Two three",
    # addresses
    "Visit https://www.example.com/a now.": "Visit example dot com slash a now.",
    "Mail bob@mail.example.org!": "Mail bob at mail dot example dot org!",
    "see README.md, /etc/passwd": "see Readme dot md, slash etc slash passwd",
    "C:\\a\\b.txt": "C colon backslash a backslash b dot txt",
    # what stands for the eye alone
    "# Title\n- one\n- two": "Title. one. two",
    "1. First\n2. Second": "one. First. two. Second",
    "How are you? 😊👍": "How are you?",
    "😊": "blush",
    "so 😀😀 😀 nice": "so grinning nice",
    # other scripts and odd words
    "café naïve": "cafe naive",
    "日本": "ri ben",
    "I am 😀 today": "I am grinning today",
    "soooooo cool": "soo cool",
    "xkcdq hmm shh": "X K C D Q hmm shh",
    # nothing to say
    "": "",
    "!?...": "",
    " - ' , ": "",
    "\u200b\u202e": "",
}


@pytest.mark.parametrize(("written", "said"), TABLE.items(), ids=lambda text: text[:30])
def test_table(written: str, said: str) -> None:
    assert spoken_text(written) == said


@pytest.mark.parametrize("text", [*TABLE, *TABLE.values()], ids=lambda text: text[:30])
def test_table_is_a_fixed_point(text: str) -> None:
    assert spoken_text(spoken_text(text)) == spoken_text(text)


ALLOWED = re.compile(r"(?:[A-Za-z]+(?:['-][A-Za-z]+)*[.,?!;:]?(?: (?=[A-Za-z])|$))*")
PIECES = st.sampled_from([
    *TABLE,
    *"Dr. St. a.m. U.S. ' - . ... I A II NASAs x 12 1/2 $ € % ° @ 😀 本 é ½ ⅷ".split(),
    *"ﬁ İ ß ǅ Q. aaaa JJJJ Mr No. etc. :) ’s ١٢".split(),
    "\n\n", "http://a.b", "\u0301", "\u202e",
])


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join), st.lists(PIECES).map("".join)))
@example("I.I.")
@example("a.b.c.")
@settings(deadline=None, max_examples=300)
def test_any_text_becomes_plain_words_once(text: str) -> None:
    said = spoken_text(text)
    assert ALLOWED.fullmatch(said), said
    assert all(len(word) <= MAX_WORD_LETTERS for word in re.findall("[A-Za-z]+", said))
    assert spoken_text(said) == said


@given(st.text(alphabet="0123456789.,:/-$% apmkgst", max_size=24))
@settings(deadline=None, max_examples=300)
def test_no_figure_is_left(text: str) -> None:
    assert not re.search(r"\d", numbers_to_words(text))


@pytest.mark.parametrize("unit", ["1", " ", "1+", "a.", "-", "< ", "😀", "/a", "1,111", "A"])
def test_no_text_of_the_longest_size_takes_long(unit: str) -> None:
    begun_s = time.process_time()
    spoken_text(f"a{unit * (4000 // len(unit))}b")
    assert time.process_time() - begun_s < 1.5


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


SENTENCES = {
    "Mr. Smith went home. He slept! Did he?": ["Mr. Smith went home.", "He slept!", "Did he?"],
    "It is 3.14 in the U.S. army. The end.": ["It is 3.14 in the U.S. army.", "The end."],
    'She said "Stop." Then he left.': ['She said "Stop."', "Then he left."],
    "No. It is not.": ["No. It is not."],
    "Wait... what? Yes, indeed.": ["Wait... what?", "Yes, indeed."],
    "no end": ["no end"],
    "  ": [],
}


@pytest.mark.parametrize(("text", "sentences"), SENTENCES.items(), ids=lambda x: str(x)[:30])
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, 200) == sentences


def test_long_sentences_are_cut_where_a_reader_pauses() -> None:
    text = "We came home late in the evening, tired and hungry; nobody had cooked, so we went out again to eat."
    assert split_sentences(text, 60) == [
        "We came home late in the evening, tired and hungry;",
        "nobody had cooked, so we went out again to eat.",
    ]
    assert split_sentences("one two three four five six", 12) == ["one two", "three four", "five six"]
    assert split_sentences("abcdefghij" * 3, 8) == ["abcdefgh", "ijabcdef", "ghijabcd", "efghij"]


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join)), st.integers(1, 60))
@settings(deadline=None, max_examples=200)
def test_cutting_loses_nothing(text: str, max_chars: int) -> None:
    pieces = split_sentences(text, max_chars)
    assert all(0 < len(piece) <= max_chars and piece == piece.strip() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())
