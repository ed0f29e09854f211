"""Sums, comparisons, formulas in TeX, and the signs of programs and shell commands in English text
-> words for the signs; the figures stay. Pure.

A hyphen between figures is a minus only in a sum ("What is 7-3?", "12 - 5 = 7"); elsewhere it
stands for a range ("10-20"), and a bare "555-1234" for a telephone number. The same goes for "x"
and "/".
"""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import cardinal
from moss_engine.text.spoken.rules import apply, rules
from moss_engine.text.spoken.tables import SIGN_NAMES, TEX_COMMANDS

_VOWEL = re.compile("[AEIOUY]")
_SIGN = "[" + re.escape("".join(SIGN_NAMES)) + "]"


def _say_constant(m: re.Match[str]) -> str:
    """MAX_LEN -> "max len"; parts without a vowel stay letters."""
    parts = re.split("_+", m[0].strip("_"))
    return " ".join(part.lower() if _VOWEL.search(part) else part for part in parts)


CODE = rules(
    (
        r"(?<!\S)(?=[^\s\d]*\d)(?=[^\sA-Z]*[A-Z])(?=[^\sa-z]*[a-z])[A-Za-z0-9+/]{25,}={0,2}(?!\S)",
        lambda m: f"a code of {cardinal(len(m[0]))} characters",
    ),
    (
        rf"(?P<quote>[\"'])(?P<quoted>{_SIGN})(?P=quote)"
        rf"|(?<=\s)(?P<named>{_SIGN})(?=\s(?:operators?|signs?|characters?|symbols?|keys?)\b)",
        lambda m: f" {SIGN_NAMES[m['quoted'] or m['named']]} ",
    ),
    (r"\(\)", ""),
    (r"\b_*[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+\b", _say_constant),
    (r"\s*(?<!=)===?(?!=)\s*", " equals "),
    (r"\s+\+=\s+", " plus equals "),
    (r"\s+-=\s+", " minus equals "),
    (r"\s+\*=\s+", " times equals "),
    (r"\s+:=\s+", " becomes "),
    (r"\s*&&\s*", " and "),
    (r"\s*\|\|\s*", " or "),
    (r"(?<![\w!?.])!(?=[A-Za-z(])", " not "),
    (r"(?<=\w)::(?=\w)", " "),
    (r"(?<![\w*])\*\*(?=\w+=)|(?<=[\w)])\s?\*\*\s?(?=\d)", "^"),
    (r"(?<!\w)\$\{?(?=[A-Za-z_])", " dollar "),
    (r"(?<![\w-])--(?=[a-z])", " dash dash "),
    (r"(?<=[^\S\n\d])-(?=[A-Za-z])(?<!\d\s-)", " dash "),
    (r"(?<=\s')-(?=[A-Za-z]+')", " dash "),
    (r"(?<=\w)\+\+(?!\w)", " plus plus "),
    (r"(?<=[\s(=])~?/(?=[a-z]\w+(?![\w/]))", " slash "),
    (r"(?<![\w./)])\.(?=[a-z_][\w-]*)", " dot "),
)
"""Operators, options and names of a program; what is prose is left as it stands."""


_FIGURE = r"(?:\d+(?:\.\d+)?)"
_SUM = rf"-?{_FIGURE}(?:\s*[-+*x×/÷^]\s*{_FIGURE}){{1,30}}"
_DATE = re.compile(r"\d{1,4}([/-])\d{1,2}\1\d{1,4}|24/7|50/50|9/11")
_BARE_DIGITS = 3  # of a figure: longer ones around a hyphen are years or telephone numbers
_OPERATORS = {
    "-": " minus ", "+": " plus ", "*": " times ", "x": " times ", "×": " times ",
    "/": " divided by ", "÷": " divided by ", "^": "^",
}  # fmt: skip
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_TERM = r"(?:[A-Za-z]\w*(?:\([^()\n]{0,30}\))?|\d+(?:\.\d+)?)"
_SCALE = r"(?:\s?(?:(?i:million|billion|trillion|thousand)|[bmt]n)|[kKmMbBT])"


def _say_formula(m: re.Match[str]) -> str:
    return re.sub(r"(?<=[\w)])\s*([-+*/])\s*(?=\w)", lambda sign: _OPERATORS[sign[1]], m[0])


def _say_comparison(m: re.Match[str]) -> str:
    """ "i<10", "0<x<1", which are no tags; "File>Open" is a way through menus."""
    text = re.sub(r"(?<!\d)<|<(?!\d)", " is less than ", m[0])
    return re.sub(r"(?<=\b[A-Za-z])>|>(?=[A-Za-z]\b)|(?<!\d)>(?=\d)", " is greater than ", text)


def _say_sum(m: re.Match[str]) -> str:
    if _DATE.fullmatch(m["sum"]):
        return m[0]
    start, end = (at - m.start() for at in m.span("sum"))
    said = re.sub(r"(?<=\d)\s*([-+*x×/÷^])\s*(?=\d)", lambda sign: _OPERATORS[sign[1]], m["sum"])
    return m[0][:start] + said + m[0][end:]


def _say_bare_sum(m: re.Match[str]) -> str:
    is_sum = all(len(figure) <= _BARE_DIGITS for figure in re.findall(r"\d+", m[0]))
    return _say_sum(m) if is_sum else m[0]


SUMS = rules(
    (
        r"(?i)\b(?:what(?:'?s|\s+is)|how\s+much\s+(?:is|are)|calculate|compute|solve|evaluate|"
        r"work\s+out|equals|\d\s+(?:plus|minus|times|divided\s+by))\s+"
        rf"(?P<sum>{_SUM})(?![\w/-])",
        _say_sum,
    ),
    (
        rf"(?<![\w.,:/-])(?P<sum>{_SUM})"
        r"(?=\s*=|\s+(?:equals?\b|(?:plus|minus|times|divided\s+by)\s+\d))",
        _say_sum,
    ),
    (
        r"\A\s*(?=[^+*x×÷^/]*[+*x×÷^/])"  # with hyphens alone it is a range: "9-5"
        rf"(?P<sum>{_FIGURE}(?:\s*[-+*x×÷^]\s*{_FIGURE}|\s+/\s+{_FIGURE})+)\s*[?.!]*\s*\Z",
        _say_bare_sum,
    ),
    (
        r"(?<=[\w)])(?:⁻?[⁰¹²³]*[⁰⁴⁵⁶⁷⁸⁹][⁰¹²³⁴⁵⁶⁷⁸⁹]*|⁻[¹²³])",
        lambda m: "^" + m[0].translate(_LOWERED),
    ),
    (
        rf"(?<=[=(<>])\s*{_TERM}(?:\s[-+*/]\s{_TERM}|[+*^]{_TERM})+"  # z = x / y
        r"|(?<![\w'.-])(?<!\d )[b-hj-z]\s[-+*/]\s(?:[b-hj-z](?![\w'.-])|\d)"  # x / y, but no "a"
        r"|(?<![\w.])\d{1,3}[abnxyz]\s[-+*/]\s(?:\d|[a-z]\b)"  # 3y - 6
        r"|(?<![\w'.-])[ijkmnpqtxyz]-\d{1,2}(?![\w.-]*\d)",  # n-1
        _say_formula,
    ),
    (r"(?<!\S)[^\s<>]*[\w)\]](?:(?:<[\w(][^\s<>]*)+|(?:>[\w(][^\s<>]*)+)(?!\S)", _say_comparison),
    (rf"([$€£¥₹])\s?(\d[\d,.]*)\s?-\s?\1?(\d(?:[\d,.]*\d)?{_SCALE})\b", r"\2 to \1\3"),
    (r"([$€£¥₹]\s?\d[\d,.]*[kKmMbB]?)\s?-\s?(?=[$€£¥₹]?\d)", r"\1 to "),
    (r"(?<=\d)(\s?(?:%|°[CF]?))(?: - |-)(?=\d+(?:\.\d+)?\s?[%°])", r"\1 to "),
    (r"(?<=\d)\s*\*\s*(?=\d)", " times "),
    (r"(?<=\d)(\s?(?:[\"\u2033'\u2032]|cm|mm|m|ft|in\.?))\s?[x×]\s?(?=\d)", r"\1 by "),
    (r"(?<=[nxyz][²³])\s-\s(?=\d)", " minus "),
    (r"(?<=\d{3}-\d{4})\s?x\s?(?=\d{1,5}\b)", " extension "),
    (r"(?<=\d) x g\b", " times g"),
    (r"(?<=\d)\s?×\s?(?=10\s?\^)", " times "),
    (r"(?<![\w.,])(\d{1,2})\s?[x×]\s?(?=\d+\s?(?:k?g|m[lL]|L|oz|lbs?|mg|[MGT]B)\b)", r"\1 times "),
    (r"(?<![\w.,])([1-9]\d?)x(?=[A-Z]\w)", r"\1 times "),
    (r"(?<![\w'])([A-Za-z]) x (?=[A-Za-z](?![\w']))", r"\1 by "),
    (r"(?<![\w.,])(\d{2,}|\d+\.\d+|[1-9])(?:\s?x\s?|×)(?=\d)", r"\1 by "),
    (r"\d+(?: / \d+){2,}", lambda m: m[0].replace(" /", ",")),
    (r"\+/-\s?(?=[\d.])", "±"),
    (r"(?<=[\w)])\s*\^\s*2\b", " squared"),
    (r"(?<=[\w)])\s*\^\s*3\b", " cubed"),
    (r"(?<=[\w)])\s*\^\s*(?=[\w(-])", " to the power of "),
    (r"(?<![\w.,])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})\b", r"\1 times 10 to the power of \2"),
    (r"\s*(?:<=|=<|≤)\s*", " less than or equal to "),
    (r"\s*(?:>=|≥)\s*", " greater than or equal to "),
    (r"\s*(?:!=|≠)\s*", " not equal to "),
    (r"\s*(?:<?[-=]+>|[→⇒↔])\s*", " to "),
    (r"(?<=\))/(?=\w)", " over "),
    (r"~\s?(?=\d)", " about "),
    (r"(?<=\S)[^\S\n]+<[^\S\n]+(?=\S)|(?<=\d)<(?=\d)", " less than "),
    (r"(?<=\S)[^\S\n]+>[^\S\n]+(?=\S)|(?<=\d)>(?=\d)", " greater than "),
    (r"(?<![\w<])<\s?(?=\d)", " less than "),
    (r"(?<![\w>-])>\s?(?=\d)", " more than "),
)
"""Signs between figures; what is no sum or comparison is left as it stands."""


_TEX_SIGNS = {
    "+": " plus ", "-": " minus ", "=": " equals ", "*": " times ", "/": " over ", "&": " ",
    "<": " less than ", ">": " greater than ", "~": " ", "'": " prime ",
}  # fmt: skip
_STYLE = r"\\(?:text|mathrm|mathbf|mathit|mathcal|mathbb|operatorname|boxed|bar|hat|vec)"
_LETTERS = re.compile(rf"{_STYLE}\{{[^{{}}]*\}}|\\[A-Za-z]+|[A-Za-z]{{2,3}}(?![A-Za-z])")
_BOUNDS = r"_(?:\{([^{}]*)\}|(\w))\s*\^(?:\{([^{}]*)\}|(\w))"
_INNERMOST = rules(
    (rf"{_STYLE}\{{([^{{}}]*)\}}", r"\1"),
    (
        rf"\\(sum|prod|int)\s*{_BOUNDS}",
        lambda m: f" \\{m[1]} from {m[2] or m[3]} to {m[4] or m[5]} of ",
    ),
    (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1 over \2 "),
    (r"\\sqrt\s*\[3\]\s*\{([^{}]*)\}", r" cube root of \1 "),
    (r"\\sqrt\s*\{([^{}]*)\}", r" square root of \1 "),
    (r"\^(?:\{\s*\\circ\s*\}|\\circ)", " degrees "),
    (r"\^(?:\{2\}|2)", " squared "),
    (r"\^(?:\{3\}|3)", " cubed "),
    (r"\^(?:\{([^{}]*)\}|(\w))", r" to the power of \1\2 "),
    (r"_(?:\{([^{}]*)\}|(\w))", r" sub \1\2 "),
)
_DEPTH = 6


def _say_tex(tex: str) -> str:
    """The parts from the innermost braces outwards, then the signs and names between them."""
    tex = _LETTERS.sub(lambda m: m[0] if m[0][0] == "\\" else " ".join(m[0]), tex)
    tex = re.sub(r"\\\\|\\[,;:! ]", " ", tex)
    for _ in range(_DEPTH):
        before = tex
        tex = apply(_INNERMOST, tex)
        if tex == before:
            break
    tex = re.sub(r"\\([A-Za-z]+)", lambda m: f" {TEX_COMMANDS.get(m[1], m[1])} ", tex)
    tex = re.sub(r"[-+=*/<>&~']", lambda m: _TEX_SIGNS[m[0]], tex)
    return " ".join(re.sub(r"[{}\\^_]", " ", tex).split())


def _say_found(m: re.Match[str]) -> str:
    return f" {_say_tex(m['tex'])} "


TEX = rules(
    (r"\$\$(?P<tex>[^$]{1,400})\$\$", _say_found),
    (r"(?s)\\\[(?P<tex>.{1,400}?)\\\]", _say_found),
    (r"(?s)\\\((?P<tex>.{1,400}?)\\\)", _say_found),
    # no money: "$5 or $6", no variables of a shell: "$HOME/$USER"
    (
        r"(?<![\w$\\])\$(?P<tex>(?=[A-Za-z\\(-]|[^$\n]*\\)[^$\n]{0,300}?[^\s$\\/:])\$(?![\w$])",
        _say_found,
    ),
    (r"\\([$*_#])", r"\1"),
)
"""What stands between the marks of a formula as a reader says it: "$x^2$" -> "x squared"."""
