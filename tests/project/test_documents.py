"""The documents: what they derive is up to date, what they tell people to type exists, what they
link is there, and a Space accepts the README's head."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
import warnings
from contextlib import redirect_stdout, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from gradio import __version__ as gradio_version

import moss_engine
from moss_engine import __version__
from moss_engine.audio.pcm import read_wav
from scripts.dev import readme

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (*sorted(ROOT.glob("*.md")), *sorted(readme.DOCS.glob("*.md")))
COMMANDS = [
    shlex.split(line, comments=True)
    for path in DOCUMENTS
    for block in re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
    for line in block.splitlines()
    if line.strip()
]
LINK = re.compile(r'(?<=\]\()[^)#:]+(?=[)#])|(?<=src=")[^":]+(?=")')
PINS = (ROOT / "requirements.txt").read_text(encoding="utf-8")


@cache
def help_of(command: tuple[str, ...]) -> str:
    """What a command says to --help, in this process, where most of what it imports is there."""
    said, (name, *rest) = io.StringIO(), command[command[0] == "-m" :]
    run = runpy.run_module if command[0] == "-m" else runpy.run_path
    with (
        patch.object(sys, "argv", [name, *rest, "--help"]),
        redirect_stdout(said),
        warnings.catch_warnings(),
        suppress(SystemExit),
    ):
        warnings.simplefilter("ignore")  # a module of the command may be imported already
        run(name if command[0] == "-m" else str(ROOT / name), run_name="__main__")
    assert said.getvalue().startswith("usage: "), command
    return said.getvalue()


def test_what_is_derived_is_up_to_date():
    for path, text in readme.documents().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path} is out of date; run: python -m scripts.dev.readme --write"
        )


def test_the_changelog_begins_with_the_version():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\d.]+)", changes, re.MULTILINE)[0] == __version__


def test_the_example_runs(tmp_path, monkeypatch, tiny_checkpoint, capsys):
    """As it stands, but with a checkpoint of random weights."""
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    monkeypatch.chdir(tmp_path)
    open_service = moss_engine.open_service
    tiny = lambda: open_service(checkpoint=tiny_checkpoint, device="cpu")  # noqa: E731
    monkeypatch.setattr(moss_engine, "open_service", tiny, raising=False)
    exec(compile(example, "README.md", "exec"), {})
    pcm, rate_hz = read_wav(tmp_path / "hello.wav")
    assert rate_hz == 24_000 and len(pcm) > 0
    assert {"AudioChunk", "Finished"} <= set(re.findall(r"^\w+", capsys.readouterr().out, re.M))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_exist(command):
    """Scripts, files of requirements, and this program's own commands with their options."""
    for before, word in pairwise(command):
        assert before not in ("bash", "-r", "-c") or (ROOT / word).is_file(), f"{word} is missing"
    rest = command[1 : command.index("--") if "--" in command else None]
    run = rest[: 1 + (rest[:1] == ["-m"])]
    if not command[0].endswith("python") or run[-1] in ("pytest", "venv", "build"):
        return
    if run[-1] in ("scripts.bench", "scripts.turns") and not rest[2].startswith("-"):
        run = rest[:3]
    flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert not flags - set(re.findall(r"--[\w-]+", help_of(tuple(run))))


def test_a_space_accepts_the_front_matter():
    matter = re.match(r"---\n(.*?)\n---\n", TEXT, re.S)
    assert matter is not None, "the README has no front matter"
    head = yaml.safe_load(matter[1])
    assert head["sdk"] == "gradio" and head["license"] == "apache-2.0"
    assert head["sdk_version"] == gradio_version and f"gradio=={gradio_version}\n" in PINS
    assert (ROOT / head["app_file"]).is_file() and len(head["short_description"]) <= 60
    assert head["python_version"] in ("3.10", "3.11", "3.12", "3.13")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_linked_files_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        assert (path.parent / target).exists(), f"{path} links to {target}, which does not exist"
