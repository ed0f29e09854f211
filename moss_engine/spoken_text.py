"""Written English -> the words that are said: the only form of text the small voice reads, in training and at run time.

`spoken_text` yields ASCII letters, apostrophes and hyphens inside words, single spaces and `. , ? ! ; :`. It is pure,
never fails, and its result is a fixed point. `split_sentences` cuts a text where a reader would pause.
"""

from __future__ import annotations

import re
import unicodedata

from moss_engine.spoken_numbers import cardinal, numbers_to_words, ordinal

MAX_WORD_LETTERS = 24
_PASSES = 20

_TITLES = {"Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Capt": "Captain", "Lt": "Lieutenant", "Col": "Colonel",
           "Gen": "General", "Sen": "Senator", "Rep": "Representative", "Gov": "Governor", "Sgt": "Sergeant", "Rev": "Reverend",
           "Hon": "Honorable", "Pres": "President", "Mt": "Mount", "Ft": "Fort"}
_ABBREVIATIONS = {
    "vs": "versus", "etc": "et cetera", "approx": "approximately", "dept": "department", "est": "established",
    "Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Co": "Company",
    "Bros": "Brothers", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Hwy": "Highway", "Apt": "Apartment",
    "Dept": "Department", "Univ": "University", "Assn": "Association", "Vol": "Volume", "vol": "volume", "Ch": "Chapter",
    "Jan": "January", "Feb": "February", "Aug": "August", "Sept": "September", "Oct": "October",
    "Nov": "November", "Dec": "December", "Mon": "Monday", "Tues": "Tuesday", "Thurs": "Thursday", "Fri": "Friday",
    "cf": "compare", "pp": "pages", "misc": "miscellaneous", "temp": "temperature", "tel": "telephone", "Tel": "Telephone",
}
_DOTTED = {"e.g.": "for example", "i.e.": "that is", "a.k.a.": "also known as", "ph.d.": "P H D", "a.m.": "A M", "p.m.": "P M"}
_WORD_FORMS = {"OK": "okay", "ok": "okay", "w/o": "without", "w/": "with", "and/or": "and or", "PhD": "P H D", "aka": "also known as"}
_SAID_AS_WORDS = frozenset(
    "NASA NATO AIDS UNESCO UNICEF OPEC FIFA NAFTA RAM ROM LASER RADAR SCUBA PIN SIM GIF JPEG LAN WAN FEMA "
    "OSHA SWAT ZIP IKEA LEGO YMCAS BASIC COBOL ASCII COVID".split()) - {"YMCAS"}
_SENTENCE_STARTERS = frozenset(
    "The A An It He She They We You I In On At But And Then This That These Those There Here When If So My Our His Her Its What "
    "Who Why How Is Are Was Were Do Does Did No Yes Not Now Please For From To As By".split())
_SYMBOLS = {"&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "%": " percent ", "×": " times ", "÷": " divided by ",
            "±": " plus or minus ", "§": " section ", "°": " degrees ", "$": " dollars ", "€": " euros ", "£": " pounds ", "¥": " yen ",
            "₹": " rupees ", "~": " ", "©": " ", "®": " ", "™": " ", "•": ", ", "|": ", ", "_": " ", "…": "... ", "²": " squared ",
            "³": " cubed "}
_QUOTES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "–": "-",
                         "‐": "-", "‑": "-", "−": "-", "⁄": "/", "\u00a0": " ", "\u2028": "\n", "\u2029": "\n\n"})
_URL = re.compile(r"(?:https?://|ftp://|www\.)[^\s<>\"]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
                  r"|(?<![\w@.])[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|io|ai|dev|co|uk|de|fr|info)\b(?:/[^\s<>\"]*)?", re.A)
_URL_WORDS = {".": " dot ", "/": " slash ", "@": " at ", "-": " dash ", "_": " underscore ", ":": " colon ", "?": " question mark ",
              "=": " equals ", "&": " and ", "#": " hash ", "%": " percent ", "+": " plus ", "~": " tilde "}
_ROMAN = re.compile(r"\b(?P<name>Chapter|Part|Volume|Act|Scene|Section|War|Book|Type|Phase|Level|Appendix|Article|King|Queen|Pope|Henry|"
                    r"Louis|Elizabeth|George|Edward|Richard|Charles|William|James|Philip|Pius|Paul|Benedict|Napoleon|Catherine|"
                    r"Frederick|Leo|Gregory)\s+(?P<roman>[IVX]{1,6})\b(?!')")
_PLAIN_ROMAN = re.compile(r"\b(?:III|VII|VIII|XII|XIII|XIV|XVI|XVII|XVIII|XIX|XXI)\b")
_COUNTED = frozenset("Chapter Part Volume Act Scene Section War Book Type Phase Level Appendix Article".split())
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*\s+")


def spoken_text(text: str) -> str:
    """Any text -> its spoken form; "" when nothing in it can be said."""
    text = unicodedata.normalize("NFC", text).translate(_QUOTES)
    text = re.sub(r"\r\n?|\n", "\n", text)
    text = re.sub(r"(?<![.!?:;,\s])\s*\n\s*\n\s*", ". ", text)
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    text = re.sub(r"</?[A-Za-z][^<>\n]*>", " ", _URL.sub(_say_url, text))
    text = re.sub(r"(?<=\d)\s*\*\s*(?=\d)", " times ", text)
    text = _transliterate(text)
    text = numbers_to_words(text)
    for _ in range(_PASSES):
        said = _say_words(_say_marks(_say_romans(text)))
        if said == text:
            break
        text = said
    return text if re.search("[A-Za-z]", text) else ""


def _say_url(m: re.Match[str]) -> str:
    url = m[0].rstrip(".,;:!?)]}'")
    tail = m[0][len(url):]
    url = re.sub(r"^(?:https?|ftp)://", "", url).rstrip("/")
    url = re.sub(r"^www\.", "W W W.", url)
    words = "".join(_URL_WORDS.get(c, c) for c in url)
    return " " + re.sub(r"\d", lambda d: f" {d[0]} ", words) + tail


def _transliterate(text: str) -> str:
    """Everything outside ASCII, but for the signs that have words of their own, through anyascii."""
    if text.isascii():
        return text
    from anyascii import anyascii

    parts = []
    for c in text:
        if c.isascii() or c in _SYMBOLS:
            parts.append(c)
            continue
        plain = anyascii(c)
        if plain.startswith(":") and plain.endswith(":"):
            plain = f" {plain[1:-1].replace('_', ' ')} "
        elif unicodedata.category(c) == "Lo" and not plain.isspace() and len(plain) > 1:
            plain = f"{plain.lower()} "
        parts.append(plain if unicodedata.category(c)[0] in "LMNPZ" or plain[:1] == " " else f" {plain} ")
    return "".join(parts)


def _roman_value(text: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10}[c] for c in text]
    return sum(-v if any(later > v for later in values[i + 1:i + 2]) else v for i, v in enumerate(values))


def _say_romans(text: str) -> str:
    def named(m: re.Match[str]) -> str:
        value = _roman_value(m["roman"])
        if m["name"] in _COUNTED:
            return f"{m['name']} {cardinal(value)}"
        return m[0] if m["roman"] == "I" else f"{m['name']} the {ordinal(value)}"

    return _PLAIN_ROMAN.sub(lambda m: cardinal(_roman_value(m[0])), _ROMAN.sub(named, text))


def _say_marks(text: str) -> str:
    """Signs, brackets and dashes -> words or plain punctuation."""
    for written, said in _WORD_FORMS.items():
        text = re.sub(rf"(?<![\w/]){re.escape(written)}(?![\w/])", said, text)
    text = re.sub(r"#\s*(?=(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)\b)", " number ", text)
    text = text.replace("#", " hashtag ")
    text = re.sub(r"(?<=[A-Za-z])/(?=[A-Za-z])", " or ", text)
    text = text.translate(str.maketrans(_SYMBOLS))
    text = re.sub(r"\s*(?:--+|—|\s-\s)\s*", ", ", text)
    text = re.sub(r"\s*[()\[\]{}]\s*", lambda m: ", " if m[0] != m[0].strip() else " ", text)
    return re.sub(r"\.{2,}(?=\s+[a-z])", ",", text)


def _say_words(text: str) -> str:
    """One pass of the rules that look at words; repeated until nothing changes."""
    text = re.sub(r"\b(?:e\.g|i\.e|a\.k\.a|ph\.d|[ap]\.m)\.", lambda m: _DOTTED[m[0].lower()] + _end_kept(m), text, flags=re.I)
    text = re.sub(r"\b(?:[A-Za-z]\.){2,}", lambda m: " ".join(m[0].replace(".", " ").split()).upper() + _end_kept(m), text)
    text = re.sub(r"\bDr\.(?=\s+[A-Z])", "Doctor", text)
    text = re.sub(r"\bDr\.", lambda m: "Drive" + _end_kept(m), text)
    text = re.sub(r"\bSt\.(?=\s+[A-Z])", "Saint", text)
    text = re.sub(r"\bSt\.", lambda m: "Street" + _end_kept(m), text)
    text = re.sub(r"\bNo\.(?=\s+(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)\b)", "Number", text)
    text = re.sub(rf"\b({'|'.join(_TITLES)})\.", lambda m: _TITLES[m[1]], text)
    text = re.sub(rf"\b({'|'.join(_ABBREVIATIONS)})\.", lambda m: _ABBREVIATIONS[m[1]] + _end_kept(m), text)
    text = re.sub(r"\b(Mr|Mrs|Ms|Dr)(?=\s+[A-Z])", lambda m: {**_TITLES, "Dr": "Doctor"}[m[1]], text)
    text = re.sub(r"(?<![A-Za-z'])([B-HJ-Z])\.(?=\s+([A-Z][\w']*))",
                  lambda m: m[0] if m[2] in _SENTENCE_STARTERS else m[1], text)
    text = re.sub(r"[A-Za-z']+", _say_word, _unshout(text))
    return _tidy(text)


def _end_kept(m: re.Match[str]) -> str:
    """A period again where the abbreviation's own one also ended the sentence."""
    after = re.match(r"\s+([A-Z][\w']*)|\s*$", m.string[m.end():])
    return "." if after and (after[1] is None or after[1] in _SENTENCE_STARTERS) else ""


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
    if 2 <= len(stem) <= 5 and stem.isalpha() and stem.isupper():
        return (stem.capitalize() if stem in _SAID_AS_WORDS else " ".join(stem)) + ending
    if len(word) >= 4 and word.isalpha() and not re.search("[aeiouyAEIOUY]", word) and not re.search(r"(?i)h?m{2,}|sh|st|ts|nth|br", word):
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
        cut = max((i for i in range(5, 11) if rest[i - 1] in "aeiouyAEIOUY" and rest[i] not in "aeiouyAEIOUY"), default=10)
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


def split_sentences(text: str, max_chars: int) -> list[str]:
    """Sentences of `text`, each 1 .. `max_chars` characters, in order and without loss but for the spaces between.

    Works on written and on spoken text. Overlong sentences are cut at a clause mark, else a comma, else a space; text
    without any of them is cut hard. A sentence of a single short word joins the next one.
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


def _sentences(text: str) -> list[str]:
    found, start = [], 0
    for m in _SENTENCE_END.finditer(text):
        before, after = text[start:m.start()], text[m.end():]
        last = before.rsplit(None, 1)[-1].lstrip("(\"'[") if before.strip() else ""
        if m[0].startswith(".") and not m[0].startswith("..") and _is_abbreviation(last, after):
            continue
        found.append(text[start:m.end()].strip())
        start = m.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _is_abbreviation(word: str, after: str) -> bool:
    if word in _TITLES or word in ("Dr", "St"):
        return True
    follower = re.match(r"[\w']*", after)
    starts = follower is not None and follower[0] in _SENTENCE_STARTERS
    if word in _ABBREVIATIONS or re.fullmatch(r"(?:[A-Za-z]\.)+[A-Za-z]", word):
        return not starts
    return bool(re.fullmatch(r"[B-HJ-Z]", word)) and not starts


def _cut(sentence: str, max_chars: int) -> list[str]:
    pieces = []
    while len(sentence) > max_chars:
        head = sentence[:max_chars + 1]
        cut = next((at for marks in (";:", ",", " ") if (at := _last_break(head, marks)) >= max_chars // 3), 0) or max_chars
        pieces.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [piece for piece in [*pieces, sentence] if piece]


def _last_break(head: str, marks: str) -> int:
    """Index after the last mark that is followed by a space (or the last space itself), 0 if there is none."""
    if marks == " ":
        return max(head.rfind(" "), 0)
    return max((m.start() + 1 for m in re.finditer(rf"[{marks}] ", head)), default=0)
