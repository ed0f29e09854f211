"""What stands in a text for the eye or for a program alone: links, tags, headings, lines, list
marks, emoji. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.layout.formulas import formulas_to_words
from moss_engine.text.spoken.layout.lines import lines_joined, tables_and_lists


def _path(m: re.Match[str]) -> str:
    return m[0].replace("/", " slash ")


_TAGS = (
    "a abbr article b big blockquote body br button center code dd details div dl dt em fieldset "
    "figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input kbd label "
    "li link main mark meta nav ol option p pre q s script section select small span strong style "
    "sub summary sup svg table tbody td textarea th thead title tr u ul video audio var"
).split()
_SPEECH_TAGS = "break emphasis lang phoneme prosody say-as speak voice".split()
_WRAPPING = (
    (re.compile(r"^[ \t]*(?:[=*_-][ \t]*){3,}\r?$", re.M), ""),
    (re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.M), ""),
    (re.compile(r"!?\[([^\]\n]+)\]\((?:[^()\s]|\([^()\s]*\))+(?:\s+\"[^\"\n]*\")?\)"), r"\1"),
    (re.compile(r"(?<![\w\])])\[([^\]\n]{3,200})\]\[[\w -]{0,40}\]"), r"\1"),
    (re.compile(r"(?<!\S)==(?=\S)([^=\n]+)(?<=\S)==(?![\w=])"), r"\1"),
    (
        re.compile(r"`[^`\n]+`"),
        lambda m: re.sub(
            r"(?<![\w/.~:-])[A-Za-z][\w-]+(?:/[A-Za-z][\w-]+)+(?![\w/.@])", _path, m[0]
        ),
    ),
    (re.compile(r"(?<![\w*])(\*\*\*?)(?=[^\s*])([^*\n]{1,300})(?<=\S)\1(?![\w*])"), r"\2"),
    (re.compile(r"(?<=\w)`/`(?=[\w-])"), "` or `"),
    (re.compile(r"(?<![\w/])([ru])/(?=[A-Za-z]\w{2})"), r"\1 slash "),
    (re.compile(r"<sup>\s*(-?\d{1,3})\s*</sup>", re.I), r"^\1"),
    (re.compile(r"(?<=\d)<sup>\s*(st|nd|rd|th)\s*</sup>", re.I), r"\1"),
    (re.compile(r"<((?:mailto:)?[^\s<>@]+@[^\s<>]+|(?:https?|ftp)://[^\s<>]+)>"), r" \1 "),
    (
        re.compile(
            rf"</?(?:{'|'.join((*_TAGS, *_SPEECH_TAGS))})(?:\s[^<>\n]*=[^<>\n]*|\s\w+)?\s?/?>", re.I
        ),
        " ",
    ),
    (re.compile(r"<!--.*?-->", re.S), " "),
    (re.compile(r"<(/?[A-Za-z][\w./ +-]*)>"), r" \1 "),
    (re.compile(r"&(?:nbsp|#160);"), " "),
    (re.compile(r"&(?:amp|#38);"), "&"),
    (re.compile(r"&(?:lt|#60);"), "<"),
    (re.compile(r"&(?:gt|#62);"), ">"),
    (re.compile(r"&(?:quot|#34);"), '"'),
    (re.compile(r"(?<!\S)<3(?=\s*(?:[.!?,)]|$))"), " love "),
    (re.compile(r"(?<!\S)[:;=][-'^o]?[)(DPpOo/\\|*3\]\[](?=[\s.!?,]|$)"), " "),
    (re.compile(r"(?<!\S)(?:\^_+\^|[xX]D|[oO]_[oO]|T_T|-_-)(?!\S)"), " "),
)
_EMOJI = (
    r"[\U0001F000-\U0001FAFF\u2600-\u27BF\u2B05-\u2B55\u231A\u231B\u23E9-\u23FA]"
    r"[\U0001F3FB-\U0001F3FF\uFE0F\u20E3\u200D]*"
)
_EMOJIS = rf"(?:{_EMOJI}\s*)+"
_RULES = (
    (re.compile(r"^[ \t]*#{1,6}[ \t]+(.*)$", re.M), r"\1."),
    (re.compile(r"\s(?P<line>[=#~*])(?P=line){3,}\s"), ", "),
    (re.compile(r"(?P<sign>[=&#$%@|~])(?P=sign)+"), r"\g<sign>"),
    (re.compile(r"(?<![.!?:;,\s])[ \t]*\n\s*(?=(?:[-*•]|\d{1,2}[.)])[ \t])"), ".\n"),
    (re.compile(r"^[ \t]*[-*•][ \t]+", re.M), ""),
    (re.compile(r"^[ \t]*>(?:[ \t>]+|$)", re.M), ""),
    (re.compile(rf"(?P<emoji>{_EMOJI})(?:\s*(?P=emoji))+"), r"\g<emoji>"),
)
_DECORATION = re.compile(rf"(?<=[.!?,;:]) *{_EMOJIS}|{_EMOJIS}(?=[.!?,;:]|$)|^\s*{_EMOJIS}", re.M)


def without_markup(text: str) -> str:
    """The text without what nobody would read out. Emoji go where they stand beside a sentence, and
    stay inside one; a text of nothing else stays as it is.
    """
    for pattern, said in _RULES:
        text = pattern.sub(said, text)
    text = lines_joined(text)
    plain = _DECORATION.sub(" ", text)
    return plain if re.search(r"\w", plain) else text


def unwrapped(text: str) -> str:
    """The text without what is there for a program alone: links, tags, code fences, emoticons.
    First of all steps, as the others take their signs for their own."""
    text = tables_and_lists(formulas_to_words(text))
    for pattern, said in _WRAPPING:
        text = pattern.sub(said, text)
    return text
