"""Quantising: float8 scales where the loader looks for them, folders of 8 or 4 bits that load by
themselves, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.config import EngineConfig
from moss_engine.export.low_bits import Rounded, best_scales, choose_bits
from moss_engine.models import checkpoint
from moss_engine.models.checkpoint import FILE_NAME, INDEX_NAME
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import float8_values, load_largest_inputs, load_scales, row_scales
from moss_engine.models.layout import parts_of, stored_bits
from moss_engine.models.manifest import verify_manifest
from moss_engine.models.network import load_model
from moss_engine.runtime.make import make_runtime
from scripts.quantize import parse, prompts_from, quantize, quantize_folder


def test_scales_follow_the_inputs_that_matter():
    """A weight that leaves the others of its row no precision, but meets an input that is always
    zero, is cut off."""
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    weight[3, 5] = 1e5
    squares = torch.ones(64)
    squares[5] = 0
    scales, lost = best_scales(weight, squares)
    assert scales[3] < 0.75 * row_scales(weight)[3] and 0 < lost < 0.01
    assert best_scales(weight, torch.ones(64))[0][3] == row_scales(weight)[3]
    scale = row_scales(weight)
    widened = float8_values(weight, scale).float() * scale[:, None]
    assert ((widened - weight).abs() <= weight.abs() / 16 + scale[:, None] * 2**-10).all()


def test_a_checkpoint_gets_scales_and_a_manifest_entry(tiny_checkpoint: Path, tmp_path: Path):
    """And the largest inputs, for conversion; matrices that are one have the same."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "tiny")
    config = ModelConfig.from_file(folder / "config.json")
    with pytest.raises(CheckpointError, match=r"scripts\.quantize"):
        load_scales(folder, config)
    report = quantize(folder, ["hello world", "the world"], 6, "cpu")
    made_by = verify_manifest(folder)
    assert made_by["name"] == "tiny-random" and made_by["float8"] == report
    assert report["prompts"] == 2 and report["rows"] > 20
    assert 0 < report["lost_power"] < 0.01
    scales, largest = load_scales(folder, config), load_largest_inputs(folder, config)
    assert len(scales) == 7 * config.num_layers + 2
    assert all((scale > 0).all() for scale in scales.values())
    q, k, v = (largest[f"model.shared_block.layers.0.self_attn.{n}_proj.weight"] for n in "qkv")
    assert q == k == v > 0
    assert len({float(value) for value in largest.values()}) > len(largest) // 2


def test_prompts(tmp_path: Path):
    assert len(prompts_from(None, 3)) == 3 and len(set(prompts_from(None, 500))) == 500
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n two \nthree\n", encoding="utf-8")
    assert prompts_from(file, 2) == ["one", "two"]
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no prompt"):
        prompts_from(file, 2)
    with pytest.raises(ConfigError, match="cannot be read"):
        prompts_from(tmp_path / "missing.txt", 2)


FOUR = ["--bits", "4", "--out", "four"]


@pytest.mark.parametrize(
    ("others", "idle", "words"),
    [
        ([], ["--calibrate", "0"], "'0' is no whole number from 1 on"),
        ([], ["--out", "a"], "needs --bits; give --bits 8 or 4, too"),
        (FOUR, ["--prompts", "a.txt"], "needs --calibrate; give it, too"),
    ],
)
def test_an_option_that_means_or_does_nothing_is_refused(others, idle, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["folder", *others, *idle])
    said = capsys.readouterr().err
    assert idle[0] in said and words in said


def test_a_refusal_of_the_command_is_one_sentence(tiny_checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "scripts.quantize", tiny_checkpoint, "--bits", "8", "--out"]
    done = subprocess.run([*command, tmp_path / "file" / "out"], capture_output=True, text=True)
    message = r"\S*file/out cannot be written \(Not a directory\); .*--out\.\n"
    assert done.returncode == 1 and re.fullmatch(message, done.stderr)


def test_a_folder_that_takes_no_scales_is_refused_before_anything_is_measured(
    tiny_checkpoint, tmp_path, monkeypatch
):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "tiny")
    may = os.access  # who is root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and may(path, mode))
    monkeypatch.setattr("scripts.quantize.make_runtime", lambda _: pytest.fail("it was measured"))
    with pytest.raises(ConfigError, match=r"tiny cannot be written \(Permission denied\); make it"):
        quantize(folder, ["hello"], 4, "cpu")


@pytest.fixture(scope="module")
def calibrated(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bits") / "four"
    prompts = ["hello world", "the world and you", "I you a"]
    report = quantize_folder(tiny_checkpoint, out, 4, prompts, 8, "cpu", wide=0.3)
    assert report["rounding"] == "calibrated" and report["rows"]
    assert 0 < report["lost_power"] < 0.05  # type: ignore[operator]
    assert 0 < report["text_logit_error"] < 0.6  # type: ignore[operator]
    return out


def test_the_folder_loads_by_itself_and_says_what_it_loses(
    calibrated: Path, tiny_checkpoint: Path
) -> None:
    made_by = verify_manifest(calibrated)["quantised"]
    assert made_by["bits"] == 4 and len(made_by["source_digest"]) == 64
    config = ModelConfig.from_file(calibrated / "config.json")
    bits = stored_bits(calibrated, config)
    table = json.loads((calibrated / "quantised.json").read_text(encoding="utf-8"))
    assert table["bits"] == bits and bits["heads"] == 8 and set(bits.values()) == {4, 8}
    assert {loss["name"] for loss in table["matrices"]} == {
        name for names in parts_of(config).values() for name in names
    }
    assert all(0 < loss["lost"] < 0.1 for loss in table["matrices"] if loss["bits"] == 4)
    runtime = make_runtime(EngineConfig(checkpoint=calibrated, device="cpu", kv_rows=256))
    assert runtime.info.dtype == "float32"
    runtime.close()
    source, made = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        for folder in (tiny_checkpoint, calibrated)
    )
    weights = {"model-00001.safetensors", INDEX_NAME, "quantised.json"}
    assert made == source - {FILE_NAME} | weights and not list(calibrated.parent.glob("*.partial"))


def test_8_bits_keep_what_is_stored_in_8(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any number of files."""
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 20_000)
    quantize_folder(tiny_checkpoint, tmp_path / "eight", 8, [], 8, "cpu")
    source, made = (
        dict(load_model(folder).named_parameters())
        for folder in (tiny_checkpoint, tmp_path / "eight")
    )
    assert all(torch.equal(made[name], source[name]) for name in source)
    assert len(list((tmp_path / "eight").glob("model-*.safetensors"))) > 1


def test_parts_that_lose_most_are_wider(tiny_checkpoint: Path) -> None:
    config, nothing = ModelConfig.from_file(tiny_checkpoint / "config.json"), torch.zeros(0)
    rounded = {
        name: Rounded(nothing, nothing, 0.05 if part == "trunk.0.o" else 0.01)
        for part, names in parts_of(config).items()
        for name in names
    }
    assert choose_bits(config, rounded, 0.0)["trunk.0.o"] == 4
    chosen = choose_bits(config, rounded, 0.2)
    assert chosen["trunk.0.o"] == 8 and chosen["heads"] == 8 and 4 in chosen.values()


def test_a_folder_of_4_bits_and_one_that_exists_are_left_alone(
    calibrated: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has 4 bits already"):
        quantize_folder(calibrated, tmp_path / "again", 4, [], 8, "cpu")
    (tmp_path / "note.txt").touch()
    with pytest.raises(ConfigError, match="exists already"):
        quantize_folder(tiny_checkpoint, tmp_path, 4, [], 8, "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    with pytest.raises(ConfigError, match="lies within"):
        quantize_folder(tiny_checkpoint, tiny_checkpoint / "eight", 8, [], 8, "cpu")
