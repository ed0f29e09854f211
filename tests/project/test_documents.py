"""Figures, places and commands in the documents' own words are those of files and program."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from moss_engine.api.errors import MossError
from moss_engine.endpoints.errors import of_moss
from moss_engine.models.manifest import verify_manifest
from moss_engine.ui.entrance import guard

ROOT = Path(__file__).resolve().parents[2]
SCALE_OUT = (ROOT / "docs/scale_out.md").read_text(encoding="utf-8")
API = (ROOT / "docs/api.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SPEED = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
NANO = (ROOT / "scripts/nano/README.md").read_text(encoding="utf-8")
FORMULA_WORDS = {"epilogue", "prologue"}
"""Parts of a product's formula, which are no names of the code."""


def measured(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "assets/bench" / name).read_text(encoding="utf-8"))


def test_the_plan_counts_with_the_measured_sound_and_first_sounds():
    load = measured("h200_full_size.json")["streams"]["load"]
    (sound,) = (run for run in load if run["concurrency"] == 64 and not run["hears_out"])
    (visitors,) = (run for run in load if run["concurrency"] == 249)
    assert visitors["arrivals_per_s"] and not visitors["late_chunks"]
    found = re.search(
        r"([\d.]+) s of sound a second at 64\s.*249 listeners .* after (\d+) ms \(median\) and "
        r"(\d+) ms \(p95\)",
        SCALE_OUT,
        re.DOTALL,
    )
    assert found is not None
    ttfa_ms = visitors["figures"]["ttfa_ms"]
    figures = (sound["audio_s_per_s"], ttfa_ms["p50"], ttfa_ms["p95"])
    assert [float(text) for text in found.groups()] == [round(figure) for figure in figures]


def test_a_step_of_transformers_takes_what_was_measured():
    def median_ms(file: str, name: str) -> float:
        figures = measured(file)["figures"]
        return next(f["median_ms"] for f in figures if f["name"] == name)

    name = "transformers generate, {} cache, a token"
    said = re.search(r"takes (\d+) ms there \((\d+) ms .*?\), and ([\d.]+) ms", SPEED)
    assert said is not None
    assert [float(text) for text in said.groups()] == [
        round(median_ms("h100_full_size.json", name.format("dynamic"))),
        round(median_ms("h200_full_size.json", name.format("dynamic"))),
        round(median_ms("h100_full_size.json", name.format("static")), 1),
    ]


def test_a_full_replica_takes_what_was_measured():
    (cores, listeners) = re.findall(r"([\d.]+) cores under (\d+) listeners", SCALE_OUT)[0]
    held = measured("h200_x2_replicas.json")["hold:0.95"]
    assert float(cores) == max(replica["all"] for replica in held["replica_cores"])
    assert int(listeners) == held["listeners"] // len(held["replica_cores"])


def test_the_errands_that_are_tests_link_them():
    errands = ARCHITECTURE.partition("## Five errands")[2].partition("\n## ")[0]
    intro, *sections = errands.split("\n### ")
    assert "The first two and the last are tests." in intro
    assert ["(../tests/" in section for section in sections] == [True, True, False, False, True]


def test_every_status_of_a_refusal_is_in_the_table():
    table = API.partition("| status | why |")[2].partition("\n\n")[0]
    kinds = [MossError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    statuses = {str(of_moss(kind("It is so; do this.")).status) for kind in kinds}
    assert statuses <= set(re.findall(r"\b\d{3}\b", table))


def test_the_probes_that_are_named_exist():
    named = re.findall(r"`(/[a-z]+)`", SCALE_OUT)
    answered = re.findall(r'"(/\w+z)"', Path(guard.__file__).read_text(encoding="utf-8"))
    assert named and set(named) <= set(answered)


def test_a_page_under_kuberay_joins_the_head_by_a_node_of_its_own():
    service = yaml.safe_load((ROOT / "assets/deploy/rayservice.yaml").read_text(encoding="utf-8"))
    head = f"{service['metadata']['name']}-head-svc:6379"
    (command,) = re.findall(r'`sh -c "(.*?)"`', SCALE_OUT)
    assert command.startswith(f"ray start --address={head} --num-cpus=0 && exec python app.py ")
    assert command.endswith("--ray-address auto")


def test_commands_and_places_of_the_voices_making_exist():
    (listed,) = re.findall(r"Further commands: (.*?)\n\n", NANO, re.DOTALL)
    for name in re.findall(r"`([a-z_.]+)` \(", listed):
        assert (ROOT / "scripts/nano" / Path(*name.split("."))).with_suffix(".py").is_file(), name
    for place in re.findall(r"`(moss_engine/[\w/.]+)`", NANO):
        assert (ROOT / place).exists(), place


def test_the_built_in_voices_card_promises_what_its_manifest_holds():
    card = (ROOT / "assets/nano/README.md").read_text(encoding="utf-8")
    assert card == (ROOT / "scripts/nano/model_card.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"`manifest.json` names the (.*?)\.\n", card)
    assert named == "command" and verify_manifest(ROOT / "assets/nano")["command"]


@pytest.mark.parametrize("folder", ["scripts", "moss_engine"])
def test_commands_in_docstrings_stand_on_lines_of_their_own(folder):
    """`--help` shows them as they stand."""
    for path in (ROOT / folder).rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for line in text.splitlines():
            assert not line.startswith("python -m ") and line.count("python -m ") < 2, path


def own_files() -> dict[Path, ast.Module]:
    folders = ("moss_engine", "scripts", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def documentation_of(tree: ast.Module) -> list[ast.Constant]:
    """Docstrings, those below an assignment among them."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def words_of_code(tree: ast.Module) -> set[str]:
    """Names, and words of strings that are no documentation."""
    documentation, words = set(map(id, documentation_of(tree))), set[str]()
    for node in ast.walk(tree):
        values = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
        if not (isinstance(node, ast.Constant) and id(node) in documentation):
            words.update(word for value in values for word in re.findall(r"\w+", value))
    return words


def test_what_docstrings_name_exists():
    """Words in backticks are names of the code, of a file or of a file's contents."""
    files = own_files()
    known = set(FORMULA_WORDS).union(*map(words_of_code, files.values()))
    for path in (ROOT / "moss_engine").rglob("*"):
        known.update(path.relative_to(ROOT).with_suffix("").parts)
        if path.suffix in (".js", ".css"):
            known.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    known.update(path.stem for path in files)
    unknown = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, tree in files.items()
        if path.is_relative_to(ROOT / "moss_engine")
        for text in documentation_of(tree)
        for name in re.findall(r"`([^`]+)`", text.value)  # pyright: ignore[reportArgumentType]
        for word in re.findall(r"\b[A-Za-z_]\w*[A-Za-z0-9]\b", name)
        if word not in known
    ]
    assert not unknown


@pytest.mark.parametrize("command", ["say", "bench"])
def test_groups_of_options_that_commands_are_said_to_take_are_those_of_their_help(command):
    text = (ROOT / "docs/options.md").read_text(encoding="utf-8").partition("<!--")[0]
    sentence = rf"`scripts\.{command}`\s+(?:takes )?those of ([\w, ]+?)(?:, too|\.)"
    (said,) = re.findall(sentence, text)
    shown = subprocess.run(
        [sys.executable, "-m", f"scripts.{command}", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    groups = re.findall(r"^(\w+):$", shown, re.MULTILINE)
    assert groups[0] == "options" and re.split(", | and ", said) == groups[1:]


def test_every_option_of_the_trainings_has_help():
    named = re.compile(r"scripts/nano/(train|tune)_\w+\.py")
    trainings = {path: tree for path, tree in own_files().items() if named.search(path.as_posix())}
    assert len(trainings) == 4
    for path, tree in trainings.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "parser.add_argument":
                given = [keyword.arg for keyword in call.keywords]
                assert "help" in given, f"{path}: {ast.unparse(call.args[0])}"


def test_commands_that_the_code_names_exist():
    for path in own_files():
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"python -m ((?:scripts|tests)[\w.]*\w)(?!\w|\.?\{)", text):
            module = ROOT / Path(*name.split("."))
            package = module / "__main__.py"
            assert module.with_suffix(".py").is_file() or package.is_file(), f"{path}: {name}"


def test_help_shows_commands_as_they_are_run():
    """Modules of scripts are run by `python -m` alone, and their docstrings keep their lines."""
    for path, tree in own_files().items():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        if not name.startswith("scripts.") or "__main__" not in path.read_text(encoding="utf-8"):
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) != "argparse.ArgumentParser":
                continue
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            if "command" in given.get("prog", ""):  # on behalf of another module
                continue
            assert given.get("prog") == f"'python -m {name}'", name
            assert given["description"] != "__doc__" or "Raw" in given["formatter_class"], name
