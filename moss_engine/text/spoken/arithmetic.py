"""Sums and comparisons in English text -> words for their signs; the figures stay. Pure.

A hyphen between figures is a minus only in a sum ("What is 7-3?", "12 - 5 = 7"); elsewhere it
stands for a range, and a bare "555-1234" for a telephone number. The same goes for "x" and "/".
"""

from __future__ import annotations

import re

_FIGURE = r"(?:\d+(?:\.\d+)?)"
_SUM = rf"-?{_FIGURE}(?:\s*[-+*x×/÷^]\s*{_FIGURE})+"
_ASKED = re.compile(
    rf"\b(?:what(?:'?s|\s+is)|how\s+much\s+is|calculate|compute|solve)\s+(?P<sum>{_SUM})(?![\w/-])",
    re.I,
)
_SOLVED = re.compile(rf"(?<![\w.,:/-])(?P<sum>{_SUM})(?=\s*=)")
_BARE = re.compile(
    rf"\s*(?P<sum>{_FIGURE}(?:\s*[-+*x×÷^]\s*{_FIGURE}|\s+/\s+{_FIGURE})+)\s*[?.!]*\s*"
)
_DATE = re.compile(r"\d{1,4}([/-])\d{1,2}\1\d{1,4}|24/7|50/50|9/11")
_BARE_DIGITS = 3  # of a figure: longer ones around a hyphen are years or telephone numbers
_SIGNS = {
    "-": " minus ",
    "+": " plus ",
    "*": " times ",
    "x": " times ",
    "×": " times ",
    "/": " divided by ",
    "÷": " divided by ",
    "^": "^",
}
_TERM = r"(?:[A-Za-z]\w*(?:\([^()\n]{0,30}\))?|\d+(?:\.\d+)?)"
_FORMULA = re.compile(
    rf"(?<=[=(<>])\s*{_TERM}(?:\s[-+*/]\s{_TERM}|[+*^]{_TERM})+"  # z = x / y
    r"|(?<![\w'.-])(?<!\d )[b-hj-z]\s[-+*/]\s(?:[b-hj-z](?![\w'.-])|\d)"  # x / y, but no "a"
    r"|(?<![\w.])\d{1,3}[abnxyz]\s[-+*/]\s(?:\d|[a-z]\b)"  # 3y - 6
    r"|(?<![\w'.-])[ijkmnpqtxyz]-\d{1,2}(?![\w.-]*\d)"  # n-1
)
_RAISED = re.compile(r"(?<=[\w)])(?:⁻?[⁰¹²³]*[⁰⁴⁵⁶⁷⁸⁹][⁰¹²³⁴⁵⁶⁷⁸⁹]*|⁻[¹²³])")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SCALE = r"(?:\s?(?:(?i:million|billion|trillion|thousand)|[bmt]n)|[kKmMbBT])"
_RULES = (
    (re.compile(rf"([$€£¥₹])\s?(\d[\d,.]*)\s?-\s?\1?(\d(?:[\d,.]*\d)?{_SCALE})\b"), r"\2 to \1\3"),
    (re.compile(r"([$€£¥₹]\s?\d[\d,.]*[kKmMbB]?)\s?-\s?(?=[$€£¥₹]?\d)"), r"\1 to "),
    (re.compile(r"(?<=\d)(\s?(?:%|°[CF]?))(?: - |-)(?=\d+(?:\.\d+)?\s?[%°])"), r"\1 to "),
    (re.compile(r"(?<=\d)\s*\*\s*(?=\d)"), " times "),
    (re.compile(r"(?<=\d)(\s?(?:[\"\u2033'\u2032]|cm|mm|m|ft|in\.?))\s?[x×]\s?(?=\d)"), r"\1 by "),
    (re.compile(r"(?<=[nxyz][²³])\s-\s(?=\d)"), " minus "),
    (re.compile(r"(?<=\d{3}-\d{4})\s?x\s?(?=\d{1,5}\b)"), " extension "),
    (re.compile(r"(?<=\d) x g\b"), " times g"),
    (re.compile(r"(?<=\d)\s?×\s?(?=10\s?\^)"), " times "),
    (
        re.compile(r"(?<![\w.,])(\d{1,2})\s?[x×]\s?(?=\d+\s?(?:k?g|m[lL]|L|oz|lbs?|mg|[MGT]B)\b)"),
        r"\1 times ",
    ),
    (re.compile(r"(?<![\w.,])([1-9]\d?)x(?=[A-Z]\w)"), r"\1 times "),
    (re.compile(r"(?<![\w'])([A-Za-z]) x (?=[A-Za-z](?![\w']))"), r"\1 by "),
    (re.compile(r"(?<![\w.,])(\d{2,}|\d+\.\d+|[1-9])(?:\s?x\s?|×)(?=\d)"), r"\1 by "),
    (re.compile(r"\d+(?: / \d+){2,}"), lambda m: m[0].replace(" /", ",")),
    (re.compile(r"\+/-\s?(?=[\d.])"), "±"),
    (re.compile(r"(?<=[\w)])\s*\^\s*2\b"), " squared"),
    (re.compile(r"(?<=[\w)])\s*\^\s*3\b"), " cubed"),
    (re.compile(r"(?<=[\w)])\s*\^\s*(?=[\w(-])"), " to the power of "),
    (
        re.compile(r"(?<![\w.,])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})\b"),
        r"\1 times 10 to the power of \2",
    ),
    (re.compile(r"\s*(?:<=|=<|≤)\s*"), " less than or equal to "),
    (re.compile(r"\s*(?:>=|≥)\s*"), " greater than or equal to "),
    (re.compile(r"\s*(?:!=|≠)\s*"), " not equal to "),
    (re.compile(r"\s*(?:<?[-=]+>|[→⇒↔])\s*"), " to "),
    (re.compile(r"(?<=\))/(?=\w)"), " over "),
    (re.compile(r"~\s?(?=\d)"), " about "),
    (re.compile(r"(?<=\S)[^\S\n]+<[^\S\n]+(?=\S)|(?<=\d)<(?=\d)"), " less than "),
    (re.compile(r"(?<=\S)[^\S\n]+>[^\S\n]+(?=\S)|(?<=\d)>(?=\d)"), " greater than "),
    (re.compile(r"(?<![\w<])<\s?(?=\d)"), " less than "),
    (re.compile(r"(?<![\w>-])>\s?(?=\d)"), " more than "),
)


def sums_to_words(text: str) -> str:
    """Signs between figures written out; what is no sum or comparison is left as it stands."""
    text = _SOLVED.sub(_say_sum, _ASKED.sub(_say_sum, text))
    bare = _BARE.fullmatch(text)
    if bare and all(len(figure) <= _BARE_DIGITS for figure in re.findall(r"\d+", text)):
        text = _say_sum(bare)
    text = _RAISED.sub(lambda m: "^" + m[0].translate(_LOWERED), text)
    text = _FORMULA.sub(_say_formula, text)
    for pattern, said in _RULES:
        text = pattern.sub(said, text)
    return text


def _say_formula(m: re.Match[str]) -> str:
    return re.sub(r"(?<=[\w)])\s*([-+*/])\s*(?=\w)", lambda sign: _SIGNS[sign[1]], m[0])


def _say_sum(m: re.Match[str]) -> str:
    if _DATE.fullmatch(m["sum"]):
        return m[0]
    start, end = (at - m.start() for at in m.span("sum"))
    said = re.sub(r"(?<=\d)\s*([-+*x×/÷^])\s*(?=\d)", lambda sign: _SIGNS[sign[1]], m["sum"])
    return m[0][:start] + said + m[0][end:]
