"""The page's document: what a visitor has before Gradio's scripts are there.

Gradio answers with an empty body, names itself in previews, and asks for its files one after the
other. Here the same document is put in another order: title and preview of this page, a frame of it
whose box can be typed in and sent from, one style sheet and all modules at once, and last Gradio's
settings. `first.js` keeps what is asked meanwhile; `page.js` takes it over.
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

from moss_engine.api.info import ServiceInfo
from moss_engine.ui.modules import COMMENT, JOINED, address, modules
from moss_engine.ui.parts.composer import axes_of, switched, switches
from moss_engine.ui.parts.masthead import header
from moss_engine.ui.parts.words import WHAT, ask_words, invitation

HERE = Path(__file__).resolve().parent
ASSETS = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
TITLE = "MOSS-Speech Live"
TYPES = {".css": b"text/css; charset=utf-8", ".json": b"application/json", ".jpg": b"image/jpeg"}
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
UNUSED = ("Example-", "HistoryStorageControl-", "Image")  # whose style sheets dress nothing here


@dataclass(frozen=True)
class Document:
    """`files` are answered beside Gradio's, by path: content type and body. `rewrite` makes this
    page's document of Gradio's. `texts` are what every visitor asks for."""

    files: Mapping[str, tuple[bytes, bytes]]
    rewrite: Callable[[bytes], bytes]
    texts: tuple[bytes, ...]


def make_document(facts: ServiceInfo, components: Iterable[str]) -> Document:
    """The document of a page that consists of Gradio's `components`, by their block names."""
    styles, scripts = chunks(components)
    used = [name for name in styles if not name.startswith(UNUSED)]
    sheet = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in used)
    named = {
        "page.css": sheet.encode(),
        "chinese.json": (HERE / "chinese.json").read_bytes(),
        "preview.jpg": (HERE / "preview.jpg").read_bytes(),
    }
    paths = {name: _path(name, body) for name, body in named.items()}
    frame = first_frame(facts, paths["chinese.json"])
    css = "\n".join((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "first.css"))
    script = COMMENT.sub("", (HERE / "first.js").read_text(encoding="utf-8"))

    def rewrite(document: bytes) -> bytes:
        text = PREVIEW.sub("", document.decode())
        found = SETTINGS.search(text)
        assert found, "Gradio's document holds its settings"
        config = json.loads(found[1])
        text = text.replace(found[0], "", 1)
        text = text.replace(RESIZER, f"if (window.parent !== window) {RESIZER}")
        head = (
            preview(config["root"], paths["preview.jpg"]) + f'<style id="first-css">{css}</style>'
        )
        text = text.replace("<style>", f"{head}<style>", 1)
        rest = preloads([address(JOINED)])
        if MAIN.search(text):  # a share link's page takes its files from elsewhere, as one
            text = MAIN.sub("", text)
            rest = links(styles, scripts, paths["page.css"]) + rest
        theme = f"{config['root']}/theme.css?v={config['theme_hash']}"
        rest += f'<link rel="stylesheet" href="{html.escape(theme)}">'
        told = json.dumps(config, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        rest += f"<script>window.gradio_config = {told};window.gradio_api_info = {NO_API};</script>"
        first = f"{frame}<script>{script}</script>{rest}<gradio-app"
        return APP.sub(lambda _: first, text, count=1).encode()

    files = {f"/{paths[name]}": (TYPES[Path(name).suffix], body) for name, body in named.items()}
    files |= {f"/{address(name)}": (SCRIPT, body) for name, body in modules().items()}
    texts = (named["page.css"], modules()[JOINED], *map(str.encode, map(_source, scripts)))
    return Document(files, rewrite, texts)


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


def links(styles: list[str], scripts: list[str], sheet: str) -> str:
    """All style sheets as one, and all modules at once. Gradio's loader asks for no style sheet
    that has a link, and a disabled one is not fetched."""
    return (
        preloads([f"assets/{name}" for name in scripts])
        + f'<link rel="stylesheet" href="{sheet}">'
        + "".join(f'<link rel="stylesheet" href="./assets/{name}" disabled>' for name in styles)
    )


def first_frame(facts: ServiceInfo, chinese: str) -> str:
    """The page as it will be, as far as nothing of it moves."""
    fits = [facts.default_mode, *(mode for mode in facts.modes if mode.input == "text")]
    mode = next((mode for mode in fits if mode.input == "text"), facts.default_mode)
    verb, wish = ask_words(mode)
    told = {
        "chinese": chinese,
        "spoken": [m.name for m in facts.modes if m.input == "speech"],
        "talks": switched(facts) and not facts.scripted,
    }
    does = f'value="{axes_of(mode)["does"]}"'
    chosen = re.sub(r"<input[^>]*>", "", switches(facts).replace(f"{does}>", f"{does}><i></i>"))
    box = (
        ""
        if mode.input == "speech"
        else f"""
<label class="heard-only" for="first-text">Your text</label>
<textarea id="first-text" placeholder="{html.escape(wish)}" autofocus></textarea>
<p><button type="button">{verb}</button></p><p class="first-asked" role="status"></p>"""
    )
    head = header(facts).replace("<header", "<header inert", 1)
    return f"""
<div id="first" data-told="{html.escape(json.dumps(told))}">{head}
<main><section><div inert>{chosen}<p>{html.escape(mode.note or "")}</p></div>{box}</section>
<section class="first-live"><p>{html.escape(invitation(mode))}</p></section></main></div>"""


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
    for component in components:
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
