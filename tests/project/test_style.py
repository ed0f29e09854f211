"""Linters, formatter and type checker find nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.ui.facts import PageInfo
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.page import build_page
from tests.ui.page_support import INFO, FakeService

ROOT = Path(__file__).resolve().parents[2]
WORKLET = re.compile(r'^const \w+ = ("(?:[^"\\]|\\.)*registerProcessor.*");$', re.M)
UNUSED = """
function spare() {}
let steady = 1;
if (steady == "1") missing(element);
"""


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if tool is None:
        pytest.skip(f"{name} is missing")
    return subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True)


def page_scripts(folder: Path) -> dict[str, str]:
    """Every script of the page as the browser runs it: parts joined, values filled in."""
    info = replace(INFO, clones_voices=True)
    handlers = Handlers(FakeService(info=info), PageInfo.of(info), wav_folder=folder)
    page = build_page(handlers, max_sessions=1, max_waiting=1)
    found = [script for b in page.blocks.values() if (script := getattr(b, "js_on_load", None))]
    scripts = {f"script-{number}": script for number, script in enumerate(found)}
    worklets = [json.loads(text) for script in found for text in WORKLET.findall(script)]
    return scripts | {f"{number}-worklet": text for number, text in enumerate(worklets)}


def lint_scripts(scripts: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Gradio runs a script as the body of a function, and so does the linter."""
    for name, script in scripts.items():
        (folder / f"{name}.js").write_text(f"void function () {{{script}\n}};\n", encoding="utf-8")
    config = str(ROOT / ".oxlintrc.json")
    return run_tool("oxlint", "--config", config, "--format", "unix", str(folder))


def test_python_is_linted():
    done = run_tool("ruff", "check", "--no-cache", "--output-format", "concise", ".")
    assert done.returncode == 0, done.stdout


def test_python_is_formatted():
    done = run_tool("ruff", "format", "--no-cache", "--check", ".")
    assert done.returncode == 0, f"run `ruff format`\n{done.stdout}"


def test_types_agree():
    done = run_tool("basedpyright", "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout


def test_javascript_is_linted(tmp_path):
    (tmp_path / "scripts").mkdir()
    scripts = page_scripts(tmp_path)
    together = "\n".join(scripts.values())
    for path in (ROOT / "moss_engine" / "ui").rglob("*.js"):
        last_line = path.read_text(encoding="utf-8").rstrip().splitlines()[-1]
        assert last_line in together, f"{path.name} is in no script of the page"
    done = lint_scripts(scripts, tmp_path / "scripts")
    assert done.returncode == 0, done.stdout


def test_the_javascript_linter_sees_faults(tmp_path):
    done = lint_scripts({"faulty": UNUSED}, tmp_path)
    for rule in ("no-unused-vars", "prefer-const", "eqeqeq", "no-undef"):
        assert rule in done.stdout
