"""The shell scripts, with a stand-in for Python that writes down what it was asked to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None or os.name == "nt", reason="bash is missing")


def run_bash(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    assert BASH is not None
    return subprocess.run(
        [BASH, "-c", f"set -eu; . scripts/environment.sh; {code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=180,
    )


@pytest.fixture
def recorder(tmp_path):
    """A virtual environment whose python notes its arguments; `answers` are what it exits with, by
    a word in them."""

    def make(**answers: int) -> Path:
        python = tmp_path / "bin" / "python"
        python.parent.mkdir(parents=True)
        cases = "\n".join(f"  *{word}*) exit {status};;" for word, status in answers.items())
        python.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/calls\ncase "$*" in\n{cases}\nesac\n'
        )
        python.chmod(0o755)
        return tmp_path

    return make


def calls(venv: Path, word: str) -> list[str]:
    return [line for line in (venv / "calls").read_text().splitlines() if word in line]


@pytest.mark.parametrize(
    "name", ["scripts/run.sh", "scripts/test.sh", "scripts/environment.sh", ".ci/run"]
)
def test_scripts_are_sound(name):
    path = ROOT / name
    if name != "scripts/environment.sh":
        assert os.access(path, os.X_OK), f"{name} is not executable"
        assert path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
    checked = subprocess.run([BASH, "-n", str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_python_that_is_given_is_taken_or_refused():
    assert run_bash("find_python", PYTHON=sys.executable).stdout == sys.executable
    done = run_bash("find_python", PYTHON="no-such-python")
    assert done.returncode == 1 and "set PYTHON" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_environment_that_cannot_be_made_is_named_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    done = run_bash("make_venv", PYTHON=sys.executable, VENV=str(tmp_path / "file" / "venv"))
    assert done.returncode == 1 and "apt-get" not in done.stderr
    assert "Not a directory" in done.stderr and "set VENV to another folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_cpu_torch_comes_from_its_own_index(recorder):
    venv = recorder(importlib=1)
    done = run_bash("py=$(venv_python); install_cpu_torch", VENV=str(venv))
    (call,) = calls(venv, "-m uv pip")
    assert done.stdout == "" and "--no-deps --only-binary :all: --require-hashes" in call
    assert f"-r {venv}/torch-cpu.txt" in call and call.endswith("whl/cpu")
    assert (venv / "torch-cpu.txt").read_text().count("--hash=sha256:") == 7


def test_an_index_out_of_reach_is_said_in_one_sentence(recorder):
    venv = recorder(importlib=1, urlopen=1, **{"torch-cpu": 1})
    done = run_bash("py=$(venv_python); install_cpu_torch", VENV=str(venv))
    (pip,) = calls(venv, "-m pip")
    assert "whl/cpu" not in pip and done.returncode == 0 and len(done.stdout.splitlines()) == 1


def test_a_python_without_a_hash_of_cpu_torch_is_told_so_and_nothing_is_tried(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\necho cp310-x86_64\n')
    python.chmod(0o755)
    done = run_bash("py=$(venv_python); install_cpu_torch", VENV=str(tmp_path))
    assert done.returncode == 0 and not calls(tmp_path, "-m pip")
    assert "cp310-x86_64 is known here" in done.stdout and "set PYTHON" in done.stdout
    assert len(done.stdout.splitlines()) == 1 and "reached" not in done.stdout


EXPORT = (
    "export_lock() { printf 'torch==2.0\\n    --hash=a\\nnvidia-nccl==1\\nnumpy==2\\n' >$1; }; "
)


def test_uv_comes_by_the_hashes_of_the_lock(recorder):
    venv = recorder()
    run_bash("py=$(venv_python); install_uv", VENV=str(venv))
    assert re.fullmatch(
        r"uv==\d[\d.]+( --hash=sha256:[0-9a-f]{64})+\n", (venv / "uv.txt").read_text()
    )
    assert "--require-hashes" in calls(venv, "-m pip")[0]


@pytest.mark.parametrize(
    ("is_cuda", "kept"), [(0, "numpy==2\n"), (1, "nvidia-nccl==1\nnumpy==2\n")]
)
def test_cuda_libraries_are_for_the_cuda_build_alone(recorder, is_cuda, kept):
    venv = recorder(**{"+cpu": is_cuda})
    run_bash(f"{EXPORT}uname() {{ echo Linux; }}; install page", VENV=str(venv))
    assert (venv / "page.txt").read_text().endswith(kept)
    assert ("torch==" in (venv / "page.txt").read_text()) == bool(is_cuda)


def test_a_second_start_installs_nothing(recorder):
    venv = recorder()
    for _ in range(2):
        assert run_bash(f"{EXPORT}install page", VENV=str(venv)).returncode == 0
    assert len(calls(venv, f"-r {venv}/page.txt")) == 1


def test_a_failed_installation_is_tried_again(recorder):
    venv = recorder(page=1)
    for _ in range(2):
        assert "pip could not install" in run_bash(f"{EXPORT}install page", VENV=str(venv)).stderr
    assert len(calls(venv, f"-r {venv}/page.txt")) == 4, "by uv, then by pip, and both again"


def test_a_missing_browser_is_said_in_one_sentence(tmp_path):
    done = run_bash("install_chromium", PATH=str(tmp_path))
    assert done.returncode == 0 and "skipped" in done.stdout and len(done.stdout.splitlines()) == 1
