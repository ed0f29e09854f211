"""Figures that name rather than count: telephones, versions, addresses of machines, models, hashes.
`NAMES` come before dates and money, `CALLS` after them. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.cardinals import cardinal, digits, integer, pairs, spelled
from moss_engine.text.spoken.dates import Rule

MAX_SPELLED = 40
"""Characters of a code that are read out; of a longer one only their number is said."""

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


def say_code(text: str) -> str:
    """A run of letters and figures without a meaning, group by group; only the length of a long
    one."""
    groups = re.findall(r"[A-Za-z0-9]+", text)
    size = sum(map(len, groups))
    if size > MAX_SPELLED:
        return f"a code of {cardinal(size)} characters"
    cut = [part for group in groups for part in re.findall(r".{1,4}", group)]
    return ", ".join(map(spelled, cut))


def _hexadecimal(m: re.Match[str]) -> str:
    return f"zero X {say_code(m['digits'])}" if m["digits"] else m[0]


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


NAMES: tuple[Rule, ...] = (
    (
        re.compile(r"(?<![\w./-])(?:24/7/365|24/7|50/50|20/20|9/11)(?![\w/-]|\.\d)"),
        lambda m: " ".join(map(integer, m[0].split("/"))),
    ),
    (
        re.compile(rf"\b(?P<verb>{_CALL}\s+)(?P<number>[2-9]11|112|999|988)(?![\w,.:%-]*\d)\b"),
        lambda m: m["verb"] + digits(m["number"]),
    ),
    (re.compile(r"(?<![\w.,$€£-])(?<!Porsche )911(?![\w%]|[,.:-]\d)"), lambda m: digits(m[0])),
    (
        re.compile(
            r"(?<![\w.])(?P<parts>(?:25[0-5]|2[0-4]\d|1?\d?\d)"
            r"(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3})"
            r"(?::(?P<port>\d+))?(?![\w.]*\d)"
        ),
        _network,
    ),
    (re.compile(r"\b1-(?P<area>[2-9]\d\d)-(?P<name>[A-Z]+(?:-[A-Z]+)*)\b"), _named_telephone),
    (
        re.compile(
            r"(?<![\w.-])(?=[0-9a-fA-F:-]*[a-fA-F])(?=[0-9a-fA-F:-]*\d)[0-9a-fA-F]{2,}"
            r"(?:[:-][0-9a-fA-F]{2,}){3,}(?![\w-])"
        ),
        lambda m: say_code(m[0]),
    ),
    (re.compile(r"(?<![\w-])\d{1,5}(?:-\d{1,8}){3,}(?:-[\dX])?(?![\w-])"), _telephone),
    (re.compile(r"\b0[xX](?P<digits>[0-9a-fA-F]+)\b"), _hexadecimal),
    (
        re.compile(r"#(?=[0-9a-fA-F]*\d)(?P<digits>[0-9a-fA-F]{6}|[0-9a-fA-F]{8})\b"),
        lambda m: f"hash {say_code(m['digits'])}",
    ),
    (
        re.compile(
            r"(?<![\w.-])(?=[0-9a-f]*\d[0-9a-f]*\d)(?=[0-9a-f]*[a-f][0-9a-f]*[a-f])"
            r"[0-9a-f]{7,}(?![\w-])"
        ),
        lambda m: say_code(m[0]),
    ),
    (re.compile(r"\b802\.(?P<number>\d+)(?P<kind>[a-z]{0,2})\b"), _wireless),
    (re.compile(r"\b(?P<name>[A-Z]{1,4})\.(?P<number>\d{1,4})\b(?!\.\d)"), _standard),
    (
        re.compile(
            rf"(?P<name>{_IDENTITY})(?P<number>(?!\d*000\b)\d{{5,}}|\d{{3,8}}(?:[ -]\d{{3,8}})+)"
            r"(?![\w,.%/-]*\d|\s[a-z]{3,}s\b)"
        ),
        _identity,
    ),
    (
        re.compile(
            r"(?P<name>(?i:\b(?:pin|otp|passcode)(?:\scode)?(?:\sis|\swas)?:?\s))"
            r"(?P<number>\d{4})(?![\w,.-]*\d)"
        ),
        _identity,
    ),
    (
        re.compile(r"(?<![\w-])(?=[A-Z\d]*\d[A-Z]+\d)[A-Z\d]{8,40}(?![\w-])"),
        lambda m: say_code(m[0]),
    ),
    (re.compile(r"(?P<name>\bISSN:?\s)(?P<number>\d{4}-\d{3}[\dX])\b"), _identity),
    (re.compile(r"\b40(?P<number>[13])\s?\(?(?P<kind>[kb])\b\)?"), _pension),
    (
        re.compile(rf"\b(?P<name>{_RELEASED}\s\d{{1,2}})/(?=\d{{1,2}}(?![\w./]))"),
        lambda m: f"{m['name']} or ",
    ),
    (re.compile(rf"\b(?P<name>{_RELEASED})\s(?P<parts>\d+(?:\.\d+)+)(?![\w%]|\.\d)"), _released),
)
CALLS: tuple[Rule, ...] = (
    (
        re.compile(
            r"(?<![\w.,])(?:\(\d{3}\)\s?\d{3}[ -]\d{4}|\d{3}\.\d{3}\.\d{4}|"
            r"\+\d{1,3}\s?\(\d{2,4}\)\s?\d{3}[ -]?\d{3,4}|\+?\d{1,3}[ -]\(\d{3}\)\s?\d{3}[ -]\d{4}|"
            r"\+?(?:\d{1,4}[ -])?\d{3}[ -]\d{3,4}[ -]\d{4}|\d{3}-\d{4}|"
            r"(?:\+\d{1,3}|0\d{2,4})(?:[ /-]\d{2,8}){1,5})(?![\d-])"
        ),
        _telephone,
    ),
    (
        re.compile(rf"\b(?P<name>{_NUMBERED}\s)(?P<number>[1-9]\d{{2,3}})(?![\w,]*\d|\.\d|%)"),
        lambda m: m["name"] + pairs(int(m["number"])),
    ),
    (
        re.compile(r"(?<=[A-Za-z])-?(?P<number>[1-9]\d{2})(?![\w%]|[.,:]\d)"),
        lambda m: " " + pairs(int(m["number"])),
    ),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)|(?<=[A-Z])/(?=\d)"), lambda m: " "),
    (
        re.compile(r"\b(?P<name>(?:Listing|Figure|Table|Example|Form)\s\d+)-(?=\d)"),
        lambda m: m["name"] + " ",
    ),
    (re.compile(r"(?<=\d)-(?=[A-Z]{1,2}\b)"), lambda m: " "),
)
