"""Whole numbers -> the words said for them, in the ways there are to say a number. Pure."""

from __future__ import annotations

from functools import lru_cache

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = ["", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split()]
_GROUPS = ("", " thousand", " million", " billion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
BEFORE_NUMBER = (
    r"(?=\s*(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"[a-z]+teen|[a-z]+ty)\b)"
)
"""A pattern for the place before a number in words."""
BEFORE_FIGURE = r"(?=[A-Za-z.]{1,12}\s+\d)"
"""Where a word begins that stands before a figure: seen far sooner than which word it is."""


@lru_cache(maxsize=1024)
def cardinal(value: int) -> str:
    """12305 -> "twelve thousand three hundred five"; below a trillion, digit by digit above."""
    if value >= 10**12:
        return digits(str(value))
    groups, scale = [], 0
    while value or not groups:
        value, group = divmod(value, 1000)
        if group or not (value or groups):
            groups.append(f"{_below_thousand(group)}{_GROUPS[scale]}")
        scale += 1
    return " ".join(reversed(groups))


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    tens, ones = divmod(rest, 10)
    words = [f"{ONES[hundreds]} hundred"] if hundreds else []
    if rest < 20:
        words += [ONES[rest]] if rest or not hundreds else []
    else:
        words.append(TENS[tens] + (f"-{ONES[ones]}" if ones else ""))
    return " ".join(words)


def ordinal(value: int) -> str:
    """21 -> "twenty-first"."""
    words = cardinal(value)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    return words[:cut] + (
        _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    )


def digits(text: str) -> str:
    """Digit by digit: "2040" -> "two zero four zero"; other characters are skipped."""
    return " ".join(cardinal(int(c)) for c in text if c in "0123456789")


def year(value: int) -> str:
    """1905 -> "nineteen oh five", 2026 -> "twenty twenty-six", 2005 -> "two thousand five"."""
    if not 1100 <= value <= 2099 or 2000 <= value <= 2009:
        return cardinal(value)
    return pairs(value)


def pairs(value: int) -> str:
    """The number of a room, a flight or a model: 404 -> "four oh four", 747 -> "seven
    forty-seven", 8080 -> "eighty eighty"; others as they are."""
    head, rest = divmod(value, 100)
    if not 100 <= value <= 9999 or value % 1000 == 0:
        return cardinal(value)
    if rest == 0:
        return f"{cardinal(head)} hundred"
    return f"{cardinal(head)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def integer(text: str) -> str:
    """An integer as written: years, codes with leading zeros and long runs have their own
    readings."""
    plain = text.replace(",", "")
    if "," in text or len(plain) < 4:
        return digits(plain) if len(plain) > 1 and plain[0] == "0" else cardinal(int(plain))
    if plain[0] == "0" or len(plain) > 12 or (len(plain) >= 7 and not plain.endswith("000")):
        return ", ".join(digits(plain[i : i + 3]) for i in range(0, len(plain), 3))
    return year(int(plain)) if len(plain) == 4 else cardinal(int(plain))


def amount(text: str) -> str:
    """A decimal or integer as a quantity, never as a year."""
    whole, _, decimals = text.replace(",", "").partition(".")
    words = cardinal(int(whole)) if whole else "zero"
    return f"{words} point {digits(decimals)}" if decimals else words


def spelled(text: str) -> str:
    """Letter by letter and digit by digit: "1F" -> "one F"; other characters are skipped."""
    return " ".join(
        digits(c) if c.isdigit() else c.upper() for c in text if c.isascii() and c.isalnum()
    )
