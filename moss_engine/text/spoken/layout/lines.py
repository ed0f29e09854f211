"""Lines that are no running text: rows of tables, items of lists, addresses line by line; and the
marks of footnotes. Pure."""

from __future__ import annotations

import re

_RULER = re.compile(r"^[ \t]*\|?(?:[ \t]*:?-{2,}:?[ \t]*\|)+[ \t]*(?::?-{2,}:?[ \t]*)?$\n?", re.M)
_ROW = re.compile(r"^[ \t]*\|(?P<cells>[^\n]*)\|[ \t]*$", re.M)
_ITEMS = (
    (re.compile(r"^[ \t]*(?:\+(?=[ \t]+[^\s\d])|[▪◦‣·●○■►▶➤→–—](?=[ \t]))", re.M), "-"),
    (re.compile(r"^([ \t]*(?:[-*]|\d{1,2}[.)])[ \t]+)\[[ xX]\][ \t]+", re.M), r"\1"),
)
_NOTES = (
    (
        re.compile(
            r"^[ \t]*\[[^\]\n]{1,40}\]:[ \t]+[^\s/.#]{0,40}[/.#]\S*(?:[ \t]+[\"'(][^\n]*)?$", re.M
        ),
        "",
    ),
    (re.compile(r"\[\^[\w-]{1,20}\]:?"), ""),
    (re.compile(r"\[(?:citation needed|clarification needed|edit|who\?|when\?)\]", re.I), ""),
)
_FOOTNOTED = re.compile(r"[.,;:!?\"”]\[\d{1,3}\](?=\s|\[|$)")
_FOOTNOTE = re.compile(r"(?<=[\w.,;:!?\"”)%'’])(?:\[(?:\d{1,3}|[a-z]|note \d{1,2})\])+")
_BROKEN_WORD = re.compile(r"(?<=[a-z]{2})-\n(?=[a-z]{2})")
_STREET = re.compile(r"(?<=[a-z]\s)St\.(?=[ \t]*\n)")
_SHORT_LINE = re.compile(r"^(?P<line>[^\n]{0,49}[\w)\"'%])[ \t]*\n(?=[ \t]*[\"'(]?[A-Z\d])", re.M)
_NARROW = 50  # characters of a line: only lists and addresses are as narrow
_GOES_ON = frozenset(
    "a an the and or but of to in on at by for from with as is are was were that this my your his "
    "her its our their than not no be been has have had".split()
)


def tables_and_lists(text: str) -> str:
    """Each row of a table as a sentence of its cells, each list mark as a hyphen; no footnotes."""
    text = _ROW.sub(_row, _RULER.sub("", text))
    for pattern, said in (*_ITEMS, *_NOTES):
        text = pattern.sub(said, text)
    return _FOOTNOTE.sub("", text) if _FOOTNOTED.search(text) else text


def lines_joined(text: str) -> str:
    """A comma where a short line ends before a capital or a figure, as in an address; words that
    a line's end divided in one piece."""
    text = _STREET.sub("Street.", _BROKEN_WORD.sub("", text))
    longest = max(map(len, text.split("\n")))
    return _SHORT_LINE.sub(lambda m: _pause(m, longest), text)


def _row(m: re.Match[str]) -> str:
    cells = ", ".join(cell.strip() for cell in m["cells"].split("|") if cell.strip())
    if cells[-1:] in ("", *".!?:;"):
        return cells
    return cells + (";" if re.search(r"\b[A-Z]$", cells) else ".")  # "Plan B." is no initial


def _pause(m: re.Match[str], longest: int) -> str:
    """None where a text of `longest` characters a line had no room for the next word."""
    after = re.match(r"\s*\S{0,40}", m.string[m.end() : m.end() + 80])
    wraps = longest > _NARROW and len(m["line"]) + 1 + len(after[0] if after else "") > longest
    last = m["line"].rsplit(None, 1)[-1]
    return m[0] if wraps or last in _GOES_ON else f"{m['line']},\n"
