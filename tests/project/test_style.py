"""Linters, formatter and type checker find nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

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
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        [tool, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )


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


HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]


@pytest.mark.parametrize("hook", HOOKS["hooks"], ids=lambda hook: hook["id"])
def test_what_runs_before_a_commit_finds_nothing(hook):
    name, *arguments = shlex.split(hook["entry"])
    if hook["id"] == "oxlint":  # the test below
        assert (ROOT / arguments[3]).samefile(__file__) and "javascript" in arguments[-1]
        return
    done = run_tool(name, *arguments)
    assert done.returncode == 0, f"run `{hook['entry']}`\n{done.stdout}"


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
