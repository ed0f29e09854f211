"""What the scripts install is pinned by hash, as the requirements say it."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from moss_engine.config import REPO_ROOT
from scripts.dev.hashes import DEFAULT, LOCKS, TORCH, TORCH_CPU, differences

ROOT = REPO_ROOT
NAMES = [
    path.name
    for path in sorted(ROOT.glob("requirements*.txt"))
    if "--hash" not in path.read_text(encoding="utf-8")
]
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def entries(path: Path) -> dict[str, list[str]]:
    """The hashes of every pin of a lock."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            assert HASH.fullmatch(line), line
            found[list(found)[-1]].append(line.strip(" \\"))
        elif not line.startswith(("#", "-")):
            found[line.removesuffix("\\").strip()] = []
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_pin_has_the_hashes_of_its_files(name):
    pins = {
        " ".join(line.split("#")[0].split())
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if line and not line.startswith(("#", "-"))
    }
    locked = entries(LOCKS / name)
    assert {" ".join(pin.split()) for pin in locked} == pins, "run `python -m scripts.dev.lock`"
    assert all(locked.values())


def test_torch_may_be_its_cpu_build():
    (pin, hashes), *others = entries(LOCKS / "torch-cpu.txt").items()
    assert pin == f"torch=={TORCH}+cpu" and not others
    assert f"\ntorch=={TORCH} " in (LOCKS / DEFAULT).read_text(encoding="utf-8")
    (builds,) = re.findall(r"^# Builds: (.*)$", (LOCKS / "torch-cpu.txt").read_text(), re.MULTILINE)
    assert builds.split() == sorted(TORCH_CPU)
    assert set(hashes) == {f"--hash=sha256:{value}" for value in TORCH_CPU.values()}


def test_what_is_installed_is_compared_with_the_lock(tmp_path):
    lock = tmp_path / DEFAULT
    lock.write_text(f"numpy=={version('numpy')} \\\n    --hash=sha256:{64 * '0'}\n")
    assert differences(tmp_path) == []
    lock.write_text("numpy==0.1\nno-such-package==1\ncolorama==1 ; sys_platform == 'plan9'\n")
    assert differences(tmp_path) == [
        "no-such-package is not installed; requirements.txt wants ==1",
        f"numpy is {version('numpy')}; requirements.txt wants ==0.1",
    ]
