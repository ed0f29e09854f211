"""The page's document.

Gradio answers with an empty body, names itself in previews, and asks for its files one after the
other. Here the same document is put in another order: title and preview of this page, the page
itself in its own style, all modules at once, and last Gradio's settings; none of Gradio's style
sheets. `first.js` keeps what is asked before the page's own modules are there.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from moss_engine.ui.modules import COMMENT, JOINED, address, modules
from moss_engine.ui.parts.words import WHAT

HERE = Path(__file__).resolve().parent
ASSETS = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
TITLE = "MOSS-Speech Live"
CHINESE, PICTURE = "chinese.json", "preview.jpg"
DRESSED = {  # parts of the page, and the style sheets whose rules are nested under them
    "live": "live_audio", "recorder": "recorder", "chat": "transcript", "panel": "panel"
}  # fmt: skip
TYPES = {".json": b"application/json", ".jpg": b"image/jpeg"}
SCRIPT = b"text/javascript; charset=utf-8"

PREVIEW = re.compile(r'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>')
SETTINGS = re.compile(
    r"<script>window\.gradio_config = (.*?);</script>"
    r"<script>window\.gradio_api_info = .*?;</script>"
)
NO_API = '{"named_endpoints":{},"unnamed_endpoints":{}}'  # for programs; the page needs none of it
MAIN = re.compile(r'<link rel="stylesheet" crossorigin href="\./assets/[^"]*">')
APP = re.compile(r"<gradio-app\b")
RESIZER = "document.head.appendChild(script);"

TABLE = re.compile(r"m\.f=(\[[^\]]*\])")
NEEDED = re.compile(r"__vite__mapDeps\(\[([\d,]+)\]\)")
ENTRY = re.compile(r"import\(`\./(?:Index|Blocks)-[^`]*`\)[^\[]*__vite__mapDeps\(\[[\d,]+\]\)")
COMPONENT = r"[{{,]{}:\{{[^{{}}]*?component:[^{{}}]*\}}"


@dataclass(frozen=True)
class Document:
    """`files` are answered beside Gradio's, by path: content type and body. `rewrite` makes this
    page's document of Gradio's. `texts` are what every visitor asks for."""

    files: Mapping[str, tuple[bytes, bytes]]
    rewrite: Callable[[bytes], bytes]
    texts: tuple[bytes, ...]


def make_document(page: str, components: Iterable[str]) -> Document:
    """The document of a page, as HTML, beside which are Gradio's `components`, by their block
    names."""
    styles, scripts = chunks(components)
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
        rest = preloads([address(JOINED)])
        if MAIN.search(text):  # a share link's page takes its files from elsewhere, as one
            text = MAIN.sub("", text)
            rest = links(styles, scripts) + rest
        told = json.dumps(config, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        rest += f"<script>window.gradio_config = {told};window.gradio_api_info = {NO_API};</script>"
        first = f"{page}<script>{script}</script>"
        first += f'<script type="module">{begin}</script>{rest}<gradio-app'
        return APP.sub(lambda _: first, text, count=1).encode()

    files = {f"/{name}": (TYPES[Path(name).suffix], body) for name, body in own.items()}
    files |= {f"/{address(name)}": (SCRIPT, body) for name, body in modules().items()}
    texts = (modules()[JOINED], *map(str.encode, map(_source, scripts)))
    return Document(files, rewrite, texts)


def own_file(name: str) -> tuple[str, bytes]:
    """Address and content of a file beside this one."""
    body = (HERE / name).read_bytes()
    return _path(name, body), body


def styles_of_page() -> str:
    """The page's style sheets as one."""
    sheet = (HERE / "page.css").read_text(encoding="utf-8")
    for part, name in DRESSED.items():
        rules = (HERE / "components" / f"{name}.css").read_text(encoding="utf-8")
        sheet += f"#{part} {{\n{rules}}}\n"
    return sheet


def _path(name: str, body: bytes) -> str:
    """An address that changes with the file, which may be kept for good then."""
    stem, dot, kind = name.partition(".")
    return f"assets/{stem}-{hashlib.blake2b(body, digest_size=6).hexdigest()}{dot}{kind}"


def preview(root: str, picture: str) -> str:
    """What the page is called, and what links to it show."""
    told = {
        "property": {
            "og:title": TITLE,
            "og:type": "website",
            "og:url": f"{root}/",
            "og:description": WHAT,
            "og:image": f"{root}/{picture}",
        },
        "name": {"description": WHAT, "twitter:card": "summary_large_image"},
    }
    tags = "".join(
        f'<meta {kind}="{name}" content="{html.escape(value)}">'
        for kind, named in told.items()
        for name, value in named.items()
    )
    return f'<title>{TITLE}</title>{tags}<link rel="icon" href="favicon.ico">'


def preloads(addresses: list[str]) -> str:
    return "".join(
        f'<link rel="modulepreload" crossorigin href="./{address}">' for address in addresses
    )


def links(styles: list[str], scripts: list[str]) -> str:
    """All modules at once. Gradio's loader asks for no style sheet that has a link, and a disabled
    one is not fetched."""
    return preloads([f"assets/{name}" for name in scripts]) + "".join(
        f'<link rel="stylesheet" href="./assets/{name}" disabled>' for name in styles
    )


def chunks(components: Iterable[str]) -> tuple[list[str], list[str]]:
    """The style sheets and the modules of Gradio that a page of these components loads, as its
    loader lists them: the main module names the page's, that names Blocks, one of all the
    components."""
    template = (ASSETS.parent / "index.html").read_text(encoding="utf-8")
    (main,) = re.findall(r'src="\./assets/([^"]*\.js)"', template)
    found = _needed(main, ENTRY)
    for name in [*found]:
        found |= _needed(name, ENTRY) if name.startswith("Index-") else {}
    loader = next(name for name in found if "downloadbutton:{" in _source(name))
    for component in (*components, "column"):  # which Gradio puts all of them into
        found |= _needed(loader, re.compile(COMPONENT.format(component)))
    return [n for n in found if n.endswith(".css")], [n for n in found if n.endswith(".js")]


def _needed(name: str, entry: re.Pattern[str]) -> dict[str, None]:
    """What the entry of a module needs, by the module's table."""
    source = _source(name)
    table, part = TABLE.search(source), entry.search(source)
    if table is None or part is None:
        return {}
    paths = json.loads(table[1])
    numbers = NEEDED.findall(part[0])[-1].split(",")
    return dict.fromkeys(paths[int(number)].removeprefix("./") for number in numbers)


def _source(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8") if name.endswith(".js") else ""
