"""Written English -> the words that are said: the only form of text the small voice reads, in training and at run time.

`spoken_text` yields ASCII letters, apostrophes and hyphens inside words, single spaces and `. , ? ! ; :`. It is pure,
never fails, and its result is a fixed point.
"""

from __future__ import annotations

import re
import unicodedata

from moss_engine.spoken.addresses import addresses_to_words
from moss_engine.spoken.arithmetic import sums_to_words
from moss_engine.spoken.markup import without_markup
from moss_engine.spoken.numbers import cardinal, numbers_to_words, ordinal
from moss_engine.spoken.tables import (
    ABBREVIATIONS,
    CHAT_FORMS,
    COUNTED,
    DOTTED,
    QUOTES,
    SAID_AS_WORDS,
    SENTENCE_STARTERS,
    SHOUTED,
    SYMBOLS,
    TITLES,
    WORD_FORMS,
)

MAX_WORD_LETTERS = 24
_PASSES = 20
_LONG_FIGURE = re.compile(r"\d{60}(?=\d)")  # the rules' time grows with the square of a run's length
_BEFORE_NUMBER = (
    r"(?=\s*(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|[a-z]+ty)\b)"
)

_ROMAN = re.compile(
    r"\b(?P<name>Chapter|Part|Volume|Act|Scene|Section|War|Book|Type|Phase|Level|Appendix|Article|King|Queen|Pope|Henry|"
    r"Louis|Elizabeth|George|Edward|Richard|Charles|William|James|Philip|Pius|Paul|Benedict|Napoleon|Catherine|"
    r"Frederick|Leo|Gregory)\s+(?P<roman>[IVX]{1,6})\b(?!')"
)
_PLAIN_ROMAN = re.compile(r"\b(?:III|VII|VIII|XII|XIII|XIV|XVI|XVII|XVIII|XIX|XXI)\b")
_CHAT_LETTERS = (  # beside other single letters they are spelt: "n o r a d"
    (re.compile(r"\b((?i:how|what|where|who|why|when|you|we|they)|u) r\b"), r"\1 are"),
    (re.compile(r"\br u\b"), "are u"),
    (re.compile(r"(?<!\b[A-Za-z] )\bu\b(?! [A-Za-z]\b)"), "you"),
)
_COUNTED = frozenset("Chapter Part Volume Act Scene Section War Book Type Phase Level Appendix Article".split())


def spoken_text(text: str) -> str:
    """Any text -> its spoken form; "" when nothing in it can be said."""
    text = unicodedata.normalize("NFC", text).translate(QUOTES)
    text = re.sub(r"\r\n?|\n", "\n", text)
    text = re.sub(r"(?<![.!?:;,\s])\s*\n\s*\n\s*", ". ", text)
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    text = _LONG_FIGURE.sub(r"\g<0>, ", re.sub(r"[^\S\n]+", " ", text))
    text = sums_to_words(without_markup(addresses_to_words(text)))
    text = _transliterate(text)
    text = numbers_to_words(text)
    for _ in range(_PASSES):
        said = _say_words(_say_marks(_say_romans(text)))
        if said == text:
            break
        text = said
    return text if re.search("[A-Za-z]", text) else ""


def _transliterate(text: str) -> str:
    """Everything outside ASCII, but for the signs that have words of their own, through anyascii."""
    if text.isascii():
        return text
    from anyascii import anyascii

    parts = []
    for c in text:
        if c.isascii() or c in SYMBOLS:
            parts.append(c)
            continue
        plain = anyascii(c)
        if unicodedata.category(c) == "No" and parts and parts[-1][-1:].isdigit():
            plain = f" {plain}"
        if plain.startswith(":") and plain.endswith(":"):
            plain = f" {plain[1:-1].replace('_', ' ')} "
        elif unicodedata.category(c) == "Lo" and not plain.isspace() and len(plain) > 1:
            plain = f"{plain.lower()} "
        parts.append(plain if unicodedata.category(c)[0] in "LMNPZ" or plain[:1] == " " else f" {plain} ")
    return "".join(parts)


def _roman_value(text: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10}[c] for c in text]
    return sum(-v if any(later > v for later in values[i + 1 : i + 2]) else v for i, v in enumerate(values))


def _say_romans(text: str) -> str:
    def named(m: re.Match[str]) -> str:
        value = _roman_value(m["roman"])
        if m["name"] in _COUNTED:
            return f"{m['name']} {cardinal(value)}"
        return m[0] if m["roman"] == "I" else f"{m['name']} the {ordinal(value)}"

    return _PLAIN_ROMAN.sub(lambda m: cardinal(_roman_value(m[0])), _ROMAN.sub(named, text))


def _say_marks(text: str) -> str:
    """Signs, brackets and dashes -> words or plain punctuation."""
    for written, said in WORD_FORMS.items():
        text = re.sub(rf"(?<![\w/]){re.escape(written)}(?![\w/])", said, text)
    text = re.sub(r"\b([A-G])#(?!\w)", r"\1 sharp", text)
    text = re.sub(f"#{_BEFORE_NUMBER}", " number ", text).replace("#", " hashtag ")
    text = re.sub(r"(?<=[A-Za-z])/(?=[A-Za-z])", " or ", text)
    text = text.translate(str.maketrans(SYMBOLS))
    text = re.sub(r"\s*(?:--+|—|\s-\s)\s*", ", ", text)
    text = re.sub(r"\s*[()\[\]{}]\s*", lambda m: ", " if m[0] != m[0].strip() else " ", text)
    return re.sub(r"\.{2,}(?=\s+[a-z])", ",", text)


def _say_words(text: str) -> str:
    """One pass of the rules that look at words; repeated until nothing changes."""
    text = re.sub(
        r"\b(?:e\.g|i\.e|a\.k\.a|ph\.d|[ap]\.m)\.", lambda m: DOTTED[m[0].lower()] + _end_kept(m), text, flags=re.I
    )
    text = re.sub(
        r"\b(?:[A-Za-z]\.){2,}", lambda m: " ".join(m[0].replace(".", " ").split()).upper() + _end_kept(m), text
    )
    text = re.sub(r"\bDr\.(?=\s+[A-Z])", "Doctor", text)
    text = re.sub(r"\bDr\.", lambda m: "Drive" + _end_kept(m), text)
    text = re.sub(r"\bSt\.(?=\s+[A-Z])", "Saint", text)
    text = re.sub(r"\bSt\.", lambda m: "Street" + _end_kept(m), text)
    text = re.sub(rf"\bNo\.{_BEFORE_NUMBER}", "Number", text)
    text = re.sub(rf"\b(fig|Fig|p|ch)\.{_BEFORE_NUMBER}", lambda m: COUNTED[m[1]], text)
    text = re.sub(rf"\b({'|'.join(TITLES)})\.", lambda m: TITLES[m[1]], text)
    text = re.sub(rf"\b({'|'.join(ABBREVIATIONS)})\.", lambda m: ABBREVIATIONS[m[1]] + _end_kept(m), text)
    text = re.sub(r"\b(Mr|Mrs|Ms|Dr)(?=\s+[A-Z])", lambda m: {**TITLES, "Dr": "Doctor"}[m[1]], text)
    text = re.sub(
        r"(?<![A-Za-z'])([B-HJ-Z])\.(?=\s+([A-Z][\w']*))", lambda m: m[0] if m[2] in SENTENCE_STARTERS else m[1], text
    )
    for letter, said in _CHAT_LETTERS:
        text = letter.sub(said, text)
    return _tidy(re.sub(r"[A-Za-z']+", _say_word, _unshout(text)))


def _end_kept(m: re.Match[str]) -> str:
    """A period again where the abbreviation's own one also ended the sentence, a space where a word touches it."""
    if m.string[m.end() :][:1].isalpha():
        return " "
    after = re.match(r"\s+([A-Z][\w']*)|\s*$", m.string[m.end() :])
    return "." if after and (after[1] is None or after[1] in SENTENCE_STARTERS) else ""


def _unshout(text: str) -> str:
    """A text in capitals is read as words, not letter by letter."""
    words = re.findall(r"[A-Za-z]{2,}", text)
    if len(words) < 2 or sum(w.isupper() for w in words) <= 0.7 * len(words):
        return text
    return text if all(len(w) < 4 for w in words) else text.lower()


def _say_word(m: re.Match[str]) -> str:
    word = re.sub(r"([A-Za-z])\1{3,}", r"\1\1", m[0])
    plural = re.fullmatch(r"([A-Z]{2,5})('?s)", word)
    stem, ending = (plural[1], "'s") if plural else (word, "")
    if word in CHAT_FORMS:
        return CHAT_FORMS[word]
    if word in SHOUTED or ("'" in word and word.isupper()):
        return word.lower() if m.string[: m.start()].rstrip()[-1:] not in ("", *".?!:") else word.capitalize()
    if word.isupper() and len(word) > 5:
        return word.capitalize()
    if 2 <= len(stem) <= 5 and stem.isalpha() and stem.isupper():
        return (stem.capitalize() if stem in SAID_AS_WORDS else " ".join(stem)) + ending
    if (
        len(word) >= 4
        and word.isalpha()
        and not re.search("[aeiouyAEIOUY]", word)
        and not re.search(r"(?i)h?m{2,}|sh|st|ts|nth|br", word)
    ):
        return " ".join(word.upper())
    if len(word) > 14 and re.search("[a-z][A-Z]", word):
        word = re.sub(r"([a-z])([A-Z])", r"\1 \2", word)
    return " ".join(_broken(part) for part in word.split(" "))


def _broken(word: str) -> str:
    """A word no one writes in one piece, cut after vowels into pieces of about ten letters."""
    if len(word) <= MAX_WORD_LETTERS:
        return word
    pieces, rest = [], word
    while len(rest) > 14:
        cut = max(
            (i for i in range(5, 11) if rest[i - 1] in "aeiouyAEIOUY" and rest[i] not in "aeiouyAEIOUY"), default=10
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
