"""The page's scripts: ES modules, served as files; what the page cannot begin without comes as one.

They all stand under one address that changes with any of them, so that browsers may keep them for
good and a new release is loaded anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent / "components"
COMMENT = re.compile(r"(?m)^[ \t]*//.*\n|^[ \t]+|(?<=[;{},)\]]) // [^\"'`\n]*$")
LATER = ("panel", "player_worklet", "recorder_worklet", "voice_sample")  # when they are wanted
JOINED = "joined.js"
IMPORT = re.compile(r"(?m)^import \{[^}]*\} from \"\./([^\"]+)\";\n")
DECLARED = re.compile(r"(?m)^export (?:let|const) ([\w$, ]+?)(?=;| =)")
MADE = re.compile(r"(?ms)^export ((?:async )?(?:function\*?|class) (\w+).*?^\}$)")


@cache
def modules() -> dict[str, bytes]:
    """Every module by its name: without comments and indents."""
    sources = {path.name: path.read_text("utf-8") for path in sorted(HERE.glob("*.js"))}
    sources[JOINED] = joined(sources)
    return {name: COMMENT.sub("", source).encode() for name, source in sources.items()}


def joined(sources: Mapping[str, str]) -> str:
    """The modules that are needed at once as one, which the page begins by.

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
        for imported in IMPORT.findall(sources[name]):
            add(imported)
        source = IMPORT.sub("", sources[name])
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
    return f"let {', '.join(shared)};\n{''.join(blocks.values())}export {{ begin }};\n"


def address(name: str) -> str:
    """Of a module, relative to the page."""
    digest = hashlib.blake2b(b"\0".join(modules().values()), digest_size=6).hexdigest()
    return f"assets/live-{digest}/{name}"
