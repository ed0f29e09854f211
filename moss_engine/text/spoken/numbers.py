"""Figures in English text -> the words said for them, from the most special form to the plainest:
those that name rather than count (telephones, versions, models, hashes), and all others. Pure.
Roman numerals, too."""

from __future__ import annotations

import re
from functools import partial

from moss_engine.text.spoken import dates, units
from moss_engine.text.spoken.cardinals import (
    BEFORE_FIGURE,
    amount,
    cardinal,
    digits,
    integer,
    ordinal,
    pairs,
    spelled,
)
from moss_engine.text.spoken.rules import Rule, Said, after, apply, before, rules
from moss_engine.text.spoken.tables import CHAT_FIGURES, PER, WHOLE_UNITS
from moss_engine.text.spoken.units import CURRENCY, NUMBER, UNIT, is_unit, of_unit

_MAX_SPELLED = 40
"""Characters of the longest code that is spelt out; of a longer one only their number is said."""

_NUMBERED = (
    r"(?i:boeing|airbus|flight|room|route|highway|interstate|suite|apartment|apt\.?|bus|gate|"
    r"error|status|code|http|port|building|channel|model|hwy\.?|ste\.?|rtx|gtx)"
)
_RELEASED = (
    r"(?:[Vv]ersions?|[Rr]eleases?|Python|Java|Perl|Ruby|PHP|Debian|Ubuntu|Fedora|Windows|macOS|"
    r"iOS|Android|Linux|GCC|Clang|CUDA|PyTorch|TensorFlow|NumPy|Firefox|Chrome|Gradio|Node|"
    r"Bluetooth|USB|HDMI|HTTP|TLS|OpenGL|GPL|GPT|PCIe)"
)
_THREES = re.compile(r"\d{4}$|\d{1,3}")
_IDENTITY = (
    r"(?i:\b(?:code|pin|otp|id|passcode|password|account|membership|confirmation|ticket|tracking|"
    r"serial|routing|invoice|order)(?:\s(?:number|no\.?|code|id|#))?(?:\sis|\swas)?:?\s#?)"
)
_CALL = r"(?i:call(?:ed|ing|s)?|dial(?:l?ed|l?ing|s)?|phoned?|ring)"


def _telephone(m: re.Match[str]) -> str:
    return ("plus " if m[0][0] == "+" else "") + ", ".join(
        digits(part) for part in re.findall(r"\d+", m[0])
    )


def _named_telephone(m: re.Match[str]) -> str:
    area = m["area"]
    said = f"{cardinal(int(area[0]))} hundred" if area.endswith("00") else digits(area)
    return f"one, {said}, {m['name'].replace('-', ' ').capitalize()}"


def _released(m: re.Match[str]) -> str:
    parts = (
        digits(part) if part[0] == "0" and part != "0" else cardinal(int(part))
        for part in m["parts"].split(".")
    )
    return f"{m['name']} {' point '.join(parts)}"


def _network(m: re.Match[str]) -> str:
    port = f", port {pairs(int(m['port']))}" if m["port"] and len(m["port"]) < 6 else ""
    return " dot ".join(digits(part) for part in m["parts"].split(".")) + port


def _say_code(text: str) -> str:
    """A meaningless run of letters and figures, group by group; of a long one only its length."""
    groups = re.findall(r"[A-Za-z0-9]+", text)
    size = sum(map(len, groups))
    if size > _MAX_SPELLED:
        return f"a code of {cardinal(size)} characters"
    cut = [part for group in groups for part in re.findall(r".{1,4}", group)]
    return ", ".join(map(spelled, cut))


def _hexadecimal(m: re.Match[str]) -> str:
    return f"zero X {_say_code(m['digits'])}" if m["digits"] else m[0]


def _standard(m: re.Match[str]) -> str:
    """ASN.1, X.509, H.264: a name whose dot nobody says."""
    number = m["number"]
    said = digits(number) if len(number) > 2 else cardinal(int(number))
    return f"{m['name']} {said}"


def _wireless(m: re.Match[str]) -> str:
    return f"eight oh two point {cardinal(int(m['number']))} {spelled(m['kind'])}".rstrip()


def _identity(m: re.Match[str]) -> str:
    """What is typed digit by digit: a verification code, the number of an account."""
    groups = (part for group in re.findall(r"\d+", m["number"]) for part in _THREES.findall(group))
    return m["name"] + ", ".join(map(digits, groups))


def _pension(m: re.Match[str]) -> str:
    return f"four oh {cardinal(int(m['number']))} {m['kind'].upper()}"


_NAMES = rules(
    (
        r"(?<![\w./-])(?:24/7/365|24/7|50/50|20/20|9/11)(?![\w/-]|\.\d)",
        lambda m: " ".join(map(integer, m[0].split("/"))),
    ),
    (rf"\b({_CALL}\s+)([2-9]11|112|999|988)(?![\w,.:%-]*\d)\b", lambda m: m[1] + digits(m[2])),
    (r"(?<![\w.,$€£-])(?<!Porsche )911(?![\w%]|[,.:-]\d)", lambda m: digits(m[0])),
    (
        r"(?<![\w.])(?P<parts>(?:25[0-5]|2[0-4]\d|1?\d?\d)"
        r"(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3})"
        r"(?::(?P<port>\d+))?(?![\w.]*\d)",
        _network,
    ),
    (r"\b1-(?P<area>[2-9]\d\d)-(?P<name>[A-Z]+(?:-[A-Z]+)*)\b", _named_telephone),
    (
        r"(?<![\w.-])(?=[0-9a-fA-F:-]*[a-fA-F])(?=[0-9a-fA-F:-]*\d)[0-9a-fA-F]{2,}"
        r"(?:[:-][0-9a-fA-F]{2,}){3,}(?![\w-])",
        lambda m: _say_code(m[0]),
    ),
    (r"(?<![\w-])\d{1,5}(?:-\d{1,8}){3,}(?:-[\dX])?(?![\w-])", _telephone),
    (r"\b0[xX](?P<digits>[0-9a-fA-F]+)\b", _hexadecimal),
    (r"#(?=[0-9a-fA-F]*\d)([0-9a-fA-F]{6}|[0-9a-fA-F]{8})\b", lambda m: f"hash {_say_code(m[1])}"),
    (
        r"(?<![\w.-])(?=[0-9a-f]*\d[0-9a-f]*\d)(?=[0-9a-f]*[a-f][0-9a-f]*[a-f])"
        r"[0-9a-f]{7,}(?![\w-])",
        lambda m: _say_code(m[0]),
    ),
    (r"\b802\.(?P<number>\d+)(?P<kind>[a-z]{0,2})\b", _wireless),
    (r"\b(?P<name>[A-Z]{1,4})\.(?P<number>\d{1,4})\b(?!\.\d)", _standard),
    (
        rf"(?P<name>{_IDENTITY})(?P<number>(?!\d*000\b)\d{{5,}}|\d{{3,8}}(?:[ -]\d{{3,8}})+)"
        r"(?![\w,.%/-]*\d|\s[a-z]{3,}s\b)",
        _identity,
    ),
    (
        r"(?P<name>(?i:\b(?:pin|otp|passcode)(?:\scode)?(?:\sis|\swas)?:?\s))"
        r"(?P<number>\d{4})(?![\w,.-]*\d)",
        _identity,
    ),
    (r"(?<![\w-])(?=[A-Z\d]*\d[A-Z]+\d)[A-Z\d]{8,40}(?![\w-])", lambda m: _say_code(m[0])),
    (r"(?P<name>\bISSN:?\s)(?P<number>\d{4}-\d{3}[\dX])\b", _identity),
    (r"\b40(?P<number>[13])\s?\(?(?P<kind>[kb])\b\)?", _pension),
    (rf"\b(?P<name>{_RELEASED}\s\d{{1,2}})/(?=\d{{1,2}}(?![\w./]))", r"\g<name> or "),
    (rf"\b(?P<name>{_RELEASED})\s(?P<parts>\d+(?:\.\d+)+)(?![\w%]|\.\d)", _released),
)
_CALLS = rules(
    (
        r"(?<![\w.,])(?:\(\d{3}\)\s?\d{3}[ -]\d{4}|\d{3}\.\d{3}\.\d{4}|"
        r"\+\d{1,3}\s?\(\d{2,4}\)\s?\d{3}[ -]?\d{3,4}|\+?\d{1,3}[ -]\(\d{3}\)\s?\d{3}[ -]\d{4}|"
        r"\+?(?:\d{1,4}[ -])?\d{3}[ -]\d{3,4}[ -]\d{4}|\d{3}-\d{4}|"
        r"(?:\+\d{1,3}|0\d{2,4})(?:[ /-]\d{2,8}){1,5})(?![\d-])",
        _telephone,
    ),
    (
        rf"\b{BEFORE_FIGURE}(?P<name>{_NUMBERED}\s)(?P<number>[1-9]\d{{2,3}})(?![\w,]*\d|\.\d|%)",
        lambda m: m["name"] + pairs(int(m["number"])),
    ),
    (r"(?<=[A-Za-z])-?([1-9]\d{2})(?![\w%]|[.,:]\d)", lambda m: " " + pairs(int(m[1]))),
    (r"(?<=[A-Za-z])-(?=\d)|(?<=[A-Z])/(?=\d)", " "),
    (r"\b(?P<name>(?:Listing|Figure|Table|Example|Form)\s\d+)-(?=\d)", r"\g<name> "),
    (r"(?<=\d)-(?=[A-Z]{1,2}\b)", " "),
)


def _said_twice(m: re.Match[str]) -> str:
    """ "ten (10)", "30 (thirty)": once."""
    words, figure = (m[1], m[2]) if m[2].isdigit() else (m[2], m[1])
    said = cardinal(int(figure))
    return words if words.endswith(said) and len(words) >= len(said) else m[0]


_FRACTIONS = {2: ("half", "halves"), 3: ("third", "thirds"), 4: ("quarter", "quarters")}
_POINTS = rules(
    (r"(?<![\w.)])[-−](?=[$€£¥₹]?\.?\d)", "minus "),
    (r"\b([Nn])o\.(?=\d)", r"\1umber "),
    (r"\b(pp?|[Ff]igs?|[Nn]os|[Cc]h|[Vv]ol|Sec|Eqs?)\.(?=\d)", r"\1. "),
    (r"(?<![\w.)])\.(?=\d)", "0."),
    (
        r"\b((?:(?i:order|invoice|tracking|model|part|serial|case|ref|reference|account|phone|"
        r"policy|item|lot|flight|bus|room|house|page|plate|box|issue|patent|ticket|receipt|license|licence|the|his|her|its|their|our)|"
        r"(?!(?:it|that|there|here|what|who|s?he|let)')[a-z]+'s)\s)no\.?\s?(?=\d)",
        r"\1number ",
    ),
    (r"\bno\.\s(?=1\b)", "number "),
    (r"(?<![\w,.])\d{1,2}(?:,\d\d)+,\d{3}(?!,?\d)", lambda m: m[0].replace(",", "")),
    (r"(?<=\d)'(?=\d{3}(?!\d))", ","),
    (r"(?<![\d,.])(\d{1,3}),(\d{1,2})(?=\s?(?:k[gm]|c?m|ha|°C|[lL]|%)(?!\w))", r"\1.\2"),
    (r"(?<![A-Za-z])\$(\d(?:[\d,.]*\d)?)\s?(USD|CAD|AUD)\b", r"\2 \1"),
    (r"(?<![\w$.,])(\d{1,2})/(?=\$\d)", r"\1 for "),
    (r"\bf/(?=\d)", "f "),
    (r"(?<![\w.])(\d{2,3}\.\d)\s?F\b", r"\1 °F"),
    (r"\b[Ss]0?(\d{1,2})\s?:?[Ee]0?(\d{1,2})\b", r"Season \1, Episode \2"),
    (r"\b([a-z]+(?:[ -][a-z]+){0,3})\s\((\d{1,4})\)", _said_twice),
    (r"(?<![\w.,])(\d{1,4})\s\(([a-z]+(?:[ -][a-z]+){0,3})\)", _said_twice),
    (
        r"(?<![\d-])(?<!\d\s)([1-9]\d{0,2})((?:\s000)+)(?!\s?[\d-])",
        lambda m: m[0].replace(" ", ","),
    ),
    (r"(?:(?<=\d)|(?<=\d[snrt][tdh]))-(to|in|on|by|for|and|or|of)-(?=\d)", r" \1 "),
    (r"(?<![\d/])(\d{1,2}/(?:[2348]|16))\s?-\s?(?=\d{1,2}/(?:[2348]|16)(?![\d/]))", r"\1 to "),
    (r"(?<![\w-])(\d{1,3})-(\d{1,3})-(\d{1,3})(?![\w/-])", r"\1, \2, \3"),
    (r"(?<=\d/[2348])\s[cC]\b\.?(?=\s[a-z])", " cup"),
    (r"(?<![\w.,/])1\s[cC]\.(?=\s[a-z])", "1 cup"),
    (r"(?<![\w.,/])(\d{1,2})\s[cC]\.(?=\s[a-z])", r"\1 cups"),
    (r"(?<=\d[CF])/(?=gas\b)", ", "),
    (r"\b(\d{2,3})\s?([CF])\s?/\s?(?=\d{2,3}\s?[CF]\b)", r"\1 °\2, "),
    (r"(?:(?<=\b[aA]t\s)|(?<=\b[tT]o\s)|(?<=[CF],\s))(\d{3})\s?([CF])(?![\w-]|\s[A-Z])", r"\1 °\2"),
    (r"(?<=\d)[.-](alpha|beta|rc|dev|preview)\.?(?=\d)", r" \1 "),
    (r"(?<=\d)\.x\b", " point X"),
    (r"\b([a-z]+\s)4(?=\s(?:me|u|ur|us|you)\b)", r"\1for"),
    (r"(\b[uU]|^[mM]e|(?<=[.!?,]\s)[mM]e)\s2(?=\s*(?:[.!?,]\s|[.!?,]*$))", r"\1 too"),
    (r"\b([A-Z]{1,2})(\d{1,4})-(?=\1\d)", r"\1\2 to "),
    (r"#(?=[A-Z]{1,5}-\d|[A-Z]{1,2}\d{3})", "number "),
    (r"(?<![\w.])b\.\s?(?=[12]\d{3}\b)", "born "),
    (r"(?<![\w.])d\.\s?(?=[12]\d{3}\b)", "died "),
    (rf"(?<![\w'-])({'|'.join(CHAT_FIGURES)})(?![\w'-])", lambda m: CHAT_FIGURES[m[1]]),
)
"""Signs before figures that would be lost, or taken for the point of a decimal: ".5", "p.5"."""
_BY = "|".join(sorted(map(re.escape, (*PER, *WHOLE_UNITS, "ea", "each")), key=len, reverse=True))
_RATE = re.compile(
    rf"(?<![\w.,/])(?P<much>(?:{CURRENCY})?\s?\d(?:[\d,.]{{0,15}}\d)?[kKmMbB]?"
    rf"\s?(?P<of>{UNIT}|[%¢€£]|[a-z]{{1,20}})?)\s?/\s?(?P<by>{_BY})\b(?!/)(?:\.(?=\s[a-z]))?"
)
_AFTER = r"(?P<before>(?i:\b(?:after|every|for|under|wait|within|default:|to|about)\s+|[~=]))"
_COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m["top"]), int(m["bottom"])
    whole = f"{cardinal(int(m['whole']))} and " if m["whole"] else ""
    if top + bottom == 100:  # a split of 60/40
        return f"{whole}{cardinal(top)} {cardinal(bottom)}"
    if bottom == 100 and 1 < top < 100:
        return f"{whole}{cardinal(top)} out of one hundred"
    if not 2 <= bottom <= 20 or not 1 <= top < 100:
        return f"{whole}{cardinal(top)} over {cardinal(bottom)}"
    one, many = _FRACTIONS.get(bottom) or (ordinal(bottom), ordinal(bottom) + "s")
    if whole and top == 1:
        return f"{whole}{'an' if bottom in (8, 11, 18) else 'a'} {one}"
    return f"{whole}{cardinal(top)} {one if top == 1 else many}"


def _part_of(m: re.Match[str]) -> str:
    """ "3/4 km", but "50/60 Hz" and "120/80 mmHg"."""
    top, bottom = int(m["top"]), int(m["bottom"])
    if bottom <= 20 or top == 1:
        return of_unit(_fraction(m), m["unit"])
    return f"{cardinal(top)} {'over' if top > bottom else 'or'} {bottom} {m['unit']}"


def _coordinate(m: re.Match[str]) -> str:
    minutes = f" {cardinal(int(m['minutes']))} minutes" if m["minutes"] else ""
    return f"{amount(m['degrees'])} degrees{minutes} {_COMPASS[m['side']]}"


def _range(m: re.Match[str]) -> str:
    """3-5 is a range, 4-1 and 112-98 a score, 747-400 a name."""
    low, high = (float(m[name].replace(",", "")) for name in ("low", "high"))
    named = before(m, 1).isalpha()
    is_score = high < low and (low < 100 or (low < 600 and high > low / 2 and not named))
    is_range = low < high or is_score
    if named and high >= 100 * low:  # i7-13700
        return f"{m['low']} "
    return f"{m['low']} to " if is_range else f"{m['low']} "


def _out_of(m: re.Match[str]) -> str:
    return f"{amount(m['top'])} out of {cardinal(int(m['bottom']))}"


def _rate(m: re.Match[str]) -> str:
    by = m["by"]
    if is_unit(f"{m['of']}/{by}") or (m["of"], by) == ("day", "night"):
        return m[0]
    return f"{m['much']} {'each' if by in ('ea', 'each') else f'per {PER.get(by, by)}'}"


_DURATIONS = rules(
    # Beside hours or seconds an m is minutes, and 20s are no decade.
    (r"\b(?P<h>\d{1,3})\s?h\s?(?P<m>\d{1,2})\s?m\b", r"\g<h> h \g<m> min"),
    (r"\b(?P<m>\d{1,2})(?: min|\s?m)\s?(?P<s>\d{1,2})s\b", r"\g<m> min \g<s> sec"),
    (  # but "for 60s music"
        rf"{_AFTER}(?P<s>10|(?:[2-9]|1\d)0(?!s\s[a-z]))s\b",
        r"\g<before>\g<s> sec",
    ),
)


def _apart(m: re.Match[str], said: Said) -> str:
    """With spaces between the words and letters or figures that touched the match."""
    words = said(m) if callable(said) else m.expand(said)
    if words == m[0]:
        return words
    opens = before(m, 1).isalnum() and not words.startswith(" ")
    closes = after(m, 1).isalnum() and not words.endswith(" ")
    return f"{' ' * opens}{words}{' ' * closes}"


def _all_apart(*table: Rule) -> tuple[Rule, ...]:
    return tuple(rule._replace(said=partial(_apart, said=rule.said)) for rule in table)


_RULES = _all_apart(
    *rules(
        (
            r"(?<![\w.])(?P<degrees>\d{1,3}(?:\.\d+)?)\s?°\s?(?:(?P<minutes>\d{1,2})['\u2032]\s?)?"
            r"(?:\d{1,2}(?:\.\d+)?(?:[\"\u2033]|'')\s?)?(?P<side>[NSEW])\b",
            _coordinate,
        ),
        *_NAMES,
        (_RATE, _rate),
        (
            rf"(?P<much>(?:{CURRENCY})\s?\d(?:[\d,.]{{0,15}}\d)?[kKmMbB]?)\s?/\s?"
            r"(?P<by>[a-z]{3,20}\b(?!/)|\d{1,3}(?:[kKM]|,000)?(?=\s[a-z]))",
            r"\g<much> per \g<by>",
        ),
        *_DURATIONS,
        *dates.RULES,
        *units.MONEY,
        *_CALLS,
        (r"(?P<top>\d{1,2}(?:\.\d)?)\s?/\s?(?P<bottom>5|10)(?=\s+(?:stars|points)\b)", _out_of),
        (
            r"(?P<before>\b(?i:rat(?:e|es|ed|ing)|scor(?:e|es|ed|ing)|g[ai]ves?|given|solid)"
            r"(?::|(?:\s[A-Za-z']{1,20}){0,3})\s)(?P<top>\d{1,3})/(?P<bottom>5|10|20|50|100)"
            r"(?![\w/%]|\.\d|\sof\b)",
            lambda m: m["before"] + _out_of(m),
        ),
        (
            r"(?<![\w.,/])(?P<top>\d\.\d{1,2}|10(?=/10)|5(?=/5))/(?P<bottom>5|10)(?![\w/%]|\.\d)",
            _out_of,
        ),
        (
            r"(?<![\d/.,])(?:(?P<whole>\d+)(?:\s+|-(?=\d{1,2}/(?:2|3|4|8|16)(?!\d))))?"
            r"(?P<top>\d{1,4})\s?/\s?(?P<bottom>\d{1,4})(?![\d/])"
            rf"(?:\s?(?P<unit>{UNIT})(?![\w°²³/])(?:\.(?=\s[a-z]))?)?",
            lambda m: _part_of(m) if m["unit"] else _fraction(m),
        ),
        (
            r"(?<![\d.-])(?<!\d,)(?P<low>\d[\d,]*(?:\.\d+)?)\s?-\s?"
            r"(?=(?P<high>\d(?:,?\d)*(?:\.\d+)?)(?![\d-]))",
            _range,
        ),
        (r"(?<![\w.])(?P<one>\d{1,3}):(?=\d{1,3}(?!\w|\.\d))", r"\g<one> to "),
        (
            r"(?<![\w.])\d{1,3}(?:\.\d{3}){2,}(?![\w.])",
            lambda m: cardinal(int(m[0].replace(".", ""))),
        ),
        (r"\d+(?:\.\d+){2,}", lambda m: " point ".join(integer(part) for part in m[0].split("."))),
        *units.MEASURES,
        (
            rf"(?<![\w.,])(?P<amount>{NUMBER})x\b(?!\s*[-+*/=^]|\s+(?:plus|minus|equals)\b)",
            lambda m: f"{amount(m['amount'])} times",
        ),
        (r"\b(\d[1-9])ers\b", lambda m: f"{cardinal(int(m[1])).removesuffix('e')}ers"),
        (
            r"(?i)(?<!\d)(?P<value>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b",
            lambda m: ordinal(int(m["value"].replace(",", ""))),
        ),
        (r"(?P<amount>\d{1,3}(?:,\d{3})+\.\d+|\d*\.\d+)", lambda m: amount(m["amount"])),
        (r"\d{1,3}(?:,\d{3})+(?!\d)|\d+", lambda m: integer(m[0])),
    )
)


_WITHOUT_FIGURES = _all_apart(*dates.NOON, *units.ALONE)
"""Rules that match in a text without figures."""


def numbers_to_words(text: str) -> str:
    """Every figure in `text` written out; the result holds no ASCII digit."""
    has_figures = re.search(r"\d", text)
    text = apply(_POINTS, text) if has_figures else text
    return apply(_RULES if has_figures else _WITHOUT_FIGURES, text)


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
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50}


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


ROMANS = rules(
    (
        r"(?P<names>\b(?:Wars|Parts|Volumes|Vols\.|Chapters|Books|Acts|Types|Phases|Articles|Titles))"
        r"\s(?P<one>[IVXL]{1,6})(?P<join>,?\s(?:and|or|to)\s|\s?[-&]\s?)(?P<other>[IVXL]{1,6})\b",
        _many,
    ),
    (r"\b([IVX]{1,5})(?:th|st)?(?=\s(?:century|centuries)\b)", lambda m: ordinal(_value(m[1]))),
    (rf"\b(?P<name>{_COUNTED}|{_RULERS})\s+{_ROMAN}", _named),
    (rf"(?<=[a-z])\s(?=[IVXL]{{2}})(?!XL\b){_ROMAN}", _after_name),
    (r"\b(?:III|VII|VIII|XII|XIII|XIV|XVI|XVII|XVIII|XIX|XXI)\b", lambda m: cardinal(_value(m[0]))),
)
"""Numerals after a name ("Henry VIII", "Rocky IV") and those that can be nothing else."""
