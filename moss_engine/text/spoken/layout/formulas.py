"""Formulas in TeX, as chatbots and papers write them, -> words and plain signs. Pure."""

from __future__ import annotations

import re

_FORMULAS = (
    re.compile(r"\$\$(?P<tex>[^$]{1,400})\$\$"),
    re.compile(r"\\\[(?P<tex>.{1,400}?)\\\]", re.S),
    re.compile(r"\\\((?P<tex>.{1,400}?)\\\)", re.S),
    # no money: "$5 or $6", no variables of a shell: "$HOME/$USER"
    re.compile(
        r"(?<![\w$\\])\$(?P<tex>(?=[A-Za-z\\(-]|[^$\n]*\\)[^$\n]{0,300}?[^\s$\\/:])\$(?![\w$])"
    ),
)
_ESCAPED = re.compile(r"\\([$*_#])")
# fmt: off
_COMMANDS = {
    "times": "times", "cdot": "times", "div": "divided by", "pm": "plus or minus", "le": "less "
    "than or equal to", "leq": "less than or equal to", "ge": "greater than or equal to",
    "geq": "greater than or equal to", "ne": "not equal to", "neq": "not equal to",
    "approx": "about", "sim": "about", "equiv": "equivalent to", "propto": "proportional to",
    "to": "to", "rightarrow": "to", "Rightarrow": "implies", "implies": "implies",
    "infty": "infinity", "partial": "partial", "nabla": "nabla", "in": "in", "forall": "for all",
    "exists": "there is", "cup": "union", "cap": "intersection", "subset": "subset of",
    "ln": "natural log of", "log": "log", "sin": "sine", "cos": "cosine", "tan": "tangent",
    "lim": "limit", "sum": "sum", "prod": "product", "int": "integral", "dots": "and so on",
    "ldots": "and so on", "cdots": "and so on", "circ": "degrees", "prime": "prime",
    "exp": "exp", "max": "max", "min": "min", "left": "", "right": "", "quad": "", "qquad": "",
    "displaystyle": "", "big": "", "Big": "", "varepsilon": "epsilon", "varphi": "phi",
}
_SIGNS = {"+": " plus ", "-": " minus ", "=": " equals ", "*": " times ", "/": " over ",
          "<": " less than ", ">": " greater than ", "&": " ", "~": " ", "'": " prime "}
# fmt: on
_STYLE = r"\\(?:text|mathrm|mathbf|mathit|mathcal|mathbb|operatorname|boxed|bar|hat|vec)"
_LETTERS = re.compile(rf"{_STYLE}\{{[^{{}}]*\}}|\\[A-Za-z]+|[A-Za-z]{{2,3}}(?![A-Za-z])")
_BOUNDS = r"_(?:\{([^{}]*)\}|(\w))\s*\^(?:\{([^{}]*)\}|(\w))"
_INNERMOST = (
    (re.compile(rf"{_STYLE}\{{([^{{}}]*)\}}"), r"\1"),
    (
        re.compile(rf"\\(sum|prod|int)\s*{_BOUNDS}"),
        lambda m: f" \\{m[1]} from {m[2] or m[3]} to {m[4] or m[5]} of ",
    ),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r" \1 over \2 "),
    (re.compile(r"\\sqrt\s*\[3\]\s*\{([^{}]*)\}"), r" cube root of \1 "),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r" square root of \1 "),
    (re.compile(r"\^(?:\{\s*\\circ\s*\}|\\circ)"), " degrees "),
    (re.compile(r"\^(?:\{2\}|2)"), " squared "),
    (re.compile(r"\^(?:\{3\}|3)"), " cubed "),
    (re.compile(r"\^(?:\{([^{}]*)\}|(\w))"), r" to the power of \1\2 "),
    (re.compile(r"_(?:\{([^{}]*)\}|(\w))"), r" sub \1\2 "),
)
_DEPTH = 6


def formulas_to_words(text: str) -> str:
    """What stands between the marks of a formula as a reader says it: "$x^2$" -> "x squared"."""
    if "\\" not in text and "$" not in text:
        return text
    for pattern in _FORMULAS:
        text = pattern.sub(lambda m: f" {_say(m['tex'])} ", text)
    return _ESCAPED.sub(r"\1", text)


def _say(tex: str) -> str:
    """The parts from the innermost braces outwards, then the signs and names between them."""
    tex = _LETTERS.sub(lambda m: m[0] if m[0][0] == "\\" else " ".join(m[0]), tex)
    tex = re.sub(r"\\\\|\\[,;:! ]", " ", tex)
    for _ in range(_DEPTH):
        before = tex
        for pattern, said in _INNERMOST:
            tex = pattern.sub(said, tex)
        if tex == before:
            break
    tex = re.sub(r"\\([A-Za-z]+)", lambda m: f" {_COMMANDS.get(m[1], m[1])} ", tex)
    tex = re.sub(r"[-+=*/<>&~']", lambda m: _SIGNS[m[0]], tex)
    return " ".join(re.sub(r"[{}\\^_]", " ", tex).split())
