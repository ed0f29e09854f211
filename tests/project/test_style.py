"""Linters, formatter and type checker find nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTY = """
import { nobody } from "./other.js";
import { somebody } from "./other.js";
function spare() {}
let steady = 1;
if (steady == "1") missing(nobody);
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


HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]


@pytest.mark.parametrize("hook", HOOKS["hooks"], ids=lambda hook: hook["id"])
def test_what_runs_before_a_commit_finds_nothing(hook):
    name, *arguments = shlex.split(hook["entry"])
    done = run_tool(name, *arguments)
    assert done.returncode == 0, f"run `{hook['entry']}`\n{done.stdout}"


def test_the_javascript_linter_sees_faults(tmp_path):
    (tmp_path / "other.js").write_text("export const somebody = 1;\n", encoding="utf-8")
    (tmp_path / "faulty.js").write_text(FAULTY, encoding="utf-8")
    config = str(ROOT / ".oxlintrc.json")
    done = run_tool("oxlint", "--config", config, "--format", "unix", str(tmp_path))
    for rule in ("no-unused-vars", "prefer-const", "eqeqeq", "no-undef", "import(named)"):
        assert rule in done.stdout
