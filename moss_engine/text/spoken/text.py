"""Written English -> the words that are said: the only form of text the small voice reads, in
training and at run time.

`spoken_text` yields ASCII letters, apostrophes and hyphens inside words, single spaces and `. , ? !
; :`. It is pure, never fails, and its result is a fixed point.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from moss_engine.text.spoken.addresses import addresses_to_words, places_to_words
from moss_engine.text.spoken.capitals import has_no_vowel, say_capitals, unshout
from moss_engine.text.spoken.cardinals import BEFORE_NUMBER, cardinal
from moss_engine.text.spoken.dates import weekdays_to_words
from moss_engine.text.spoken.formulas import code_to_words, sums_to_words
from moss_engine.text.spoken.markup import unwrapped, without_markup
from moss_engine.text.spoken.numbers import numbers_to_words
from moss_engine.text.spoken.romans import romans_to_words
from moss_engine.text.spoken.rules import after, apply, rules
from moss_engine.text.spoken.signs import transliterate
from moss_engine.text.spoken.tables import (
    ABBREVIATIONS,
    CHAT_FORMS,
    COUNTED,
    DOTTED,
    QUOTES,
    SENTENCE_STARTERS,
    SYMBOLS,
    TITLES,
    WORD_FORMS,
)

MAX_WORD_LETTERS = 24
LONGEST_WORD = 45
"""Letters of a word that is read, in pieces; of a longer one only their number is said."""
_PASSES = 20


def spoken_text(text: str) -> str:
    """Any text -> its spoken form; "" when nothing in it can be said."""
    text = _LONG_RANGE.sub("-", unwrapped(unicodedata.normalize("NFC", text))).translate(QUOTES)
    text = apply(_LINE_ENDS, text)
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    text = apply(_RUNS, text)
    text = _LONG_RUN.sub(_say_run, without_markup(code_to_words(addresses_to_words(text))))
    text = numbers_to_words(transliterate(sums_to_words(text)))
    text = _say_words(_say_marks(weekdays_to_words(romans_to_words(text))))
    for _ in range(_PASSES):
        said = _say_words(apply(_FORMS, weekdays_to_words(romans_to_words(text))))
        if said == text:
            break
        text = said
    return text if re.search("[A-Za-z]", text) else ""


_LONG_RANGE = re.compile(r"(?<=[\d%])[—―](?=[$€£]?\d)")  # of years; elsewhere a dash is a pause
_LINE_ENDS = rules((r"\r\n?", "\n"), (r"(?<![.!?:;,\s])\s*\n\s*\n\s*", ". "))
_RUNS = rules((r"[^\S\n]+", " "), (r"\d{60}(?=\d)", r"\g<0>, "))

_LONG_RUN = re.compile(r"\S{400,}")


def _say_run(m: re.Match[str]) -> str:
    """What nobody would listen to: "9^9^9^9" without an end. Scripts without spaces are letters."""
    letters = sum(map(str.isalpha, m[0]))
    size = len(m[0])
    return m[0] if 2 * letters >= size else f"a code of {cardinal(size)} characters"


def _spelled_pair(m: re.Match[str]) -> str:
    return f"{' '.join(m[1])} and {' '.join(m[2])}"


def _blood(m: re.Match[str]) -> str:
    return (m[1] or m[3]) + (" positive" if "+" in m[0] else " negative")


_WRITTEN = (
    rf"(?<![\w/])(?:{'|'.join(sorted(map(re.escape, WORD_FORMS), key=len, reverse=True))})"
    r"(?![\w/])",
    lambda m: WORD_FORMS[m[0]],
)
_LETTER_RANGE = (r"\b(?:A-Z|a-z)\b(?!-)", lambda m: f"{m[0][0]} to {m[0][2]}")
_HYPHENED = (r"(?<=[A-Z])-(?=[A-Z]{2})", " ")
_FORMS = rules(_WRITTEN, _LETTER_RANGE, _HYPHENED)
"""The only ones that find something in a text of words and punctuation."""
_MARKS = rules(
    _WRITTEN,
    (r"\b([A-G])#(?!\w)", r"\1 sharp"),
    (
        r"(?:(?<=\b[Tt]ype\s)(A|B|AB|O)([+-])(?![\w-])|\b(A|B|AB|O)([+-])(?=\s(?:blood|donor)))",
        _blood,
    ),
    (r"(?<![A-Za-z'])([A-F])-(?![\w-])", r"\1 minus"),
    _LETTER_RANGE,
    (r"(?<!\S)#(?=:|\s(?:is|was)\b)", "number"),
    (r"(?<!\S)#(?=\s)(?!\s[a-z]+teen\b|\s[a-z]+ty\b)", ","),
    (r"#(?=(?:include|define|if|ifdef|endif|pragma)\b)", "hash "),
    (f"#{BEFORE_NUMBER}", " number "),
    (r"#", " hashtag "),
    (r"(?<![\w'])([A-Z]{1,5})/(?=[A-Z]{1,5}\b|[a-z]+ty\b)", r"\1 "),
    (r"\b([A-Z]{1,3})\s?&\s?([A-Z]{1,3})\b", _spelled_pair),
    _HYPHENED,
    (r"(?<=[A-Za-z])/(?=[A-Za-z])", " or "),
    (r"\s/\s", ", "),
)
_PUNCTUATION = rules(
    (r"\s{2,}", " "),
    (r"\s*(?:--+|—|\s-\s)\s*", ", "),
    (r"(?<=[a-z])\((s|es|ren)\)", r"\1"),
    (r"\s*[()\[\]{}]\s*", lambda m: ", " if m[0] != m[0].strip() else " "),
    (r"(?<!\.)\.{2,}(?=\s+[a-z])", ","),
)


def _say_marks(text: str) -> str:
    """Signs, brackets and dashes -> words or plain punctuation."""
    return apply(_PUNCTUATION, apply(_MARKS, text).translate(_SAID_SYMBOLS))


_SAID_SYMBOLS = str.maketrans(SYMBOLS)
_NEXT_WORD = re.compile(r"\s+([A-Z][\w']*)|\s*\Z")


def _end_kept(m: re.Match[str]) -> str:
    """A period again where the abbreviation's own one also ended the sentence, a space where a word
    touches it."""
    if after(m, 1).isalpha():
        return " "
    found = _NEXT_WORD.match(after(m))
    return "." if found and (found[1] is None or found[1] in SENTENCE_STARTERS) else ""


def _unless_sentence(m: re.Match[str]) -> str:
    """The first group, without the period behind it, unless a sentence begins there."""
    return m[0] if m[2] in SENTENCE_STARTERS else m[1]


def _spelt_name(m: re.Match[str]) -> str:
    return _unless_sentence(m) if has_no_vowel(m[1]) else m[0]


def _initials(m: re.Match[str]) -> str:
    return " ".join(m[0].replace(".", " ").split()).upper() + _end_kept(m)


def _any_of(words: dict[str, str]) -> str:
    return "|".join(words)


_ROAD_NAME = (
    rf"\b(?!(?:{'|'.join(sorted(SENTENCE_STARTERS))}) )([A-Z][a-z]+|first|second|third|[a-z]+th)"
)
_NOT_BEFORE_INITIAL = (
    "Vitamin|Plan|Type|Hepatitis|Exhibit|Section|Part|Group|Class|Grade|Option|Appendix|Figure|"
    "Table|Team|Room|Gate|Unit|Line|Form|Level|Influenza|Product|Version|Phase|Schedule|Article|"
    "Answer|Question|Case|Model|Zone|Block|Building|Terminal|An|Step"
)
_DOTTED = rules(
    (
        r"(?i)\b(?:(?:e\.g|i\.e)\.?(?!\w\.)|(?:a\.k\.a|ph\.d|[ap]\.m|w\.r\.t)\.)",
        lambda m: DOTTED[m[0].lower().rstrip(".")] + _end_kept(m),
    ),
    (r"\b([Pp]l[sz])\.(?=\s[a-z])", r"\1"),
    (r"\bP\.\s?S\.,?(?=\s)", "P S,"),
    (r"\b(?:[A-Za-z]\.){2,}", _initials),
    (r"(?<!slash )\b(etc|vs)\b(?!\.)", lambda m: ABBREVIATIONS[m[1]]),
)
_ABBREVIATED = rules(
    (r"\bDr\.(?=\s+[A-Z])", "Doctor"),
    (rf"{_ROAD_NAME} Dr\.", lambda m: f"{m[1]} Drive" + _end_kept(m)),
    (r"\bDr\.", lambda m: "Doctor" + _end_kept(m)),
    (r"\bSt\.(?=\s+[A-Z])", "Saint"),
    (r"\bSt\.", lambda m: "Street" + _end_kept(m)),
    (rf"\bNo\.{BEFORE_NUMBER}", "Number"),
    (rf"\b({_any_of(COUNTED)})\.{BEFORE_NUMBER}", lambda m: COUNTED[m[1]]),
    (rf"\b({_any_of(TITLES)})\.", lambda m: TITLES[m[1]]),
    (r"\bet al\.", lambda m: "et al" + _end_kept(m)),
    (rf"\b({_any_of(ABBREVIATIONS)})\.", lambda m: ABBREVIATIONS[m[1]] + _end_kept(m)),
    (r"\bFr\.(?=\s+[A-Z][a-z'])", "Father"),
    (r"\bPt\.(?=\s+[A-Z][a-z])", "Point"),
    (
        r"\b(Mr|Mrs|Ms|Dr)(?=\s+(?:[A-Z]|and (?:M|Dr|Doctor)))",
        lambda m: "Doctor" if m[1] == "Dr" else TITLES[m[1]],
    ),
    (r"\b([A-Z][b-df-hj-np-tv-xz]{1,5})\.(?=\s+([A-Z][\w']*))", _spelt_name),
    (
        r"(?<![A-Za-z'])(?<!\b[B-Z] )(?<![^.!?] A )([B-HJ-Z])\.(?=\s+([A-Z][\w']*))",
        _unless_sentence,
    ),
    (rf"\b((?!(?:{_NOT_BEFORE_INITIAL}) )[A-Z][a-z]+ A)\.(?=\s+([A-Z][\w']*))", _unless_sentence),
)
_LETTERS = rules(
    # beside other single letters they are spelt: "n o r a d"
    (r"\b((?i:how|what|where|who|why|when|you|we|they)|u) r\b", r"\1 are"),
    (r"\br u\b", "are u"),
    (r"(?<!\b[A-Za-z] )\bu\b(?! [A-Za-z]\b)", "you"),
    (r"(?<![A-Za-z'-])i(?![A-Za-z-])", "I"),
    (r"(?<=[A-Za-z])(?:\s?'n'\s?|\s'n\s)(?=[A-Za-z]{2})", " and "),
    (r"(?i)(?<=y'all)'d(?='|\b)", " would"),
    (r"(?i)(?<='d|'t)'ve\b|(?<='ll)'ve\b|(?<= would)'ve\b", " have"),
    (
        r"\bIT(?= (?i:department|team|staff|support|industry|sector|security|infrastructure|"
        r"manager|specialist|consultant|professional|admin|administrator|help\s?desk)s?\b)"
        r"|(?<=\b[Ii]n )IT(?=[.,;!?]|$)",
        "I T",
    ),
)
_WORD = re.compile(r"[A-Za-z']+")


def _say_words(text: str) -> str:
    """One pass of the rules that look at words; repeated until nothing changes."""
    text = apply(_LETTERS, apply(_ABBREVIATED, places_to_words(apply(_DOTTED, text))))
    return _tidy(_WORD.sub(lambda m: _say_word(m[0], _begins(m)), unshout(text)))


def _begins(m: re.Match[str]) -> bool:
    """Whether a word is the first of a sentence."""
    text, at = m.string, m.start()
    while at and text[at - 1].isspace():
        at -= 1
    return not at or text[at - 1] in ".?!:"


@lru_cache(maxsize=4096)
def _say_word(written: str, begins: bool) -> str:
    word = re.sub(r"([A-Za-z])\1{3,}", r"\1\1", written)
    word = re.sub(r"(?i)([a-z]{2,4}?)\1{4,}", r"\1\1\1\1", word)
    if len(word) > LONGEST_WORD:
        return f"a word of {cardinal(len(written))} letters"
    if word in CHAT_FORMS:
        return CHAT_FORMS[word]
    if len(word) > 2 and word.istitle() and word.lower() in CHAT_FORMS:
        said = CHAT_FORMS[word.lower()]
        return said[0].upper() + said[1:]
    said = say_capitals(word, begins)
    return _broken(word) if said is None else said


def _broken(word: str) -> str:
    """A word no one writes in one piece, cut after vowels into pieces of about ten letters."""
    if len(word) <= MAX_WORD_LETTERS:
        return word
    pieces, vowels = [], "aeiouyAEIOUY"
    while len(word) > 14:
        ends = (i for i in range(5, 11) if word[i - 1] in vowels and word[i] not in vowels)
        cut = max(ends, default=10)
        pieces.append(word[:cut])
        word = word[cut:]
    return " ".join([*pieces, word])


_TIDY = rules(
    (r"[^A-Za-z' .,?!;:-]", " "),
    (r"(?<![A-Za-z])['-]+|['-]+(?![A-Za-z])|(?<=['-])['-]+", " "),
    (r"\s+", " "),
    (r"(?: ?[.,?!;:])+", lambda m: next((c for c in "?!.;:," if c in m[0]), " ")),
    (r"([.,?!;:])(?=[^ ])", r"\1 "),
)


def _tidy(text: str) -> str:
    """Only the allowed characters, each mark once and against its word, no mark first."""
    return apply(_TIDY, text).lstrip(" .,?!;:").rstrip(" ,;:")
