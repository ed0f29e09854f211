"""The page's document.

Gradio answers with an empty body, names itself in previews, and asks for its files one after the
other. Here the same document is put in another order: title and preview of this page, the page
itself in its own style and with its own modules, and last Gradio's settings. `first.js` keeps what
is asked before these modules are there.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moss_engine.ui.modules import COMMENT, JOINED, address, modules
from moss_engine.ui.parts.words import WHAT

HERE = Path(__file__).resolve().parent
TITLE = "MOSS-Speech Live"
CHINESE, PICTURE = "chinese.json", "preview.jpg"
DRESSED = {  # parts of the page, and the style sheets whose rules are nested under them
    "page": "page", "live": "live_audio", "recorder": "recorder", "chat": "transcript",
    "panel": "panel",
}  # fmt: skip
TYPES = {".json": b"application/json", ".jpg": b"image/jpeg"}
SCRIPT = b"text/javascript; charset=utf-8"

PREVIEW = re.compile(r'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>')
SETTINGS = re.compile(
    r"<script>window\.gradio_config = (.*?);</script>"
    r"<script>window\.gradio_api_info = .*?;</script>"
)
NO_API = '{"named_endpoints":{},"unnamed_endpoints":{}}'  # for programs; the page needs none of it
SHEET = re.compile(r'<link rel="stylesheet" crossorigin href="\./assets/[^"]*">')
APP = re.compile(r"<gradio-app\b")
RESIZER = "document.head.appendChild(script);"


@dataclass(frozen=True)
class Document:
    """`files` are answered beside Gradio's, by path: content type and body. `rewrite` makes this
    page's document of Gradio's."""

    files: Mapping[str, tuple[bytes, bytes]]
    rewrite: Callable[[bytes], bytes]


def make_document(page: str) -> Document:
    """The document of a page, which is HTML."""
    own = dict(map(own_file, (CHINESE, PICTURE)))
    script = COMMENT.sub("", (HERE / "first.js").read_text(encoding="utf-8"))
    begin = f'import {{ begin }} from "./{address(JOINED)}"; begin();'

    def rewrite(document: bytes) -> bytes:
        text = PREVIEW.sub("", document.decode())
        found = SETTINGS.search(text)
        assert found, "Gradio's document holds its settings"
        config = json.loads(found[1])
        text = text.replace(found[0], "", 1)
        text = text.replace(RESIZER, f"if (window.parent !== window) {RESIZER}")
        head = f"{preview(config['root'], own_file(PICTURE)[0])}<style>{styles_of_page()}</style>"
        text = text.replace("<style>", f"{head}<style>", 1)
        rest = f'<link rel="modulepreload" crossorigin href="./{address(JOINED)}">'
        if sheet := SHEET.search(text):  # Gradio's, for which the page does not wait to be drawn
            text = text.replace(sheet[0], "")
            rest += sheet[0]
        told = json.dumps(config, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        rest += f"<script>window.gradio_config = {told};window.gradio_api_info = {NO_API};</script>"
        first = f"{page}<script>{script}</script>"
        first += f'<script type="module">{begin}</script>{rest}<gradio-app'
        return APP.sub(lambda _: first, text, count=1).encode()

    files = {f"/{name}": (TYPES[Path(name).suffix], body) for name, body in own.items()}
    files |= {f"/{address(name)}": (SCRIPT, body) for name, body in modules().items()}
    return Document(files, rewrite)


def own_file(name: str) -> tuple[str, bytes]:
    """Address and content of a file beside this one. The address changes with the content, so that
    browsers may keep it for good."""
    body = (HERE / name).read_bytes()
    stem, dot, kind = name.partition(".")
    return f"assets/{stem}-{hashlib.blake2b(body, digest_size=6).hexdigest()}{dot}{kind}", body


def styles_of_page() -> str:
    """The page's style sheets as one."""
    sheet = (HERE / "page.css").read_text(encoding="utf-8")
    for part, name in DRESSED.items():
        rules = (HERE / "components" / f"{name}.css").read_text(encoding="utf-8")
        root = f"#{part}" if part == name else f"#page #{part}"
        sheet += f"{root} {{\n{rules}}}\n"
    return sheet


def preview(root: str, picture: str) -> str:
    """What the page is called, and what links to it show."""
    what, home = html.escape(WHAT), html.escape(root)
    return f"""<title>{TITLE}</title><meta name="description" content="{what}">
<meta property="og:title" content="{TITLE}"><meta property="og:type" content="website">
<meta property="og:url" content="{home}/"><meta property="og:image" content="{home}/{picture}">
<meta property="og:description" content="{what}">
<meta name="twitter:card" content="summary_large_image"><link rel="icon" href="favicon.ico">"""
