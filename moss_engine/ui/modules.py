"""The page's scripts: ES modules, served as files.

They all stand under one address that changes with any of them, so that browsers may keep them for
good and a new release is loaded anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).resolve().parent
COMMENT = re.compile(r"(?m)^[ \t]*//.*\n|^[ \t]+|(?<=[;{},)\]]) // [^\"'`\n]*$")
LATER = ("player_worklet", "recorder_worklet", "voice_sample")  # when they are wanted


@cache
def modules() -> dict[str, bytes]:
    """Every module by its path, from which its imports are found: without comments and indents."""
    inner = sorted(path.name for path in (HERE / "components").glob("*.js"))
    names = ["page.js", *(f"components/{name}" for name in inner)]
    return {name: COMMENT.sub("", (HERE / name).read_text("utf-8")).encode() for name in names}


def address(name: str) -> str:
    """Of a module, relative to the page."""
    digest = hashlib.blake2b(b"\0".join(modules().values()), digest_size=6).hexdigest()
    return f"assets/live-{digest}/{name}"


def at_once() -> list[str]:
    """The addresses of what the page cannot begin without."""
    return [address(name) for name in modules() if Path(name).stem not in LATER]


def component(name: str, template: str, *events: str, **props: Any) -> gr.HTML:
    """A component: its template, and the style sheet and the module of its name."""
    return gr.HTML(
        html_template=template,
        css_template=(HERE / "components" / f"{name}.css").read_text(encoding="utf-8"),
        js_on_load=mounts(f"components/{name}.js", *events),
        apply_default_css=False,
        **props,
    )


def mounts(name: str, *events: str) -> str:
    """What gr.HTML runs when the component is there: the module's `mount`, with what Gradio hands
    over. Gradio takes the names of a component's own `events` from that script."""
    url = f'new URL("{address(name)}", document.baseURI)'
    named = ", ".join(json.dumps(event) for event in events)
    return f"import({url}).then(({{ mount }}) => mount(element, props, trigger, watch)); // {named}"
