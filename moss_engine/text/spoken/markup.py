"""What stands in a text for the eye or for a program alone: links, tags, headings, rows of tables,
list marks, footnotes, line ends, emoji. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.formulas import formulas_to_words
from moss_engine.text.spoken.rules import apply, rules

_RULER = re.compile(
    r"^[ \t]*(?:\|[ \t]*)?(?::?-{2,}:?[ \t]*\|[ \t]*)+(?::?-{2,}:?[ \t]*)?$\n?", re.M
)
_ROW = re.compile(r"^[ \t]*\|(?P<cells>[^\n]*)\|[ \t]*$", re.M)
_ITEMS_AND_NOTES = rules(
    (r"(?m)^[ \t]*(?:\+(?=[ \t]+[^\s\d])|[▪◦‣·●○■►▶➤→–—](?=[ \t]))", "-"),
    (r"(?m)^([ \t]*(?:[-*]|\d{1,2}[.)])[ \t]+)\[[ xX]\][ \t]+", r"\1"),
    (r"(?m)^[ \t]*\[[^\]\n]{1,40}\]:[ \t]+[^\s/.#]{0,40}[/.#]\S*(?:[ \t]+[\"'(][^\n]*)?$", ""),
    (r"\[\^[\w-]{1,20}\]:?", ""),
    (r"(?i)\[(?:citation needed|clarification needed|edit|who\?|when\?)\]", ""),
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


def _tables_and_lists(text: str) -> str:
    """Each row of a table as a sentence of its cells, each list mark as a hyphen; no footnotes."""
    text = _ROW.sub(_row, _RULER.sub("", text))
    text = apply(_ITEMS_AND_NOTES, text)
    return _FOOTNOTE.sub("", text) if _FOOTNOTED.search(text) else text


def _lines_joined(text: str) -> str:
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


def _path(m: re.Match[str]) -> str:
    return m[0].replace("/", " slash ")


_TAGS = (
    "a abbr article b big blockquote body br button center code dd details div dl dt em fieldset "
    "figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input kbd label "
    "li link main mark meta nav ol option p pre q s script section select small span strong style "
    "sub summary sup svg table tbody td textarea th thead title tr u ul video audio var"
).split()
_SPEECH_TAGS = "break emphasis lang phoneme prosody say-as speak voice".split()
_WRAPPING = rules(
    (r"(?m)^[ \t]*(?:[=*_^+~#-][ \t]*){3,}\r?$", ""),
    (r"(?m)^[ \t]*(?:```|~~~)[^\n]*$", ""),
    (r"!?\[([^\]\n]{1,300})\]\((?:[^()\s]|\([^()\s]*\))+(?:\s+\"[^\"\n]*\")?\)", r"\1"),
    (r"(?<![\w\])])\[([^\]\n]{3,200})\]\[[\w -]{0,40}\]", r"\1"),
    (r"(?<!\S)==(?=\S)([^=\n]+)(?<=\S)==(?![\w=])", r"\1"),
    (
        r"`[^`\n]+`",
        lambda m: re.sub(
            r"(?<![\w/.~:-])[A-Za-z][\w-]+(?:/[A-Za-z][\w-]+)+(?![\w/.@])", _path, m[0]
        ),
    ),
    (r"(?<![\w*])(\*\*\*?)(?=[^\s*])([^*\n]{1,300})(?<=\S)\1(?![\w*])", r"\2"),
    (r"(?<=\w)`/`(?=[\w-])", "` or `"),
    (r"(?<![\w/])([ru])/(?=[A-Za-z]\w{2})", r"\1 slash "),
    (r"(?i)<sup>\s*(-?\d{1,3})\s*</sup>", r"^\1"),
    (r"(?i)(?<=\d)<sup>\s*(st|nd|rd|th)\s*</sup>", r"\1"),
    (r"<((?:mailto:)?[^\s<>@]+@[^\s<>]+|(?:https?|ftp)://[^\s<>]+)>", r" \1 "),
    (rf"(?i)</?(?:{'|'.join((*_TAGS, *_SPEECH_TAGS))})(?:\s[^<>\n]*=[^<>\n]*|\s\w+)?\s?/?>", " "),
    (r"(?s)<!--.*?-->", " "),
    (r"(?<!\w)<(/?[A-Za-z][\w./ +-]*)>|<(/?[A-Za-z][\w./+-]*)>", r" \1\2 "),
    (r"&(?:nbsp|#160);", " "),
    (r"&(?:amp|#38);", "&"),
    (r"&(?:lt|#60);", "<"),
    (r"&(?:gt|#62);", ">"),
    (r"&(?:quot|#34);", '"'),
    (r"(?<!\S)<3(?=\s*(?:[.!?,)]|$))", " love "),
    (r"(?<!\S)[:;=][-'^o]?[)(DPpOo/\\|*3\]\[](?=[\s.!?,]|$)", " "),
    (r"(?<!\S)(?:\^_+\^|[xX]D|[oO]_[oO]|T_T|-_-)(?!\S)", " "),
)
_EMOJI = (
    r"[\U0001F000-\U0001FAFF\u2600-\u27BF\u2B05-\u2B55\u231A\u231B\u23E9-\u23FA]"
    r"[\U0001F3FB-\U0001F3FF\uFE0F\u20E3\u200D]*"
)
_EMOJIS = rf"(?:{_EMOJI}\s*)+"
_RULES = rules(
    (r"(?m)^[ \t]*#{1,6}[ \t]+(.*)$", r"\1."),
    (r"\s(?P<line>[=#~*])(?P=line){3,}\s", ", "),
    (r"(?P<sign>[=&#$%@|~])(?P=sign)+", r"\g<sign>"),
    (
        r"(?P<sign>[^\w\s^.,?!;:'\"()\[\]{}-]|[\u00b2\u00b3\u00bc-\u00be])(?:\s?(?P=sign)){4,}",
        r"\g<sign>",
    ),
    (r"(?<![.!?:;,\s])[ \t]*\n\s*(?=(?:[-*•]|\d{1,2}[.)])[ \t])", ".\n"),
    (r"(?m)^[ \t]*[-*•][ \t]+", ""),
    (r"(?m)^[ \t]*>(?:[ \t>]+|$)", ""),
    (rf"(?P<emoji>{_EMOJI})(?:\s*(?P=emoji))+", r"\g<emoji>"),
)
_DECORATION = re.compile(rf"(?<=[.!?,;:]) *{_EMOJIS}|{_EMOJIS}(?=[.!?,;:]|$)|^\s*{_EMOJIS}", re.M)


def without_markup(text: str) -> str:
    """The text without what nobody would read out. Emoji go where they stand beside a sentence, and
    stay inside one; a text of nothing else stays as it is.
    """
    text = _lines_joined(apply(_RULES, text))
    plain = _DECORATION.sub(" ", text)
    return plain if re.search(r"\w", plain) else text


def unwrapped(text: str) -> str:
    """The text without what is there for a program alone: links, tags, code fences, emoticons.
    First of all steps, as the others take their signs for their own."""
    text = _tables_and_lists(formulas_to_words(text))
    return apply(_WRAPPING, text)
