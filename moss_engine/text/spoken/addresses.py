"""Web and mail addresses, paths and file names in text -> the words said for them; the figures
stay. Pure."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.)[^\s<>\"]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w@.])[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|io|ai|dev|co|uk|de|fr|info)\b"
    r"(?:/[^\s<>\"]*)?"
    r"|(?<![\w/.])(?:[~.]{1,2}(?:/[\w.-]+)+|(?:/[\w.-]+){2,})/?|\b[A-Za-z]:\\[^\s<>\"]*",
    re.A,
)
_FILE_DOT = re.compile(
    r"(?<=[A-Za-z0-9_]{2})\.(?=[a-z_]\w+)|(?<=[A-Za-z_]{2})\.(?=[a-z]\b(?!\.))"
    r"|(?<=[\])])\.(?=[a-z_]\w+)|(?<=[A-Za-z_])\.(?=[A-Z]\w*\()"
    r"|(?<![\w.][A-Z])(?<=[A-Z])\.(?=[a-z]\b(?!\.)|_)"
    r"|(?<![\w.'-][a-z])(?<=[a-z])\.(?=[a-z]{3,})"
)
_SIGNS = {
    ".": " dot ",
    "/": " slash ",
    "\\": " backslash ",
    "@": " at ",
    "-": " dash ",
    "_": " underscore ",
    ":": " colon ",
    "?": " question mark ",
    "=": " equals ",
    "&": " and ",
    "#": " hash ",
    "%": " percent ",
    "+": " plus ",
    "~": " tilde ",
}


def addresses_to_words(text: str) -> str:
    """Every sign of an address or path written out; a scheme and "www" are left away."""
    return _FILE_DOT.sub(" dot ", _ADDRESS.sub(_say_address, text))


def _say_address(m: re.Match[str]) -> str:
    address = m[0].rstrip(".,;:!?)]}'")
    tail = m[0][len(address) :]
    address = re.sub(r"^(?:https?|ftp)://", "", address).rstrip("/")
    address = address.removeprefix(
        "www."
    )  # said by nobody, and three times the same letter is easily miscounted
    words = "".join(_SIGNS.get(c, c) for c in address)
    return " " + re.sub(r"\d", lambda d: f" {d[0]} ", words) + tail
