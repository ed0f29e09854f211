"""Web and mail addresses, paths and file names in text -> the words said for them; the figures
stay. Short forms in the addresses of houses, once figures are words. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import BEFORE_NUMBER, digits
from moss_engine.text.spoken.rules import apply, rules
from moss_engine.text.spoken.tables import SENTENCE_STARTERS

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
_GOES_ON = rf"(?=\s(?:[NS][EW]?|[EW]|{'|'.join(_WITHIN)})\b)"
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


_ADDRESSES = rules(
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


def addresses_to_words(text: str) -> str:
    """Every sign of an address or path written out."""
    return apply(_ADDRESSES, text)


_PLACES = rules(
    (rf"(?:(?<=\b[oOiIaA][nft]\s)|(?<=\b[tT]o\s)|(?<=\band\s))(?P<side>[NSEW]){_TO_ROAD}", _side),
    (r"(?<=[a-z](?:st|nd|rd|th)) [Ff]l\b\.?", " Floor"),
    (
        rf"{_NAME}(?P<road>{'|'.join(_ROADS)})(?:\.?{_GOES_ON}|(?=[,;!?]|\s[a-z]|\s*$)|{_ENDS})",
        _road,
    ),
    (
        rf"\b(?P<short>{'|'.join(_NATURAL)})(?=\s+(?!(?:Tall|Long|Wide|High|Deep)\b)[A-Z][a-z])",
        lambda m: _NATURAL[m["short"]],
    ),
    (
        rf"\b(?P<short>{'|'.join(_WITHIN)})(?={BEFORE_NUMBER}|\s[A-Z]\b)",
        lambda m: _WITHIN[m["short"]],
    ),
)


def places_to_words(text: str) -> str:
    """Roads after their name, mounts and forts before it, flats before a number: "5th St. SE", "Oak
    Ave, Apt 3", "Mt Everest"."""
    return apply(_PLACES, text)
