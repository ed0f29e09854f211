"""Characters outside ASCII -> ASCII letters, or the words said for them. Pure."""

from __future__ import annotations

import re
import unicodedata

from moss_engine.text.spoken.tables import EMOJI, SYMBOLS

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
