"""The page's document: its title and preview, the page in its own style, and its modules. What is
asked before these are there, `first.js` keeps."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moss_engine.ui.parts.words import WHAT

HERE = Path(__file__).resolve().parent
TITLE = "MOSS-Speech Live"
CHINESE, PICTURE = "chinese.json", "preview.jpg"
DRESSED = {  # parts of the page, and the style sheets whose rules are nested under them
    "page": "page", "live": "live_audio", "recorder": "recorder", "chat": "transcript",
    "panel": "panel",
}  # fmt: skip
TYPES = {".json": "application/json", ".jpg": "image/jpeg"}
SCRIPT = "text/javascript"
COMMENT = re.compile(r"(?m)^[ \t]*//.*\n|^[ \t]+|(?<=[;{},)\]]) // [^\"'`\n]*$")
LATER = ("panel.js", "player_worklet.js", "recorder_worklet.js", "voice_sample.js")  # when wanted


@dataclass(frozen=True)
class Document:
    """`files` are answered by path: kind and body. `at` makes the page's document, for the address
    under which it is found."""

    files: Mapping[str, tuple[str, bytes]]
    at: Callable[[str], bytes]


def make_document(page: str) -> Document:
    """The document of a page, which is HTML."""
    own = dict(map(own_file, (CHINESE, PICTURE)))
    styles, picture = styles_of_page(), own_file(PICTURE)[0]
    first = _without_comments(HERE / "first.js")
    begin = f'import {{ begin }} from "./{address("page.js")}"; begin();'
    ahead = "".join(
        f'<link rel="modulepreload" href="{address(name)}">'
        for name in modules()
        if name not in LATER
    )

    def at(root: str) -> bytes:
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{preview(root, picture)}{ahead}<style>{styles}</style></head>
<body>{page}<script>{first}</script><script type="module">{begin}</script></body></html>""".encode()

    files = {f"/{name}": (TYPES[Path(name).suffix], body) for name, body in own.items()}
    files |= {f"/{address(name)}": (SCRIPT, body) for name, body in modules().items()}
    return Document(files, at)


@cache
def modules() -> dict[str, bytes]:
    """The page's scripts, which are ES modules, by their names."""
    paths = sorted((HERE / "components").glob("*.js"))
    return {path.name: _without_comments(path).encode() for path in paths}


def address(name: str) -> str:
    """Of a module, relative to the page. They all stand under one that changes with any of them, so
    that browsers may keep them for good."""
    digest = hashlib.blake2b(b"\0".join(modules().values()), digest_size=6).hexdigest()
    return f"assets/live-{digest}/{name}"


def _without_comments(script: Path) -> str:
    """Nor indents."""
    return COMMENT.sub("", script.read_text(encoding="utf-8"))


def own_file(name: str) -> tuple[str, bytes]:
    """Address and content of a file beside this one."""
    body = (HERE / name).read_bytes()
    return _path(name, body), body


def styles_of_page() -> str:
    """The page's style sheets as one."""
    sheet = (HERE / "page.css").read_text(encoding="utf-8")
    for part, name in DRESSED.items():
        rules = (HERE / "components" / f"{name}.css").read_text(encoding="utf-8")
        root = f"#{part}" if part == name else f"#page #{part}"
        sheet += f"{root} {{\n{rules}}}\n"
    return sheet


def _path(name: str, body: bytes) -> str:
    """An address that changes with the file, which may be kept for good then."""
    stem, dot, kind = name.partition(".")
    return f"assets/{stem}-{hashlib.blake2b(body, digest_size=6).hexdigest()}{dot}{kind}"


def preview(root: str, picture: str) -> str:
    """What the page is called, and what links to it show."""
    what, home = html.escape(WHAT), html.escape(root)
    return f"""<title>{TITLE}</title><meta name="description" content="{what}">
<meta property="og:title" content="{TITLE}"><meta property="og:type" content="website">
<meta property="og:url" content="{home}/"><meta property="og:image" content="{home}/{picture}">
<meta property="og:description" content="{what}">
<meta name="twitter:card" content="summary_large_image"><link rel="icon" href="favicon.ico">"""
