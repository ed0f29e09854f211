"""`scripts.quantize --bits`: a folder that loads by itself, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.config import EngineConfig
from moss_engine.export.low_bits import Rounded, choose_bits
from moss_engine.models.checkpoint import FILE_NAME
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import parts_of, stored_bits
from moss_engine.models.manifest import verify_manifest
from moss_engine.models.network import load_model
from moss_engine.runtime.make import make_runtime
from scripts.quantize_folder import quantize_folder


@pytest.fixture(scope="module")
def calibrated(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bits") / "four"
    prompts = ["hello world", "the world and you", "I you a"]
    report = quantize_folder(tiny_checkpoint, out, 4, prompts, 8, "cpu", wide=0.3)
    assert report["rounding"] == "calibrated" and report["rows"]
    assert 0 < report["lost_power"] < report["lost_power_plain"] < 0.05  # type: ignore[operator]
    assert 0 < report["text_logit_error"] < 0.6  # type: ignore[operator]
    return out


def test_the_folder_loads_by_itself_and_says_what_it_loses(calibrated: Path) -> None:
    made_by = verify_manifest(calibrated)["quantised"]
    assert made_by["bits"] == 4 and len(made_by["source_digest"]) == 64
    config = ModelConfig.from_file(calibrated / "config.json")
    bits = stored_bits(calibrated, config)
    table = json.loads((calibrated / "quantised.json").read_text(encoding="utf-8"))
    assert table["bits"] == bits and bits["heads"] == 8 and set(bits.values()) == {4, 8}
    assert len(table["matrices"]) == sum(map(len, parts_of(config).values()))
    assert all(loss["lost"] < loss["plain4"] for loss in table["matrices"] if loss["bits"] == 4)
    runtime = make_runtime(EngineConfig(checkpoint=calibrated, device="cpu", kv_rows=256))
    assert runtime.info.dtype == "float32"
    runtime.close()


def test_the_codec_and_the_tokenizer_come_along(calibrated: Path, tiny_checkpoint: Path) -> None:
    def names(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}

    assert names(calibrated) == names(tiny_checkpoint) | {"quantised.json"}
    assert not list(calibrated.parent.glob("*.partial"))


def test_8_bits_keep_what_is_stored_in_8(tiny_checkpoint: Path, tmp_path: Path) -> None:
    quantize_folder(tiny_checkpoint, tmp_path / "eight", 8, [], 8, "cpu")
    source, made = (
        dict(load_model(folder).named_parameters())
        for folder in (tiny_checkpoint, tmp_path / "eight")
    )
    assert all(torch.equal(made[name], source[name]) for name in source)


def test_parts_that_lose_most_are_wider(tiny_checkpoint: Path) -> None:
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    nothing = torch.zeros(0)
    rounded = {
        name: Rounded(nothing, nothing, 0.02, 0.05 if part == "trunk.0.o" else 0.01)
        for part, names in parts_of(config).items()
        for name in names
    }
    assert choose_bits(config, rounded, 0.0)["trunk.0.o"] == 4
    chosen = choose_bits(config, rounded, 0.2)
    assert chosen["trunk.0.o"] == 8 and chosen["heads"] == 8 and 4 in chosen.values()


def test_what_was_rounded_is_not_rounded_again(calibrated: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 4 bits already"):
        quantize_folder(calibrated, tmp_path / "again", 4, [], 8, "cpu")


def test_a_folder_that_exists_is_left_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists already"):
        quantize_folder(tiny_checkpoint, tmp_path, 4, [], 8, "cpu")
    assert (tmp_path / "note.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("damage", ["half", "config", "unfinished"])
def test_damaged_folders_are_refused_with_a_sentence(
    calibrated: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(calibrated, folder)
    weights = folder / FILE_NAME
    if damage == "half":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif damage == "config":  # the folder of another model
        (folder / "manifest.json").unlink()
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        values["intermediate_size"] *= 2
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    else:
        weights.unlink()
    with pytest.raises(CheckpointError) as error:
        make_runtime(EngineConfig(checkpoint=folder, device="cpu", kv_rows=256))
    assert str(error.value).endswith(".")
