"""The README: what it derives is up to date, what it tells people to type exists, and a Space accepts its head."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from gradio import __version__ as gradio_version

from moss_engine.errors import MossError
from scripts import readme

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if line.strip()
]
PINS = (ROOT / "requirements.txt").read_text(encoding="utf-8")


def front_matter() -> dict[str, str]:
    head = re.match(r"---\n(.*?)\n---\n", TEXT, re.S)
    assert head is not None, "the README has no front matter"
    pairs = [line.partition(":") for line in head[1].splitlines() if not line.startswith(" ")]
    return {key: value.strip().strip('"') for key, _, value in pairs}


@cache
def help_of(command: tuple[str, ...]) -> str:
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_derived_is_up_to_date():
    for path, text in readme.documents().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date; run: python -m scripts.readme --write"


def test_a_missing_place_is_named():
    with pytest.raises(MossError, match="options"):
        readme.render(TEXT.replace("<!-- end of options -->", ""))


def names_in(tree: str) -> set[str]:
    return {line.split()[0].rstrip("/") for line in tree.splitlines() if len(line.split()) > 1}


def test_the_tree_names_every_package():
    named = names_in(TEXT.partition("<!-- tree:")[2].partition("<!-- end of tree -->")[0])
    for path in (ROOT / "moss_engine").rglob("__init__.py"):
        assert path.parent.name in named, f"{path.parent} is not in the tree"


def test_every_module_is_named():
    named = names_in(readme.MODULES.read_text(encoding="utf-8"))
    for path in (ROOT / "moss_engine").rglob("*.py"):
        name = path.parent.name if path.name == "__init__.py" else path.name
        assert name in named, f"{name} is not in {readme.MODULES}"


def test_an_outdated_document_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "REPO_ROOT", tmp_path)
    monkeypatch.setattr(readme, "documents", lambda: {tmp_path / "A.md": "new"})
    monkeypatch.setattr(sys, "argv", ["readme"])
    (tmp_path / "A.md").write_text("old")
    with pytest.raises(MossError, match=r"^A\.md is out of date"):
        readme.main()
    monkeypatch.setattr(sys, "argv", ["readme", "--write"])
    readme.main()
    assert (tmp_path / "A.md").read_text() == "new"


def test_every_module_says_what_it_is_for():
    for path in [*(ROOT / "moss_engine").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        assert readme.purpose(path), f"{path.name} has no docstring"


def test_the_readme_names_every_option_once():
    for line in readme.options().splitlines()[2:]:
        assert TEXT.count(line) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_exist(command):
    program, *rest = command
    flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if program == "bash":
        assert (ROOT / rest[0]).is_file()
    elif program.endswith("python") and rest[0] == "-m":
        assert (ROOT / Path(*rest[1].split("."))).with_suffix(".py").is_file(), f"{rest[1]} does not exist"
        if flags:
            assert not flags - set(re.findall(r"--[\w-]+", help_of(("-m", rest[1]))))
    elif program.endswith("python"):
        assert not flags - set(re.findall(r"--[\w-]+", help_of((rest[0],))))
    elif program == "pip":
        for option, name in pairwise(rest):
            assert option not in ("-r", "-c") or (ROOT / name).is_file(), f"{name} does not exist"
        assert all(word in PINS for word in rest if "==" in word), "the README installs another version than is pinned"
    else:
        assert program in ("python3", ".", "ssh", "hf"), f"unknown command {program}"


def test_a_space_accepts_the_front_matter():
    head = front_matter()
    assert head["title"] == "MOSS-Speech Live" and head["sdk"] == "gradio" and head["license"] == "apache-2.0"
    assert head["sdk_version"] == gradio_version and f"gradio=={gradio_version} " in PINS
    assert (ROOT / head["app_file"]).is_file()
    assert head["python_version"] in ("3.10", "3.11", "3.12", "3.13")
    assert len(head["short_description"]) <= 60
    colours = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert {head["colorFrom"], head["colorTo"]} <= colours


@pytest.mark.parametrize("path", [
    readme.README, readme.MODULES, readme.MEASUREMENTS, ROOT / "moss_engine" / "FULL_SIZE.md"], ids=str)
def test_linked_files_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) + re.findall(r'src="([^":]+)"', text):
        assert (path.parent / target).is_file(), f"{path} links to {target}, which does not exist"
