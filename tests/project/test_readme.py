"""The README: what it derives is up to date, what it tells people to type exists, and a Space
accepts its head."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from gradio import __version__ as gradio_version
from huggingface_hub.cli.hf import app as hf

import moss_engine
from moss_engine.api.errors import MossError
from moss_engine.audio.pcm import read_wav
from scripts.dev import readme

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (readme.README, readme.MEASUREMENTS, *sorted(readme.DOCS.glob("*.md")))
COMMANDS = [
    shlex.split(line, comments=True)
    for path in DOCUMENTS
    for block in re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
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
    done = subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: "), command
    return done.stdout


def test_what_is_derived_is_up_to_date():
    for path, text in readme.documents().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path} is out of date; run: python -m scripts.dev.readme --write"
        )


def test_a_missing_place_is_named():
    with pytest.raises(MossError, match="no place for summary"):
        readme.render(TEXT.replace("<!-- end of summary -->", ""), ("screenshot", "summary"))


def test_the_example_runs(tmp_path, monkeypatch, tiny_checkpoint, capsys):
    """As it stands, but with a checkpoint of random weights."""
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    monkeypatch.chdir(tmp_path)
    open_service = moss_engine.open_service
    monkeypatch.setattr(
        moss_engine,
        "open_service",
        lambda: open_service(checkpoint=tiny_checkpoint, device="cpu"),
        raising=False,
    )
    exec(compile(example, "README.md", "exec"), {})
    pcm, rate_hz = read_wav(tmp_path / "hello.wav")
    assert rate_hz == 24_000 and len(pcm) > 0
    assert {"AudioChunk", "Finished"} <= set(re.findall(r"^\w+", capsys.readouterr().out, re.M))


def names_in(tree: str) -> set[str]:
    return {line.split()[0].rstrip("/") for line in tree.splitlines() if len(line.split()) > 1}


def test_the_tree_names_every_package():
    text = (readme.DOCS / "architecture.md").read_text(encoding="utf-8")
    named = names_in(text.partition("<!-- tree:")[2].partition("<!-- end of tree -->")[0])
    for path in (ROOT / "moss_engine").rglob("__init__.py"):
        assert path.parent.name in named, f"{path.parent} is not in the tree"


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


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_exist(command):
    program, *rest = command
    rest = rest[: rest.index("--")] if "--" in rest else rest  # behind it are another program's
    flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if program == "bash":
        assert (ROOT / rest[0]).is_file()
    elif program.endswith("python") and rest[0] == "-m":
        module = ROOT / Path(*rest[1].split("."))
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), (
            f"{rest[1]} does not exist"
        )
        if flags:
            assert not flags - set(re.findall(r"--[\w-]+", help_of(("-m", rest[1]))))
    elif program.endswith("python"):
        assert not flags - set(re.findall(r"--[\w-]+", help_of((rest[0],))))
    elif program == "pip":
        for option, name in pairwise(rest):
            assert option not in ("-r", "-c") or (ROOT / name).is_file(), f"{name} does not exist"
        assert all(word in PINS for word in rest if "==" in word), (
            "the README installs another version than is pinned"
        )
    else:
        assert program in ("python3", ".", "ssh", "hf"), f"unknown command {program}"


def as_hf_takes(words: list[str]) -> dict[str, object]:
    """What the hub's own command makes of its arguments; nothing is run."""
    command: click.Command | None = hf
    context = click.Context(hf, info_name="hf")
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
    assert command is not None
    return command.make_context("hf", list(words)).params


def test_the_hub_understands_what_it_is_told():
    (upload,) = (words for program, *words in COMMANDS if (program, words[0]) == ("hf", "upload"))
    taken = as_hf_takes(upload)
    assert taken["local_path"] == "." and taken["path_in_repo"] is None
    assert taken["exclude"] == (".venv/*", "checkpoints/*") and taken["repo_type"] == "space"
    assert all(as_hf_takes(words) for program, *words in COMMANDS if program == "hf")


def test_a_space_accepts_the_front_matter():
    head = front_matter()
    assert (
        head["title"] == "MOSS-Speech Live"
        and head["sdk"] == "gradio"
        and head["license"] == "apache-2.0"
    )
    assert head["sdk_version"] == gradio_version and f"gradio=={gradio_version} " in PINS
    assert (ROOT / head["app_file"]).is_file()
    assert head["python_version"] in ("3.10", "3.11", "3.12", "3.13")
    assert len(head["short_description"]) <= 60
    colours = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert {head["colorFrom"], head["colorTo"]} <= colours


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_linked_files_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) + re.findall(
        r'src="([^":]+)"', text
    ):
        assert (path.parent / target).is_file(), f"{path} links to {target}, which does not exist"
