"""Roman numerals in English text -> words. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import cardinal, ordinal
from moss_engine.text.spoken.rules import before

_COUNTED = (
    r"Vol\.|Ch\.|Pt\.|Sec\.|Art\.|Chapter|Part|Volume|Act|Scene|Section|War|Book|Type|Phase|Level|"
    "Appendix|Article|Bowl|Grade|Class|Title|Stage"
)
_RULERS = (
    "King|Queen|Pope|Henry|Louis|Elizabeth|George|Edward|Richard|Charles|William|James|Philip|"
    "Pius|Paul|Benedict|Napoleon|Catherine|Frederick|Leo|Gregory|Ramesses|Ivan|Peter|Alexander|"
    "Nicholas|Wilhelm|Ferdinand|Clement|Urban|Innocent"
)
# One numeral or more, as each part of the pattern may be empty; "I've" is none.
_ROMAN = r"(?P<roman>(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3}))\b(?<=[IVXL])(?!'(?!s\b))"
_NAMED = re.compile(rf"\b(?P<name>{_COUNTED}|{_RULERS})\s+{_ROMAN}")
_MANY = re.compile(
    r"(?P<names>\b(?:Wars|Parts|Volumes|Vols\.|Chapters|Books|Acts|Types|Phases|Articles|Titles))\s"
    r"(?P<one>[IVXL]{1,6})(?P<join>,?\s(?:and|or|to)\s|\s?[-&]\s?)(?P<other>[IVXL]{1,6})\b"
)
_CENTURY = re.compile(r"\b(?P<roman>[IVX]{1,5})(?:th|st)?(?=\s(?:century|centuries)\b)")
_AFTER_NAME = re.compile(rf"(?<=[a-z])(?P<space>\s)(?=[IVXL]{{2}})(?!XL\b){_ROMAN}")
_PLAIN = re.compile(r"\b(?:III|VII|VIII|XII|XIII|XIV|XVI|XVII|XVIII|XIX|XXI)\b")
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}


def romans_to_words(text: str) -> str:
    """Numerals after a name ("Henry VIII", "Rocky IV") and those that can be nothing else."""
    text = _CENTURY.sub(lambda m: ordinal(_value(m["roman"])), _MANY.sub(_many, text))
    text = _AFTER_NAME.sub(_after_name, _NAMED.sub(_named, text))
    return _PLAIN.sub(lambda m: cardinal(_value(m[0])), text)


def _value(text: str) -> int:
    values = [_VALUES[c] for c in text]
    return sum(
        -v if any(later > v for later in values[i + 1 : i + 2]) else v for i, v in enumerate(values)
    )


def _many(m: re.Match[str]) -> str:
    """ "Wars I and II", "Parts I-III"."""
    join = " to " if "-" in m["join"] else m["join"]
    return f"{m['names']} {cardinal(_value(m['one']))}{join}{cardinal(_value(m['other']))}"


def _named(m: re.Match[str]) -> str:
    value = _value(m["roman"])
    ends = m.string[m.end() : m.end() + 1] in (",", ";", ":", ")")
    if m["name"].endswith(".") and m["roman"] == "I" and not ends:  # "I like Art. I paint."
        return m[0]
    if re.fullmatch(_COUNTED, m["name"]):
        return f"{m['name']} {cardinal(value)}"
    return m[0] if m["roman"] == "I" else f"{m['name']} the {ordinal(value)}"


def _after_name(m: re.Match[str]) -> str:
    """A number if the word before it is a name: "an IV" is none."""
    word = re.search(r"[A-Za-z']*$", before(m))
    named = word is not None and word[0][:1].isupper() and word[0] not in ("The", "An", "By", "Via")
    return f" {cardinal(_value(m['roman']))}" if named else m[0]
