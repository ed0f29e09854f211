"""Written English -> the words that are said: the only form of text the small voice reads, in
training and at run time; and what is written or said as sentences, where a reader would pause.

`spoken_text` yields ASCII letters, apostrophes and hyphens inside words, single spaces and `. , ? !
; :`. It is pure, never fails, and its result is a fixed point."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from moss_engine.text.spoken.cardinals import BEFORE_NUMBER, cardinal
from moss_engine.text.spoken.dates import WEEKDAYS
from moss_engine.text.spoken.formulas import CODE, SUMS
from moss_engine.text.spoken.numbers import ROMANS, numbers_to_words
from moss_engine.text.spoken.rules import after, apply, rules
from moss_engine.text.spoken.signs import (
    ADDRESSES,
    PLACES,
    transliterate,
    unwrapped,
    without_markup,
)
from moss_engine.text.spoken.tables import (
    ABBREVIATIONS,
    CHAT_FORMS,
    COUNTED,
    DOTTED,
    QUOTES,
    RESPELT,
    SAID_AS_WORDS,
    SENTENCE_STARTERS,
    SHOUTED,
    SPELT,
    SPELT_IN_SMALL_LETTERS,
    SYMBOLS,
    TITLES,
    WORD_FORMS,
)

_ONSET = (
    "(?:[bcdfghjklmnprstvwyz]|bl|br|ch|cl|cr|dr|fl|fr|gl|gr|kl|kr|ph|pl|pr|qu|sc|sch|scr|sh|sk|sl|"
    "sm|sn|sp|spl|spr|st|str|sw|th|thr|tr|tw|wh|wr)?"
)
_CODA = (
    "(?:[bcdfgklmnprstwxz]|ck|ct|ff|ft|gh|ld|lf|lk|ll|lm|lp|lt|mp|nd|ng|nk|nt|pt|rd|rk|rl|rm|rn|"
    "rp|rt|sh|sk|sp|ss|st|th|tch|zz)?s?"
)
_SAYABLE = re.compile(f"{_ONSET}[aeiouy]{{1,2}}(?:[a-z]{{1,2}}[aeiou]{{1,2}})*{_CODA}e?")
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WHOLE_NAME = re.compile(r"(?:Mc|Mac|Fitz|De|Di|Du|La|Le|Van|Von|O)[A-Z][a-z]+(?:'s?)?")
_NO_VOWEL_YET_SAID = re.compile(
    r"(?i)h?m{2,}|h?mm+h?|sh+|ts+k?|nth|br+|ps+t|pf+t|gr+|z+|[nr]d|st|th"
)


def unshout(text: str) -> str:
    """A text in capitals is read as words; a line of acronyms stays one."""
    if not re.search("[A-Z]{2}", text):
        return text
    words = re.findall(r"[A-Za-z]{2,}", text)
    if len(words) < 2 or sum(w.isupper() for w in words) <= 0.7 * len(words):
        return text
    loud = [w for w in words if w.isupper() and (w in SHOUTED or _is_long(w))]
    if len(loud) < 0.3 * len(words):
        return text
    return re.sub(r"[A-Za-z']+", lambda m: m[0] if _stays(m[0]) else m[0].lower(), text)


def _is_long(word: str) -> bool:
    return len(word) > 5 and word not in SAID_AS_WORDS and bool(re.search("[AEIOUY]", word))


def _stays(word: str) -> bool:
    return word in SPELT or word in RESPELT or word in SAID_AS_WORDS or word == "I"


def say_capitals(word: str, begins: bool) -> str | None:
    """How a word is said because of the case of its letters; None where that decides nothing.
    `begins`: it is the first word of a sentence."""
    if word in RESPELT:
        return RESPELT[word]
    plural = re.fullmatch(r"([A-Z]{2,5})('?s)", word)
    stem, ending = (plural[1], "'s") if plural else (word, "")
    if word in SHOUTED or ("'" in word and word.isupper()):
        return word.capitalize() if begins else word.lower()
    if stem.isalpha() and stem.isupper() and len(stem) > 1:
        return _say_upper(stem, ending, begins)
    if word in SPELT_IN_SMALL_LETTERS or has_no_vowel(word):
        return " ".join(word.upper())
    if re.search("[a-z][A-Z]|[A-Z]{2}[a-z]", word) and not _WHOLE_NAME.fullmatch(word):
        return _parts(word)
    return None


def _say_upper(stem: str, ending: str, begins: bool) -> str:
    if stem in RESPELT:
        return RESPELT[stem] + ending
    if stem in SPELT or not (stem in SAID_AS_WORDS or _is_sayable(stem)):
        return " ".join(stem) + ending
    if stem in SAID_AS_WORDS or begins or ending:
        return stem.capitalize() + ending
    return stem.lower()


def _is_sayable(stem: str) -> bool:
    """Whether it has four letters or more and can be an English word, which is rarely spelt out."""
    if len(stem) > 5:
        return bool(re.search("[AEIOUY]", stem))
    return len(stem) > 3 and bool(_SAYABLE.fullmatch(stem.lower()))


def has_no_vowel(word: str) -> bool:
    """Whether it cannot be pronounced as a word: no vowel, or too few."""
    if not word.isalpha() or len(word) == 1 or word.lower() in ("mr", "mrs", "ms", "dr"):
        return False
    if re.search("[aeiouyAEIOUY]", word):
        return bool(re.search("(?i)[^aeiouy]{7}", word))
    return not _NO_VOWEL_YET_SAID.fullmatch(word)


def _parts(word: str) -> str:
    """maxLen -> "max len", PostgreSQL -> "Postgre SQL"."""
    parts = _JOINT.sub(" ", word).split(" ")
    if parts[0].islower() and len(parts[0]) > 1:
        parts = [p if p.isupper() else p.lower() for p in parts]
    return " ".join(parts)


MAX_WORD_LETTERS = 24
LONGEST_WORD = 45
"""Letters of a word that is read, in pieces; of a longer one only their number is said."""
_PASSES = 20


def spoken_text(text: str) -> str:
    """Any text -> its spoken form; "" when nothing in it can be said."""
    text = _LONG_RANGE.sub("-", unwrapped(unicodedata.normalize("NFC", text))).translate(QUOTES)
    if not text.isprintable():
        text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    text = apply(_RUNS, apply(_LINE_ENDS, text))
    text = _LONG_RUN.sub(_say_run, without_markup(apply(CODE, apply(ADDRESSES, text))))
    text = numbers_to_words(transliterate(apply(SUMS, text)))
    text = _say_words(_say_marks(text))
    for _ in range(_PASSES):
        said = _say_words(apply(_FORMS, text))
        if said == text:
            break
        text = said
    return text if re.search("[A-Za-z]", text) else ""


_LONG_RANGE = re.compile(r"(?<=[\d%])[—―](?=[$€£]?\d)")  # of years; elsewhere a dash is a pause
_LINE_ENDS = rules(
    (r"\r\n?", "\n"), (r"(?<![.!?:;,\s])\s*\n\s*\n\s*", ". "), (r"\n\s*\n\s*\n", "\n\n")
)
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
_FORMS = rules(*ROMANS, *WEEKDAYS, _WRITTEN, _LETTER_RANGE, _HYPHENED)
"""The only rules that match in a text of words and punctuation."""
_MARKS = rules(
    *ROMANS,
    *WEEKDAYS,
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
    """The period again where an abbreviation's own one also ended the sentence; a space where a
    word follows directly."""
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
_WORDS = rules(
    (
        r"(?i)\b(?:(?:e\.g|i\.e)\.?(?!\w\.)|(?:a\.k\.a|ph\.d|[ap]\.m|w\.r\.t)\.)",
        lambda m: DOTTED[m[0].lower().rstrip(".")] + _end_kept(m),
    ),
    (r"\b([Pp]l[sz])\.(?=\s[a-z])", r"\1"),
    (r"\bP\.\s?S\.,?(?=\s)", "P S,"),
    (r"\b(?:[A-Za-z]\.){2,}", _initials),
    (r"(?<!slash )\b(etc|vs)\b(?!\.)", lambda m: ABBREVIATIONS[m[1]]),
    *PLACES,
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
    # beside other single letters they are spelt: "n o r a d"
    (r"\b((?i:how|what|where|who|why|when|you|we|they)|u) r\b", r"\1 are"),
    (r"\br u\b", "are u"),
    (r"(?<!\b[A-Za-z] )\bu\b(?! [A-Za-z]\b)", "you"),
    (r"(?<![A-Za-z'-])i(?![A-Za-z-])", "I"),
    (r"(?<=[A-Za-z])(?:\s?'n'\s?|\s'n\s)(?=[A-Za-z]{2})", " and "),
    (r"(?i)(?<=y'all)'d(?='|\b)", " would"),
    (r"(?i)'ve\b(?:(?<='[dt]'ve)|(?<='ll've)|(?<= would've))", " have"),
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
    text = unshout(apply(_WORDS, text))
    others = {word for word in set(_WORD.findall(text)) if not _stays_anywhere(word)}
    if others:
        text = _WORD.sub(lambda m: _say_word(m[0], _begins(m)) if m[0] in others else m[0], text)
    return _tidy(text)


def _stays_anywhere(word: str) -> bool:
    """Whether a word is said as it is written, at the beginning of a sentence and inside."""
    return _say_word(word, begins=True) == word == _say_word(word, begins=False)


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
    """An unusually long word, cut after vowels into pieces of about ten letters."""
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
    (r" {2,}", " "),
    (
        r"[.,?!;:](?: ?[.,?!;:])+| [.,?!;:](?: ?[.,?!;:])*",
        lambda m: next(c for c in "?!.;:," if c in m[0]),
    ),
    (r"([.,?!;:])(?=[^ ])", r"\1 "),
)


def _tidy(text: str) -> str:
    """Only the allowed characters, each mark once and against its word, no mark first."""
    return apply(_TIDY, text).lstrip(" .,?!;:").rstrip(" ,;:")


_ASKS = re.compile(
    r"(?:(?:and|but|so|well|hey|okay),? )?(?:"
    r"(?:what|where|who|when|why|how|which)(?:'(?:s|re|d|ll)| (?:is|are|was|were|do|does|did|can|"
    r"could|will|would|should|have|has|am))\b"
    r"|(?:is|are|was|were|can|could|will|would|should|does|did|has|am) (?:i|you|he|she|it|we|they|"
    r"there|this|that|these|those|anyone|anybody|the|your|my|his|her|our|their)\b"
    r"|(?:do|have|don't|haven't|isn't|aren't|can't|won't|didn't|doesn't) (?:i|you|we|they)\b)",
    re.I,
)
_SPELT_END = re.compile(r"(?<![\w'])(?:[B-Z]|(?<=[^.!?] )A) [A-Z]$")
"""The last letters of an acronym as it is said: "T V", but no "A J. Smith"."""
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*\s+")


def split_sentences(text: str, max_chars: int) -> list[str]:
    """Sentences of `text`, each 1 .. `max_chars` characters, in order and without loss but for the
    spaces between.

    Works on written and on spoken text. Overlong sentences are cut at a clause mark, else a comma,
    else a space; text without any of them is cut hard. A sentence of a single short word joins the
    next one.
    """
    assert max_chars >= 1
    pieces = [piece for sentence in _sentences(text) for piece in _cut(sentence, max_chars)]
    joined: list[str] = []
    for piece in pieces:
        if joined and len(joined[-1]) < 8 and len(joined[-1]) + 1 + len(piece) <= max_chars:
            joined[-1] += " " + piece
        else:
            joined.append(piece)
    return joined


def as_sentence(text: str) -> str:
    """A spoken text as the sentence it stands for, with a capital and a mark at its end, also where
    it was typed without: "what's your name" -> "What's your name?". A part that ends with a comma
    or the like goes on, and keeps it."""
    text = text[:1].upper() + text[1:]
    if not text or text[-1] in ".?!,;:":
        return text
    return text + ("?" if _ASKS.match(text) else ".")


def _sentences(text: str) -> list[str]:
    found, start = [], 0
    for m in _SENTENCE_END.finditer(text):
        before, after = text[start : m.start()], text[m.end() :]
        last = before.rsplit(None, 1)[-1].lstrip("(\"'[") if before.strip() else ""
        is_point = m[0].startswith(".") and not m[0].startswith("..")
        if is_point and not _SPELT_END.search(before[-5:]) and _is_abbreviation(last, after):
            continue
        found.append(text[start : m.end()].strip())
        start = m.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _is_abbreviation(word: str, after: str) -> bool:
    if word in TITLES or word in ("Dr", "St"):
        return True
    follower = re.match(r"[\w']*", after)
    starts = follower is not None and follower[0] in SENTENCE_STARTERS
    if word in ABBREVIATIONS or re.fullmatch(r"(?:[A-Za-z]\.)+[A-Za-z]", word):
        return not starts
    return bool(re.fullmatch(r"[B-HJ-Z]", word)) and not starts


def _cut(sentence: str, max_chars: int) -> list[str]:
    pieces = []
    while len(sentence) > max_chars:
        head = sentence[: max_chars + 1]
        breaks = (_last_break(head, marks) for marks in (";:", ",", " "))
        cut = next((at for at in breaks if at >= max_chars // 3), 0) or max_chars
        pieces.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [piece for piece in [*pieces, sentence] if piece]


def _last_break(head: str, marks: str) -> int:
    """Index after the last mark that is followed by a space (or the last space itself), 0 if there
    is none."""
    if marks == " ":
        return max(head.rfind(" "), 0)
    return max((m.start() + 1 for m in re.finditer(rf"[{marks}] ", head)), default=0)
