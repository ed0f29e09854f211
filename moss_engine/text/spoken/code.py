"""Programs and shell commands inside English text -> the words for their signs. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import cardinal

_VOWEL = re.compile("[AEIOUY]")
_NAMES = {
    ".": "dot", ",": "comma", ";": "semicolon", ":": "colon", "/": "slash", "\\": "backslash",
    "*": "star", "-": "dash", "+": "plus", "#": "hash", "&": "and sign", "|": "bar", "^": "caret",
    "~": "tilde", "!": "exclamation mark", "?": "question mark", "_": "underscore",
    "=": "equals sign", "@": "at sign", "%": "percent sign", "$": "dollar sign", "<": "less than",
    ">": "greater than", "(": "left parenthesis", ")": "right parenthesis", "[": "left bracket",
    "]": "right bracket", "{": "left brace", "}": "right brace",
}  # fmt: skip
_SIGN = "[" + re.escape("".join(_NAMES)) + "]"
_MENTIONED = re.compile(
    rf"(?P<quote>[\"'])(?P<quoted>{_SIGN})(?P=quote)"
    rf"|(?<=\s)(?P<named>{_SIGN})(?=\s(?:operators?|signs?|characters?|symbols?|keys?)\b)"
)
_RULES = (
    (re.compile(r"\s*(?<!=)===?(?!=)\s*"), " equals "),
    (re.compile(r"\s+\+=\s+"), " plus equals "),
    (re.compile(r"\s+-=\s+"), " minus equals "),
    (re.compile(r"\s+\*=\s+"), " times equals "),
    (re.compile(r"\s+:=\s+"), " becomes "),
    (re.compile(r"\s*&&\s*"), " and "),
    (re.compile(r"\s*\|\|\s*"), " or "),
    (re.compile(r"(?<![\w!?.])!(?=[A-Za-z(])"), " not "),
    (re.compile(r"(?<=\w)::(?=\w)"), " "),
    (re.compile(r"(?<![\w*])\*\*(?=\w+=)|(?<=[\w)])\s?\*\*\s?(?=\d)"), "^"),
    (re.compile(r"(?<!\w)\$\{?(?=[A-Za-z_])"), " dollar "),
    (re.compile(r"(?<![\w-])--(?=[a-z])"), " dash dash "),
    (re.compile(r"(?<=[^\S\n\d])-(?=[A-Za-z])(?<!\d\s-)"), " dash "),
    (re.compile(r"(?<=\s')-(?=[A-Za-z]+')"), " dash "),
    (re.compile(r"(?<=\w)\+\+(?!\w)"), " plus plus "),
    (re.compile(r"(?<=[\s(=])~?/(?=[a-z]\w+(?![\w/]))"), " slash "),
    (re.compile(r"(?<![\w./)])\.(?=[a-z_][\w-]*)"), " dot "),
)
_CONSTANT = re.compile(r"\b_*[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+\b")
_ENCODED = re.compile(
    r"(?<!\S)(?=[^\s\d]*\d)(?=[^\sA-Z]*[A-Z])(?=[^\sa-z]*[a-z])[A-Za-z0-9+/]{25,}={0,2}(?!\S)"
)


def code_to_words(text: str) -> str:
    """Operators, options and names of a program written out; what is prose is left as it stands."""
    text = _ENCODED.sub(lambda m: f"a code of {cardinal(len(m[0]))} characters", text)
    text = _MENTIONED.sub(lambda m: f" {_NAMES[m['quoted'] or m['named']]} ", text)
    text = text.replace("()", "")
    text = _CONSTANT.sub(_say_constant, text)
    for pattern, said in _RULES:
        text = pattern.sub(said, text)
    return text


def _say_constant(m: re.Match[str]) -> str:
    """MAX_LEN -> "max len"; parts without a vowel stay letters."""
    parts = re.split("_+", m[0].strip("_"))
    return " ".join(part.lower() if _VOWEL.search(part) else part for part in parts)
