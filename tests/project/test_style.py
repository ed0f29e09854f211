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


HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]


@pytest.mark.parametrize("hook", HOOKS["hooks"], ids=lambda hook: hook["id"])
def test_what_runs_before_a_commit_finds_nothing(hook):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    name, *arguments = shlex.split(hook["entry"])
    tool = shutil.which(name, path=path)
    if tool is None:
        pytest.skip(f"{name} is missing")
    env = {**os.environ, "PATH": path}
    done = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"run `{hook['entry']}`\n{done.stdout}"
