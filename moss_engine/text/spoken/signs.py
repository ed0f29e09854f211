"""What is no word, in text: marks for the eye or a program (links, tags, lists, emoji), addresses,
paths and file names, and characters outside ASCII -> ASCII letters, or the words said for them;
figures stay. Pure."""

from __future__ import annotations

import re
import unicodedata

from moss_engine.text.spoken.cardinals import BEFORE_NUMBER, digits
from moss_engine.text.spoken.formulas import TEX
from moss_engine.text.spoken.rules import apply, rules
from moss_engine.text.spoken.tables import EMOJI, SENTENCE_STARTERS, SYMBOLS

_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")
_GREEK = r"[\u0370-\u03ff]"
_GREEK_WORD = re.compile(f"{_GREEK}{{2}}")
_GREEK_LETTER = re.compile("[Α-ΡΣ-Ψα-ορσ-ω]")  # Ω and π have words of their own
_MICRO = re.compile(rf"(?<!{_GREEK})[μµ](?=[A-Za-z])")
_MU = re.compile(rf"(?<!{_GREEK})[μµ](?![^\W\d])")
_REST_OF_NAME = re.compile(r" sign$| symbol$|^heavy |^black |^white |^face with | with .*$")


def transliterate(text: str) -> str:
    """Everything outside ASCII, but for the signs that have words of their own, through
    anyascii."""
    if text.isascii():
        return text
    from anyascii import anyascii

    parts: list[str] = []
    text = re.sub("º(?=[CF]\\b)", "°", text)
    text = _MU.sub(" mu ", _MICRO.sub("µ", text))
    if not _GREEK_WORD.search(text):
        text = _GREEK_LETTER.sub(_say_greek, text)
    for c in _FLAG.sub(_say_flag, text):
        if c.isascii() or c in SYMBOLS:
            parts.append(c)
            continue
        plain = anyascii(c)
        if unicodedata.category(c) == "No" and parts and parts[-1][-1:].isdigit():
            plain = f" {plain}"
        if plain.startswith(":") and plain.endswith(":"):
            plain = f" {emoji_name(c) or plain[1:-1].replace('_', ' ')} "
        elif c in EMOJI:
            plain = f" {EMOJI[c]} "
        elif unicodedata.category(c) == "Lo" and not plain.isspace() and len(plain) > 1:
            plain = f"{plain.lower()} "
        parts.append(
            plain if unicodedata.category(c)[0] in "LMNPZ" or plain[:1] == " " else f" {plain} "
        )
    return "".join(parts)


def emoji_name(c: str) -> str:
    """ "🎉" -> "party popper"; "" for a character that Unicode does not name."""
    return EMOJI.get(c) or _REST_OF_NAME.sub("", unicodedata.name(c, "").lower()).strip()


def _say_greek(m: re.Match[str]) -> str:
    """ "β" -> "beta"."""
    name = unicodedata.name(m[0]).rsplit(" ", 1)[-1].lower()
    name = "lambda" if name == "lamda" else name
    after = m.string[m.end() : m.end() + 2]
    return f" {name}" if re.fullmatch(r"-\d", after) else f" {name} "


def _say_flag(m: re.Match[str]) -> str:
    letters = " ".join(chr(ord(c) - 0x1F1E6 + ord("A")) for c in m[0])
    return f" flag {letters} "


def _row(m: re.Match[str]) -> str:
    cells = ", ".join(cell.strip() for cell in m["cells"].split("|") if cell.strip())
    if cells[-1:] in ("", *".!?:;"):
        return cells
    return cells + (";" if re.search(r"\b[A-Z]$", cells) else ".")  # "Plan B." is no initial


_TABLES_AND_LISTS = rules(
    (r"(?m)^[ \t]*(?:\|[ \t]*)?(?::?-{2,}:?[ \t]*\|[ \t]*)+(?::?-{2,}:?[ \t]*)?$\n?", ""),
    (r"(?m)^[ \t]*\|(?P<cells>[^\n]*)\|[ \t]*$", _row),
    (r"(?m)^[ \t]*(?:\+(?=[ \t]+[^\s\d])|[▪◦‣·●○■►▶➤→–—](?=[ \t]))", "-"),
    (r"(?m)^([ \t]*(?:[-*]|\d{1,2}[.)])[ \t]+)\[[ xX]\][ \t]+", r"\1"),
    (r"(?m)^[ \t]*\[[^\]\n]{1,40}\]:[ \t]+[^\s/.#]{0,40}[/.#]\S*(?:[ \t]+[\"'(][^\n]*)?$", ""),
    (r"\[\^[\w-]{1,20}\]:?", ""),
    (r"(?i)\[(?:citation needed|clarification needed|edit|who\?|when\?)\]", ""),
)
"""Each row of a table becomes a sentence of its cells, each list mark a hyphen."""
_FOOTNOTED = re.compile(r"[.,;:!?\"”]\[\d{1,3}\](?=\s|\[|$)")
_FOOTNOTE = re.compile(r"(?<=[\w.,;:!?\"”)%'’])(?:\[(?:\d{1,3}|[a-z]|note \d{1,2})\])+")
_SHORT_LINE = re.compile(r"^(?P<line>[^\n]{0,49}[\w)\"'%])[ \t]*\n(?=[ \t]*[\"'(]?[A-Z\d])", re.M)
_NARROW = 50  # characters of a line: only lists and addresses are as narrow
_GOES_ON = frozenset(
    "a an the and or but of to in on at by for from with as is are was were that this my your his "
    "her its our their than not no be been has have had".split()
)


def _pause(m: re.Match[str], longest: int) -> str:
    """A comma at a line's end, unless the next word had no room in `longest` characters."""
    after = re.match(r"\s*\S{0,40}", m.string[m.end() : m.end() + 80])
    wraps = longest > _NARROW and len(m["line"]) + 1 + len(after[0] if after else "") > longest
    last = m["line"].rsplit(None, 1)[-1]
    return m[0] if wraps or last in _GOES_ON else f"{m['line']},\n"


def _path(m: re.Match[str]) -> str:
    return m[0].replace("/", " slash ")


_TAGS = (
    "a abbr article b big blockquote body br button center code dd details div dl dt em fieldset "
    "figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input kbd label "
    "li link main mark meta nav ol option p pre q s script section select small span strong style "
    "sub summary sup svg table tbody td textarea th thead title tr u ul video audio var"
).split()
_SPEECH_TAGS = "break emphasis lang phoneme prosody say-as speak voice".split()
_WRAPPING = rules(
    (r"(?m)^[ \t]*(?:[=*_^+~#-][ \t]*){3,}\r?$", ""),
    (r"(?m)^[ \t]*(?:```|~~~)[^\n]*$", ""),
    (r"!?\[([^\]\n]{1,300})\]\((?:[^()\s]|\([^()\s]*\))+(?:\s+\"[^\"\n]*\")?\)", r"\1"),
    (r"(?<![\w\])])\[([^\]\n]{3,200})\]\[[\w -]{0,40}\]", r"\1"),
    (r"(?<!\S)==(?=\S)([^=\n]+)(?<=\S)==(?![\w=])", r"\1"),
    (
        r"`[^`\n]+`",
        lambda m: re.sub(
            r"(?<![\w/.~:-])[A-Za-z][\w-]+(?:/[A-Za-z][\w-]+)+(?![\w/.@])", _path, m[0]
        ),
    ),
    (r"(?<![\w*])(\*\*\*?)(?=[^\s*])([^*\n]{1,300})(?<=\S)\1(?![\w*])", r"\2"),
    (r"(?<=\w)`/`(?=[\w-])", "` or `"),
    (r"(?<![\w/])([ru])/(?=[A-Za-z]\w{2})", r"\1 slash "),
    (r"(?i)<sup>\s*(-?\d{1,3})\s*</sup>", r"^\1"),
    (r"(?i)(?<=\d)<sup>\s*(st|nd|rd|th)\s*</sup>", r"\1"),
    (r"<((?:mailto:)?[^\s<>@]+@[^\s<>]+|(?:https?|ftp)://[^\s<>]+)>", r" \1 "),
    (rf"(?i)</?(?:{'|'.join((*_TAGS, *_SPEECH_TAGS))})(?:\s[^<>\n]*=[^<>\n]*|\s\w+)?\s?/?>", " "),
    (r"(?s)<!--.*?-->", " "),
    (r"(?<!\w)<(/?[A-Za-z][\w./ +-]*)>|<(/?[A-Za-z][\w./+-]*)>", r" \1\2 "),
    (r"&(?:nbsp|#160);", " "),
    (r"&(?:amp|#38);", "&"),
    (r"&(?:lt|#60);", "<"),
    (r"&(?:gt|#62);", ">"),
    (r"&(?:quot|#34);", '"'),
    (r"(?<!\S)<3(?=\s*(?:[.!?,)]|$))", " love "),
    (r"(?<!\S)[:;=][-'^o]?[)(DPpOo/\\|*3\]\[](?=[\s.!?,]|$)", " "),
    (r"(?<!\S)(?:\^_+\^|[xX]D|[oO]_[oO]|T_T|-_-)(?!\S)", " "),
)
_EMOJI = (
    r"[\U0001F000-\U0001FAFF\u2600-\u27BF\u2B05-\u2B55\u231A\u231B\u23E9-\u23FA]"
    r"[\U0001F3FB-\U0001F3FF\uFE0F\u20E3\u200D]*"
)
_EMOJIS = rf"(?:{_EMOJI}\s*)+"
_RULES = rules(
    (r"(?m)^[ \t]*#{1,6}[ \t]+(.*)$", r"\1."),
    (r"\s(?P<line>[=#~*])(?P=line){3,}\s", ", "),
    (r"(?P<sign>[=&#$%@|~])(?P=sign)+", r"\g<sign>"),
    (
        r"(?P<sign>[^\w\s^.,?!;:'\"()\[\]{}-]|[\u00b2\u00b3\u00bc-\u00be])(?:\s?(?P=sign)){4,}",
        r"\g<sign>",
    ),
    (r"(?<![.!?:;,\s])[ \t]*\n\s*(?=(?:[-*•]|\d{1,2}[.)])[ \t])", ".\n"),
    (r"(?m)^[ \t]*[-*•][ \t]+", ""),
    (r"(?m)^[ \t]*>(?:[ \t>]+|$)", ""),
    (rf"(?P<emoji>{_EMOJI})(?:\s*(?P=emoji))+", r"\g<emoji>"),
    (r"(?<=[a-z]{2})-\n(?=[a-z]{2})", ""),  # in a word that a line's end divided
    (r"(?<=[a-z]\s)St\.(?=[ \t]*\n)", "Street."),
)
_DECORATION = re.compile(rf"(?<=[.!?,;:]) *{_EMOJIS}|{_EMOJIS}(?=[.!?,;:]|$)|^\s*{_EMOJIS}", re.M)


def without_markup(text: str) -> str:
    """The text without what nobody would read out. Emoji go where they stand beside a sentence, and
    stay inside one; a text of nothing else stays as it is. A comma comes where a short line ends
    before a capital or a figure, as in an address.
    """
    text = apply(_RULES, text)
    longest = max(map(len, text.split("\n")))
    text = _SHORT_LINE.sub(lambda m: _pause(m, longest), text)
    plain = _DECORATION.sub(" ", text)
    return plain if re.search(r"\w", plain) else text


def unwrapped(text: str) -> str:
    """The text without what is meant for programs: links, tags, code fences, emoticons. This comes
    first, as later steps would take their signs for something else."""
    text = apply(_TABLES_AND_LISTS, apply(TEX, text))
    text = _FOOTNOTE.sub("", text) if _FOOTNOTED.search(text) else text
    return apply(_WRAPPING, text)


_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.)[^\s<>\"]+|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w@.-])[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|io|ai|dev|co|uk|de|fr|info)\b"
    r"(?:/[^\s<>\"]*)?"
    r"|(?<![\w/.])(?:[~.]{1,2}(?:/[\w.-]+)+|(?:/[\w.-]+){2,})/?|\b[A-Za-z]:\\[^\s<>\"]*",
    re.A,
)
_FILE = re.compile(
    r"(?<![\w/.@:-])[A-Za-z][\w-]*(?:/[\w.-]+)*/[\w-]+\.[a-z][a-z\d]{0,3}\b(?:#[\w-]+)?", re.A
)
_FILE_DOT = re.compile(
    r"(?<=[A-Za-z0-9_]{2})\.(?=[a-z_]\w+)|(?<=[A-Za-z_]{2})\.(?=[a-z]\b(?!\.))"
    r"|(?<=[\])])\.(?=[a-z_]\w+)|(?<=[A-Za-z_])\.(?=[A-Z]\w*\()"
    r"|(?<![\w.][A-Z])(?<=[A-Z])\.(?=[a-z]\b(?!\.)|_)"
    r"|(?<![\w.'-][a-z])(?<=[a-z])\.(?=[a-z]{3,})"
)
_SIGNS = {
    ".": " dot ", "/": " slash ", "\\": " backslash ", "@": " at ", "-": " dash ",
    "_": " underscore ", ":": " colon ", "?": " question mark ", "=": " equals ", "&": " and ",
    "#": " hash ", "%": " percent ", "+": " plus ", "~": " tilde ",
}  # fmt: skip
_ROADS = {
    "St": "Street", "Ave": "Avenue", "Rd": "Road", "Blvd": "Boulevard", "Ln": "Lane",
    "Ct": "Court", "Hwy": "Highway", "Pkwy": "Parkway", "Sq": "Square",
}  # fmt: skip
_NATURAL = {"St": "Saint", "Mt": "Mount", "Ft": "Fort"}
_WITHIN = {"Apt": "Apartment", "Ste": "Suite", "Hwy": "Highway", "Rm": "Room", "Bldg": "Building"}
_SIDES = {"N": "North", "S": "South", "E": "East", "W": "West"}
_STATES = (
    "A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|"
    "T[NX]|UT|V[AT]|W[AIVY]"
)
_NAME = r"(?<![\w'-])(?P<name>[A-Z][a-z]+|(?:[a-z]{1,8}-)?(?:first|second|third|[a-z]{1,12}th)) "
_ROAD_GOES_ON = rf"(?=\s(?:[NS][EW]?|[EW]|{'|'.join(_WITHIN)})\b)"
_ENDS = rf"(?=\.\s+(?:{'|'.join(sorted(SENTENCE_STARTERS))})\b)"
_TO_ROAD = (
    r"\.?\s(?=(?:\d{1,3}(?:st|nd|rd|th)|[A-Z][a-z]+|[a-z-]{4,}(?:st|nd|rd|th))(?:\s[A-Z][a-z]+)?\s"
    rf"(?:{'|'.join((*_ROADS, *_ROADS.values()))}|Dr|Drive|Way|Place)\b)"
)


def _zip(m: re.Match[str]) -> str:
    parts = ", ".join(map(digits, m["zip"].split("-")))
    return f"{m['comma']} {' '.join(m['state'])} {parts}"


def _side(m: re.Match[str]) -> str:
    return f"{_SIDES[m['side']]} "


def _road(m: re.Match[str]) -> str:
    """Unless a sentence begins before it: "The St" names nothing."""
    return m[0] if m["name"] in SENTENCE_STARTERS else f"{m['name']} {_ROADS[m['road']]}"


def _say_address(m: re.Match[str]) -> str:
    """Without a scheme and "www", which nobody says."""
    address = m[0].rstrip(".,;:!?)]}'")
    tail = m[0][len(address) :]
    address = re.sub(r"^(?:https?|ftp)://", "", address).rstrip("/").removeprefix("www.")
    words = "".join(_SIGNS.get(c, c) for c in address)
    return " " + re.sub(r"\d", lambda d: f" {d[0]} ", words) + tail


ADDRESSES = rules(
    (rf"(?<=\d\s)(?P<side>[NSEW]){_TO_ROAD}", _side),
    (
        rf"(?<=[a-z.])(?P<comma>,?)\s(?P<state>{_STATES})\s"
        r"(?P<zip>\d{5}(?:-\d{4})?)(?![\w,.-]*\d)",
        _zip,
    ),
    (_FILE, lambda m: m[0].replace("/", " slash ").replace("#", " hash ")),
    (_ADDRESS, _say_address),
    (_FILE_DOT, " dot "),
)
"""Every sign of an address or path written out."""
PLACES = rules(
    (rf"(?:(?<=\b[oOiIaA][nft]\s)|(?<=\b[tT]o\s)|(?<=\band\s))(?P<side>[NSEW]){_TO_ROAD}", _side),
    (r"(?<=[a-z](?:st|nd|rd|th)) [Ff]l\b\.?", " Floor"),
    (
        rf"{_NAME}(?P<road>{'|'.join(_ROADS)})(?:\.?{_ROAD_GOES_ON}|(?=[,;!?]|\s[a-z]|\s*$)|{_ENDS})",
        _road,
    ),
    (
        rf"\b(?P<short>{'|'.join(_NATURAL)})(?=\s+(?!(?:Tall|Long|Wide|High|Deep)\b)[A-Z][a-z])",
        lambda m: _NATURAL[m["short"]],
    ),
    (rf"\b({'|'.join(_WITHIN)})(?={BEFORE_NUMBER}|\s[A-Z]\b)", lambda m: _WITHIN[m[1]]),
)
"""Roads after their name, mounts and forts before it, flats before a number: "5th St. SE",
"Oak Ave, Apt 3", "Mt Everest"."""
