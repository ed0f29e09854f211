"""The repository itself: pins, notices, scripts and size."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from moss_engine.api.errors import MissingPackageError
from scripts import install_vocoder
from scripts.dev.lock import CUDA_LIBRARY

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {"pesq", "nnaudio", "auraloss", "tensorboard", "ninja", "librosa", "matplotlib"}
MAX_TRACKED_BYTES = 44_000_000
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".js", ".css", ".json", ".yml", ".yaml", ""}
PLACES_OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|Users|work|workspace|mnt|opt)/\w")


def read_pins(name: str) -> list[Requirement]:
    lines = [
        line.split("#")[0].strip()
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
    ]
    return [
        Requirement(line.split(" --hash")[0]) for line in lines if line and not line.startswith("-")
    ]


def needs_of(name: str, extras: set[str]) -> set[str]:
    """The packages that an installed one asks for on this Python and system."""
    needs = set()
    for line in importlib.metadata.requires(name) or ():
        need = Requirement(line)
        if any(
            need.marker is None or need.marker.evaluate({"extra": extra}) for extra in extras | {""}
        ):
            needs.add(canonicalize_name(need.name))
    return needs


def tracked_files() -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize(
    "files",
    [
        ("requirements.txt",),
        ("requirements.txt", "requirements-talk.txt"),
        ("requirements.txt", "requirements-mcp.txt"),
        ("requirements.txt", "requirements-cluster.txt"),
        ("requirements.txt", "requirements-test.txt"),
    ],
)
def test_pins_are_exact_and_complete(files):
    pins = [pin for name in files for pin in read_pins(name)]
    assert all(
        len(pin.specifier) == 1 and next(iter(pin.specifier)).operator == "==" for pin in pins
    )
    here = {
        canonicalize_name(pin.name) for pin in pins if pin.marker is None or pin.marker.evaluate()
    }
    for name in here:
        cuda = {need for need in needs_of(name, set()) if CUDA_LIBRARY.match(f"{need}==")}
        missing = needs_of(name, set()) - here - cuda
        assert not missing, f"{name} needs {missing}; run `python -m scripts.dev.lock`"


def test_what_is_installed_is_what_is_pinned():
    """Only meaningful in an environment made by the scripts; another one is told apart by its
    stamp."""
    if not list(Path(sys.prefix).glob("installed-requirements*")):
        pytest.skip("this environment was not made by scripts/test.sh")
    for pin in read_pins("requirements.txt") + read_pins("requirements-test.txt"):
        if pin.marker is None or pin.marker.evaluate():
            version = importlib.metadata.version(pin.name).partition("+")[0]
            assert pin.specifier.contains(version, prereleases=True), (
                f"{pin.name} is {version}, not {pin.specifier}"
            )


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt",
        "requirements-talk.txt",
        "requirements-cluster.txt",
        "requirements-mcp.txt",
        "requirements-test.txt",
        "requirements-vocoder.txt",
    ],
)
def test_training_only_packages_stay_out(name):
    assert not {canonicalize_name(pin.name) for pin in read_pins(name)} & FORBIDDEN


def test_pyproject_and_pins_agree():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = [
        pin for pin in read_pins("requirements.txt") if pin.marker is None or pin.marker.evaluate()
    ]
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    wanted = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)
    assert wanted is not None
    for line in re.findall(r'"([^"]+)"', wanted[1]):
        need = Requirement(line)
        assert need.specifier.contains(pinned[canonicalize_name(need.name)]), (
            f"{need} is pinned to another version"
        )


def test_the_vocoder_package_is_pinned_by_hash():
    (line,) = (ROOT / "requirements-vocoder.txt").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"bigvgan==2\.4\.1 --hash=sha256:[0-9a-f]{64}", line)


def test_the_judges_are_pinned_by_hash():
    lines = (ROOT / "requirements-judges.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split("==")[0] for line in lines] == ["distillmos", "speechmos", "xls_r_sqa"]
    assert all(re.fullmatch(r"\w+==[\d.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_an_installed_vocoder_package_is_left_alone(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert install_vocoder.ensure_vocoder_package() is None


def test_an_installation_into_a_new_user_folder_is_found(monkeypatch, tmp_path):
    def install(*_, **__):
        (tmp_path / "user" / "bigvgan").mkdir(parents=True)
        (tmp_path / "user" / "bigvgan" / "__init__.py").touch()
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if not (Path(path) / "bigvgan").exists()]
    )
    monkeypatch.delitem(sys.modules, "bigvgan", raising=False)
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(subprocess, "run", install)
    install_vocoder.ensure_vocoder_package()
    assert importlib.util.find_spec("bigvgan").origin == str(
        tmp_path / "user" / "bigvgan" / "__init__.py"
    )


def test_a_failed_installation_names_its_command(monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 1, "", "something\nERROR: no network")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingPackageError, match=r"no network.*pip install .*--no-deps -r .*requirements-vocoder"
    ):
        install_vocoder.ensure_vocoder_package()
    assert capsys.readouterr().out.count("\n") == 1


def test_every_package_is_named_in_the_notices():
    notices = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    named = {canonicalize_name(word) for word in re.findall(r"[\w.-]+", notices)}
    for name in (
        "requirements.txt",
        "requirements-test.txt",
        "requirements-vocoder.txt",
        "requirements-judges.txt",
    ):
        missing = {canonicalize_name(pin.name) for pin in read_pins(name)} - named
        assert not missing, f"THIRD_PARTY.md does not name {missing}"


def test_the_licence_is_there():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text


def test_the_repository_is_small():
    size = sum(path.stat().st_size for path in tracked_files())
    assert size < MAX_TRACKED_BYTES, f"{size / 1e6:.1f} MB are tracked"


def test_no_path_of_one_machine_is_tracked():
    for path in tracked_files():
        if (
            path.suffix in TEXT_SUFFIXES
            and path.name != "tokenizer.json"
            and path != Path(__file__)
        ):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                assert not PLACES_OF_ONE_MACHINE.search(line), (
                    f"{path.name}:{number} names a path of one machine"
                )
