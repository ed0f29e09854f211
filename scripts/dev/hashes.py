"""The pins of requirements*.txt with the hashes of their files, in `assets/locks/`, and whether
what is installed here is what they say."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from moss_engine.api.errors import MissingPackageError, MossError
from moss_engine.config import REPO_ROOT

LOCKS = REPO_ROOT / "assets" / "locks"
DEFAULT = "requirements.txt"
HEAD = "# {name} with the hashes of its files; made by `python -m scripts.dev.lock`.\n"
BASE = f"-r {DEFAULT}\n"
TORCH = "2.13.0"
TORCH_CPU = {
    "cp311-x86_64": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "cp312-x86_64": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "cp313-x86_64": "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
    "cp310-aarch64": "f028e428bddee95cdb86e2470254e95c9af629362488550c200ed4793125a817",
    "cp311-aarch64": "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
    "cp312-aarch64": "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
    "cp313-aarch64": "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
}
"""SHA-256 of the Linux wheels of torch's CPU build by Python and machine, as their index
https://download.pytorch.org/whl/cpu/torch names them; that of Python 3.10 on x86-64 is not known.
For a Python without one here the scripts say so and take the CUDA build."""


def run_uv(*arguments: str, text: str | None = None) -> str:
    """What `uv pip compile` writes; MissingPackageError without uv, MossError where it fails."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", *arguments]
    result = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, input=text)
    if "No module named uv" in result.stderr:
        raise MissingPackageError("uv is not installed; run `python -m pip install uv`.")
    if result.returncode:
        raise MossError(f"uv found no set of versions; change pyproject.toml.\n{result.stderr}")
    return result.stdout


def write_hashes(name: str, pins: Sequence[str], *, alone: bool) -> None:
    """Write `assets/locks/NAME` for pins, one a line; unless it stands `alone`, it goes on the
    default install's."""
    options = ("--generate-hashes", "--no-deps", "--no-annotate")
    hashed = run_uv("-", *options, text="\n".join(pins))
    LOCKS.mkdir(parents=True, exist_ok=True)
    head = HEAD.format(name=name) + ("" if alone else BASE)
    (LOCKS / name).write_text(head + hashed, encoding="utf-8")


def write_cpu_torch(pins: Sequence[str]) -> None:
    """Write `assets/locks/torch-cpu.txt`: what machines without a GPU take for torch. Raises
    MossError where its hashes are not known here."""
    if not any(re.match(rf"torch=={re.escape(TORCH)}\b", pin) for pin in pins):
        raise MossError(
            "torch has another version: give scripts/dev/hashes.py the hashes of its CPU wheels."
        )
    hashes = " \\\n".join(f"    --hash=sha256:{value}" for value in sorted(TORCH_CPU.values()))
    builds = f"# Builds: {' '.join(sorted(TORCH_CPU))}\n"
    text = f"{HEAD.format(name='CPU builds of torch')}{builds}torch=={TORCH}+cpu \\\n{hashes}\n"
    (LOCKS / "torch-cpu.txt").write_text(text, encoding="utf-8")


def read_lock(path: Path) -> list[Requirement]:
    """The pins of a lock, without its hashes, that hold for this Python and system."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "-", " ")):
            pin = Requirement(line.removesuffix("\\"))
            if pin.marker is None or pin.marker.evaluate():
                found.append(pin)
    return found


def differences(folder: Path = LOCKS) -> list[str]:
    """A line for every installed package that is not of its lock's version, and for every one of
    the default install that is missing."""
    found = []
    for path in sorted(folder.glob("requirements*.txt")):
        for pin in read_lock(path):
            try:
                version = importlib.metadata.version(pin.name)
            except importlib.metadata.PackageNotFoundError:
                if path.name == DEFAULT:
                    found.append(f"{pin.name} is not installed; {path.name} wants {pin.specifier}")
                continue
            if not pin.specifier.contains(version.partition("+")[0], prereleases=True):
                found.append(f"{pin.name} is {version}; {path.name} wants {pin.specifier}")
    return sorted(set(found))
