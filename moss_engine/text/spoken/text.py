"""Written English -> the words that are said: the only form of text the small voice reads, in
training and at run time.

`spoken_text` yields ASCII letters, apostrophes and hyphens inside words, single spaces and `. , ? !
; :`. It is pure, never fails, and its result is a fixed point.
"""

from __future__ import annotations

import re
import unicodedata

from moss_engine.text.spoken.addresses import addresses_to_words, places_to_words
from moss_engine.text.spoken.arithmetic import sums_to_words
from moss_engine.text.spoken.capitals import has_no_vowel, say_capitals, unshout
from moss_engine.text.spoken.cardinals import BEFORE_NUMBER, cardinal
from moss_engine.text.spoken.code import code_to_words
from moss_engine.text.spoken.days import weekdays_to_words
from moss_engine.text.spoken.layout.markup import unwrapped, without_markup
from moss_engine.text.spoken.numbers import numbers_to_words
from moss_engine.text.spoken.romans import romans_to_words
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
# The rules' time grows with the square of a run's length.
_LONG_FIGURE = re.compile(r"\d{60}(?=\d)")
_LONG_RANGE = re.compile(r"(?<=[\d%])[—―](?=[$€£]?\d)")  # of years; elsewhere a dash is a pause
_ROAD_NAME = (
    rf"\b(?!(?:{'|'.join(sorted(SENTENCE_STARTERS))}) )([A-Z][a-z]+|first|second|third|[a-z]+th)"
)
_MIDDLE_A = re.compile(
    r"\b((?!(?:Vitamin|Plan|Type|Hepatitis|Exhibit|Section|Part|Group|Class|Grade|Option|Appendix|"
    r"Figure|Table|Team|Room|Gate|Unit|Line|Form|Level|Influenza|Product|Version|Phase|Schedule|"
    r"Article|Answer|Question|Case|Model|Zone|Block|Building|Terminal|An|Step) )[A-Z][a-z]+ A)\."
    r"(?=\s+([A-Z][\w']*))"
)
_LETTERS = (
    # beside other single letters they are spelt: "n o r a d"
    (re.compile(r"\b((?i:how|what|where|who|why|when|you|we|they)|u) r\b"), r"\1 are"),
    (re.compile(r"\br u\b"), "are u"),
    (re.compile(r"(?<!\b[A-Za-z] )\bu\b(?! [A-Za-z]\b)"), "you"),
    (re.compile(r"(?<![A-Za-z'-])i(?![A-Za-z-])"), "I"),
    (re.compile(r"(?<=[A-Za-z])(?:\s?'n'\s?|\s'n\s)(?=[A-Za-z]{2})"), " and "),
    (re.compile(r"(?i)(?<=y'all)'d(?='|\b)"), " would"),
    (re.compile(r"(?i)(?<='d|'t)'ve\b|(?<='ll)'ve\b|(?<= would)'ve\b"), " have"),
    (
        re.compile(
            r"\bIT(?= (?i:department|team|staff|support|industry|sector|security|infrastructure|"
            r"manager|specialist|consultant|professional|admin|administrator|help\s?desk)s?\b)"
            r"|(?<=\b[Ii]n )IT(?=[.,;!?]|$)"
        ),
        "I T",
    ),
)


def spoken_text(text: str) -> str:
    """Any text -> its spoken form; "" when nothing in it can be said."""
    text = _LONG_RANGE.sub("-", unwrapped(unicodedata.normalize("NFC", text))).translate(QUOTES)
    text = re.sub(r"\r\n?|\n", "\n", text)
    text = re.sub(r"(?<![.!?:;,\s])\s*\n\s*\n\s*", ". ", text)
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    text = _LONG_FIGURE.sub(r"\g<0>, ", re.sub(r"[^\S\n]+", " ", text))
    text = sums_to_words(without_markup(code_to_words(addresses_to_words(text))))
    text = transliterate(text)
    text = numbers_to_words(text)
    for _ in range(_PASSES):
        said = _say_words(_say_marks(weekdays_to_words(romans_to_words(text))))
        if said == text:
            break
        text = said
    return text if re.search("[A-Za-z]", text) else ""


def _say_marks(text: str) -> str:
    """Signs, brackets and dashes -> words or plain punctuation."""
    for written, said in WORD_FORMS.items():
        text = re.sub(rf"(?<![\w/]){re.escape(written)}(?![\w/])", said, text)
    text = re.sub(r"\b([A-G])#(?!\w)", r"\1 sharp", text)
    text = re.sub(
        r"(?:(?<=\b[Tt]ype\s)(A|B|AB|O)([+-])(?![\w-])|\b(A|B|AB|O)([+-])(?=\s(?:blood|donor)))",
        lambda m: (m[1] or m[3]) + (" positive" if "+" in m[0] else " negative"),
        text,
    )
    text = re.sub(r"(?<![A-Za-z'])([A-F])-(?![\w-])", r"\1 minus", text)
    text = re.sub(r"\b(?:A-Z|a-z)\b(?!-)", lambda m: f"{m[0][0]} to {m[0][2]}", text)
    text = re.sub(r"(?<!\S)#(?=:|\s(?:is|was)\b)", "number", text)
    text = re.sub(r"(?<!\S)#(?=\s)(?!\s[a-z]+teen\b|\s[a-z]+ty\b)", ",", text)
    text = re.sub(r"#(?=(?:include|define|if|ifdef|endif|pragma)\b)", "hash ", text)
    text = re.sub(f"#{BEFORE_NUMBER}", " number ", text).replace("#", " hashtag ")
    text = re.sub(r"(?<![\w'])([A-Z]{1,5})/(?=[A-Z]{1,5}\b|[a-z]+ty\b)", r"\1 ", text)
    text = re.sub(
        r"\b([A-Z]{1,3})\s?&\s?([A-Z]{1,3})\b",
        lambda m: f"{' '.join(m[1])} and {' '.join(m[2])}",
        text,
    )
    text = re.sub(r"(?<=[A-Z])-(?=[A-Z]{2})", " ", text)
    text = re.sub(r"(?<=[A-Za-z])/(?=[A-Za-z])", " or ", text)
    text = re.sub(r"\s/\s", ", ", text).translate(str.maketrans(SYMBOLS))
    text = re.sub(r"\s*(?:--+|—|\s-\s)\s*", ", ", text)
    text = re.sub(r"(?<=[a-z])\((s|es|ren)\)", r"\1", text)
    text = re.sub(r"\s*[()\[\]{}]\s*", lambda m: ", " if m[0] != m[0].strip() else " ", text)
    return re.sub(r"\.{2,}(?=\s+[a-z])", ",", text)


def _say_words(text: str) -> str:
    """One pass of the rules that look at words; repeated until nothing changes."""
    text = re.sub(
        r"\b(?:(?:e\.g|i\.e)\.?(?!\w\.)|(?:a\.k\.a|ph\.d|[ap]\.m|w\.r\.t)\.)",
        lambda m: DOTTED[m[0].lower().rstrip(".")] + _end_kept(m),
        text,
        flags=re.I,
    )
    text = re.sub(r"\b([Pp]l[sz])\.(?=\s[a-z])", r"\1", text)
    text = re.sub(r"\bP\.\s?S\.,?(?=\s)", "P S,", text)
    text = re.sub(
        r"\b(?:[A-Za-z]\.){2,}",
        lambda m: " ".join(m[0].replace(".", " ").split()).upper() + _end_kept(m),
        text,
    )
    text = re.sub(r"(?<!slash )\b(etc|vs)\b(?!\.)", lambda m: ABBREVIATIONS[m[1]], text)
    text = places_to_words(text)
    text = re.sub(r"\bDr\.(?=\s+[A-Z])", "Doctor", text)
    text = re.sub(rf"{_ROAD_NAME} Dr\.", lambda m: f"{m[1]} Drive" + _end_kept(m), text)
    text = re.sub(r"\bDr\.", lambda m: "Doctor" + _end_kept(m), text)
    text = re.sub(r"\bSt\.(?=\s+[A-Z])", "Saint", text)
    text = re.sub(r"\bSt\.", lambda m: "Street" + _end_kept(m), text)
    text = re.sub(rf"\bNo\.{BEFORE_NUMBER}", "Number", text)
    text = re.sub(rf"\b({'|'.join(COUNTED)})\.{BEFORE_NUMBER}", lambda m: COUNTED[m[1]], text)
    text = re.sub(rf"\b({'|'.join(TITLES)})\.", lambda m: TITLES[m[1]], text)
    text = re.sub(r"\bet al\.", lambda m: "et al" + _end_kept(m), text)
    text = re.sub(
        rf"\b({'|'.join(ABBREVIATIONS)})\.", lambda m: ABBREVIATIONS[m[1]] + _end_kept(m), text
    )
    text = re.sub(r"\bFr\.(?=\s+[A-Z][a-z'])", "Father", text)
    text = re.sub(r"\bPt\.(?=\s+[A-Z][a-z])", "Point", text)
    text = re.sub(
        r"\b(Mr|Mrs|Ms|Dr)(?=\s+(?:[A-Z]|and (?:M|Dr|Doctor)))",
        lambda m: {**TITLES, "Dr": "Doctor"}[m[1]],
        text,
    )
    text = re.sub(
        r"\b([A-Z][b-df-hj-np-tv-xz]{1,5})\.(?=\s+([A-Z][\w']*))",
        lambda m: m[1] if has_no_vowel(m[1]) and m[2] not in SENTENCE_STARTERS else m[0],
        text,
    )
    text = re.sub(
        r"(?<![A-Za-z'])(?<!\b[B-Z] )(?<![^.!?] A )([B-HJ-Z])\.(?=\s+([A-Z][\w']*))",
        lambda m: m[0] if m[2] in SENTENCE_STARTERS else m[1],
        text,
    )
    text = _MIDDLE_A.sub(lambda m: m[0] if m[2] in SENTENCE_STARTERS else m[1], text)
    for letter, said in _LETTERS:
        text = letter.sub(said, text)
    return _tidy(re.sub(r"[A-Za-z']+", _say_word, unshout(text)))


def _end_kept(m: re.Match[str]) -> str:
    """A period again where the abbreviation's own one also ended the sentence, a space where a word
    touches it."""
    if m.string[m.end() :][:1].isalpha():
        return " "
    after = re.match(r"\s+([A-Z][\w']*)|\s*$", m.string[m.end() :])
    return "." if after and (after[1] is None or after[1] in SENTENCE_STARTERS) else ""


def _say_word(m: re.Match[str]) -> str:
    word = re.sub(r"([A-Za-z])\1{3,}", r"\1\1", m[0])
    word = re.sub(r"(?i)([a-z]{2,4}?)\1{4,}", r"\1\1\1\1", word)
    if len(word) > LONGEST_WORD:
        return f"a word of {cardinal(len(m[0]))} letters"
    if word in CHAT_FORMS:
        return CHAT_FORMS[word]
    if len(word) > 2 and word.istitle() and word.lower() in CHAT_FORMS:
        said = CHAT_FORMS[word.lower()]
        return said[0].upper() + said[1:]
    begins = m.string[: m.start()].rstrip()[-1:] in ("", *".?!:")
    said = say_capitals(word, begins)
    if said is not None:
        return said
    return _broken(word)


def _broken(word: str) -> str:
    """A word no one writes in one piece, cut after vowels into pieces of about ten letters."""
    if len(word) <= MAX_WORD_LETTERS:
        return word
    pieces, rest = [], word
    while len(rest) > 14:
        cut = max(
            (
                i
                for i in range(5, 11)
                if rest[i - 1] in "aeiouyAEIOUY" and rest[i] not in "aeiouyAEIOUY"
            ),
            default=10,
        )
        pieces.append(rest[:cut])
        rest = rest[cut:]
    return " ".join([*pieces, rest])


def _tidy(text: str) -> str:
    """Only the allowed characters, each mark once and against its word, no mark first."""
    text = re.sub(r"[^A-Za-z' .,?!;:-]", " ", text)
    text = re.sub(r"(?<![A-Za-z])['-]+|['-]+(?![A-Za-z])|(?<=['-])['-]+", " ", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(?: ?[.,?!;:])+", lambda m: next((c for c in "?!.;:," if c in m[0]), " "), text)
    text = re.sub(r"([.,?!;:])(?=[^ ])", r"\1 ", text)
    return text.lstrip(" .,?!;:").rstrip(" ,;:")
