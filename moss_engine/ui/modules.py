"""The page's scripts: ES modules, served as files; what the page cannot begin without comes as one.

They all stand under one address that changes with any of them, so that browsers may keep them for
good and a new release is loaded anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).resolve().parent
COMMENT = re.compile(r"(?m)^[ \t]*//.*\n|^[ \t]+|(?<=[;{},)\]]) // [^\"'`\n]*$")
LATER = ("panel", "player_worklet", "recorder_worklet", "voice_sample")  # when they are wanted
JOINED = "components/joined.js"
IMPORT = re.compile(r"(?m)^import \{[^}]*\} from \"(\./[^\"]+)\";\n")
DECLARED = re.compile(r"(?m)^export (?:let|const) ([\w$, ]+?)(?=;| =)")
MADE = re.compile(r"(?ms)^export ((?:async )?(?:function\*?|class) (\w+).*?^\}$)")


@cache
def modules() -> dict[str, bytes]:
    """Every module by its path, from which its imports are found: without comments and indents."""
    inner = sorted(path.name for path in (HERE / "components").glob("*.js"))
    sources = {
        name: (HERE / name).read_text("utf-8")
        for name in ["page.js", *(f"components/{name}" for name in inner)]
    }
    sources[JOINED] = joined(sources)
    return {name: COMMENT.sub("", source).encode() for name, source in sources.items()}


def joined(sources: Mapping[str, str]) -> str:
    """The modules that are needed at once as one, whose `mounts` are theirs by their names.

    Each is a block in the order in which they would run, so that what it keeps to itself stays
    there; what modules export stands before all blocks, where every module finds it.
    """
    shared: list[str] = []
    blocks: dict[str, str] = {}
    begun: set[str] = set()

    def add(name: str) -> None:
        if name in begun:
            return
        begun.add(name)
        for path in IMPORT.findall(sources[name]):
            add((Path(name).parent / path).as_posix())
        source = IMPORT.sub("", sources[name])
        source = source.replace(
            "export function mount(", f"mounts[{json.dumps(name)}] = function ("
        )
        names = [name for found in DECLARED.findall(source) for name in found.split(", ")]
        names += [made for _, made in MADE.findall(source)]
        source = MADE.sub(r"\2 = \1;", source)
        source = DECLARED.sub(lambda found: "" if "," in found[1] else found[1], source)
        assert not set(names) & set(shared) and "\nexport " not in source, name
        shared.extend(names)
        blocks[name] = f"{{\n{source}}}\n"

    for name in sources:
        if Path(name).stem not in LATER:
            add(name)
    return f"export const mounts = {{}};\nlet {', '.join(shared)};\n{''.join(blocks.values())}"


def address(name: str) -> str:
    """Of a module, relative to the page."""
    digest = hashlib.blake2b(b"\0".join(modules().values()), digest_size=6).hexdigest()
    return f"assets/live-{digest}/{name}"


def component(name: str, template: str, *events: str, **props: Any) -> gr.HTML:
    """A component: its template, and the style sheet and the module of its name."""
    css = (HERE / "components" / f"{name}.css").read_text(encoding="utf-8")
    return gr.HTML(
        html_template=template,
        css_template=COMMENT.sub("", css),
        js_on_load=mounts(f"components/{name}.js", *events),
        apply_default_css=False,
        **props,
    )


def mounts(name: str, *events: str) -> str:
    """What gr.HTML runs when the component is there: the module's `mount`, with what Gradio hands
    over. Gradio takes the names of a component's own `events` from that script. The panel waits
    until somebody looks at it."""
    later = Path(name).stem in LATER
    url = f'new URL("{address(name if later else JOINED)}", document.baseURI)'
    mount = "mount" if later else f"mounts[{json.dumps(name)}]"
    named = ", ".join(json.dumps(event) for event in events)
    run = f"import({url}).then((it) => it.{mount}(element, props, trigger, watch))"
    if name == "components/panel.js":
        run = f"window.panel = window.first.engine.then(() => {run})"
    return f"{run}; // {named}"
