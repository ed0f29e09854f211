"""Money and units of measure in English text -> words. `MONEY` comes before ranges and fractions,
`MEASURES` after them. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import BEFORE_FIGURE, amount, cardinal
from moss_engine.text.spoken.rules import after, before, rules
from moss_engine.text.spoken.tables import (
    CURRENCIES,
    DOTTED_UNITS,
    NOT_NOUNS,
    SCALES,
    UNITS,
    UNITS_ALONE,
)

NUMBER = r"(?<!\d)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_DOTTED_UNIT = "|".join(sorted(map(re.escape, DOTTED_UNITS), key=len, reverse=True))
_NO_PLURAL = ("hertz", "yen", "yuan", "won", "molar", "horsepower")
_PRICED = (
    r"(?=\s(?:[a-z]+\s)?(?:plan|deal|bill|budget|fine|loan|grant|project|contract|package|fund|fee|"
    r"ticket|settlement|investment|prize|gift|mansion|campaign|donation|bonus|salary|reward|"
    r"bounty|lawsuit|mortgage|valuation|acquisition|offer|bid|stake|coupon|voucher|"
    r"shortfall|deficit|program|programme|initiative|industry|business|company|question)\b)"
)
"""Before a thing that a sum of money describes: "the bank's $5 million fine"."""
_DETERMINER = r"(?:a|an|the|this|that|every|each|another|any|my|your|his|her|its|our|their|one)"
_NOUN = rf"(?=\s+(?!(?:{'|'.join(NOT_NOUNS)})\b)[a-z]{{3,}}(?<!ly)\b)"
"""Before a word that can be what a quantity describes: "a $25 invoice"."""
_COUNTED = (
    r"(?=\s+(?:people|users|followers|lines|views|downloads|subscribers|words|rows|tokens|items|"
    r"requests|jobs|players|readers|customers|samples|steps|parameters|files|stars|votes|dollars|"
    r"copies|members|times|years|miles|visitors|employees|men|women|children|students|images|"
    r"documents|records|pages|points|votes|homes)\b)"
)


def _plural(noun: str, number: str) -> str:
    if number == "1" or noun.endswith(_NO_PLURAL):
        return noun
    head, *rest = re.split(r"(?= per | of )", noun, maxsplit=1)
    tail = "".join(rest)
    words = {"foot": "feet", "penny": "pence", "paisa": "paise", "inch": "inches"}
    for one, many in words.items():
        if head.split()[-1] == one:
            return head[: -len(one)] + many + tail
    plural = head.replace("degree", "degrees") if head.startswith("degree") else f"{head}s"
    return plural + tail


def _money(m: re.Match[str], describes: bool = False) -> str:
    noun, small = CURRENCIES[m["sign"]]
    scale, written = m["scale"], m["amount"]
    if describes:
        return f"{amount(written)} {SCALES[scale.lower()] + ' ' if scale else ''}{noun}"
    if scale:
        return f"{amount(written)} {SCALES[scale.lower()]} {_plural(noun, '')}"
    whole, _, decimals = written.replace(",", "").partition(".")
    if len(decimals) != 2 or not small:
        return f"{amount(written)} {_plural(noun, written)}"
    parts = (
        [f"{cardinal(int(whole))} {_plural(noun, whole)}"]
        if int(whole) or not int(decimals)
        else []
    )
    if int(decimals):
        parts.append(f"{cardinal(int(decimals))} {_plural(small, str(int(decimals)))}")
    return " and ".join(parts)


def _measured(m: re.Match[str]) -> str:
    return f"{amount(m['amount'])} {_plural(_noun_of(m['unit']), m['amount'])}"


def of_unit(fraction: str, unit: str) -> str:
    """ "three quarters", "km" -> "three quarters of a kilometer"."""
    noun = UNITS[unit]
    if " and " in fraction:
        return f"{fraction} {_plural(noun, '')}"
    if fraction.endswith(" half"):
        return f"{fraction} {noun}"
    return f"{fraction} of {'an' if noun[0] in 'aeio' or noun.startswith('hour') else 'a'} {noun}"


def is_unit(text: str) -> bool:
    """Whether it is a unit that has a noun of its own: "km/h"."""
    return text in UNITS


def _noun_of(unit: str) -> str:
    return "inch" if unit == "in" else UNITS[unit]


def _described(m: re.Match[str]) -> str:
    return f"{m['before']}{amount(m['amount'])} {_noun_of(m['unit'])}"


def _dotted_unit(m: re.Match[str]) -> str:
    """The period goes, unless it also ended the sentence."""
    ends = re.match(r"\s+[A-Z]|\s*\Z", after(m))
    in_feet = re.search(r"ft\.?\s$", before(m, 4))
    if ends and m["unit"] == "in" and not in_feet:  # "They let 3 in."
        return m[0]
    if m.string[m.end("amount")] == "-" and not ends:  # "a 10-in. pan"
        return f"{amount(m['amount'])} {_noun_of(m['unit'])}"
    return _measured(m) + ("." if ends else "")


_SAID = re.compile(r"[,.]?\s+(?:said|says|told|asked|added|wrote|according)\b")


def _is_quotation(m: re.Match[str]) -> bool:
    """Whether the quote after a figure closes a quotation, which may have begun elsewhere."""
    if m["mark"] != '"':
        return False
    quote = m.string.rfind('"', 0, m.start())
    opens = quote >= 0 and (
        quote == 0 or m.string[quote - 1] in "([" or m.string[quote - 1].isspace()
    )
    follows = m.string[quote + 1 : m.start()][:1]
    return (opens and (not follows or follows.isalnum() or follows == "_")) or bool(
        _SAID.match(after(m))
    )


def _inches(m: re.Match[str]) -> str:
    return m[0] if _is_quotation(m) else f"{amount(m['amount'])} inch"


def _with_point(m: re.Match[str]) -> str:
    """Euros as the continent writes them: "1.234,50" -> "1234.50"."""
    return f"{m['sign']}{m['euros'].replace('.', '')}.{m['cents']}"


_COMMA = r"(?P<euros>\d{1,3}(?:\.\d{3})+|\d+),(?P<cents>\d\d)"
CURRENCY = "|".join(sorted(map(re.escape, CURRENCIES), key=len, reverse=True))
_PRICE = (
    rf"(?<![A-Za-z])(?<![A-Z]/)(?P<sign>{CURRENCY})\s?(?P<amount>{NUMBER})(?:\s?"
    r"(?P<scale>(?i:thousand|million|billion|trillion)|[bmt]n|[kKmMbB]|(?<=\d)T)\b)?"
)
MONEY = rules(
    (
        r"(?<![\w.,])(?P<feet>\d{1,2})\s?['\u2032]\s?(?P<inches>\d{1,2})(?:\"|''|\u2033|\b)",
        lambda m: f"{cardinal(int(m['feet']))} foot {cardinal(int(m['inches']))}",
    ),
    (
        r"(?<![\w.,'])(?P<feet>\d{1,2})"
        r"(?:\u2032|'(?=\s+(?:tall|long|wide|high|deep|by|ladder)\b))",
        lambda m: f"{cardinal(int(m['feet']))} foot",
    ),
    (
        r"(?<![\d/.,])(?P<amount>(?:\d{1,3}[\s-])?\d{1,2}/(?:2|4|8|16|32|64))"
        r"(?P<mark>''|[\"\u2033])(?!\w)",
        lambda m: m[0] if _is_quotation(m) else f"{m['amount']} inch",
    ),
    (rf"(?P<amount>{NUMBER})\s?(?P<mark>''|[\"\u2033])(?!\w)", _inches),
    (
        rf"\b(?P<before>(?i:{_DETERMINER})\s+){_PRICE}{_NOUN}",
        lambda m: m["before"] + _money(m, describes=True),
    ),
    (_PRICE + _PRICED, lambda m: _money(m, describes=True)),
    (r"(?<![\d.,])\d{1,3}(?:\.\d{3})+(?=\s?€(?!/))", lambda m: m[0].replace(".", "")),
    (rf"(?P<sign>€\s?){_COMMA}(?![.,]?\d)", _with_point),
    (rf"(?P<sign>)(?<![\d.,]){_COMMA}(?=\s?(?:€|EUR\b))", _with_point),
    (_PRICE, _money),
    (
        rf"(?P<amount>{NUMBER})\s?(?P<scale>)"
        r"(?P<sign>[€£¥₹¢₽₩]|(?:USD|EUR|GBP|JPY|CHF|INR|CAD|AUD|CNY)\b)",
        _money,
    ),
)
ALONE = rules(
    (rf"(?<![\w/])({'|'.join(UNITS_ALONE)})(?![\w/])", lambda m: _plural(UNITS[m[1]], ""))
)
MEASURES = rules(
    (
        rf"(?<![\w.,])(?P<amount>{NUMBER})\s?(?P<scale>[kKmMbBT]){_COUNTED}",
        lambda m: f"{amount(m['amount'])} {SCALES[m['scale'].lower()]}",
    ),
    (
        r"(?<![\w.,])(?P<amount>\d{1,3}\.\d{1,2}(?=[MB]\b)|\d{1,3}(?=M\s[a-z]{3,}s\b))"
        r"(?P<scale>[MB])\b",
        lambda m: f"{amount(m['amount'])} {SCALES[m['scale'].lower()]}",
    ),
    (
        r"(?<![\w.,])(?P<amount>\d{1,3})\s?bps\b",
        lambda m: f"{amount(m['amount'])} basis point{'' if m['amount'] == '1' else 's'}",
    ),
    (r"(?<![\w.,])(?P<amount>[1-9]\d{3})K\b", lambda m: f"{amount(m['amount'])} kelvin"),
    (rf"(?P<amount>{NUMBER})\s?bn\b", lambda m: f"{amount(m['amount'])} billion"),
    (rf"(?P<amount>{NUMBER})(?:\s?|-)(?P<unit>{_DOTTED_UNIT})\.(?![\w])", _dotted_unit),
    (
        rf"(?P<amount>{NUMBER})\s(?P<unit>in)(?=\s+(?:by|x|long|wide|tall|deep|high|thick|"
        rf"square)\b|\s*[,;)]|\s*$)",
        _measured,
    ),
    (
        rf"\b{BEFORE_FIGURE}(?P<before>(?i:{_DETERMINER})\s+)(?P<amount>{NUMBER})\s?"
        rf"(?P<unit>{UNIT})(?![\w°²³/]){_NOUN}",
        _described,
    ),
    (rf"(?P<before>)(?P<amount>{NUMBER})-(?P<unit>{UNIT}|in)(?![\w°²³/]){_NOUN}", _described),
    (
        rf"(?P<before>)(?P<amount>{NUMBER})-(?P<unit>(?=[A-Za-z]{{2}})(?:{UNIT}))(?![\w°²³/.])",
        _described,
    ),
    (
        rf"(?P<amount>{NUMBER})\sdegrees?\s(?P<unit>[FC])\b(?:\.(?=\s[a-z]))?",
        lambda m: f"{amount(m['amount'])} {_plural(UNITS['°' + m['unit']], m['amount'])}",
    ),
    (r"(?<![\w.,])(?P<amount>\d{1,3}\.\d{1,2})pc\b", lambda m: f"{amount(m['amount'])} percent"),
    (rf"(?P<amount>{NUMBER})\s?%", lambda m: f"{amount(m['amount'])} percent"),
    (rf"(?<![A-Za-z])(?P<amount>{NUMBER})\s?(?P<unit>{UNIT})(?![\w°²³/])", _measured),
    *ALONE,
)
