"""From a checkpoint to the layout that builders read: nothing lost, nothing used twice, and no half
result."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors, save_tensors
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.converted import entries_of, open_converted
from moss_engine.models.float8 import largest_inputs_path
from moss_engine.models.layout import parts, slot_prefixes
from moss_engine.models.manifest import checkpoint_digest
from scripts import convert as convert_module
from scripts.convert import JOURNAL_NAME, convert, main
from tests.fixtures.make_tiny_checkpoint import make_tensors
from tests.models.reference_network import reference_logits


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint's configuration with float weights, and calibrated inputs."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(tiny_checkpoint / "config.json", folder)
    config = ModelConfig.from_file(folder / "config.json")
    save_tensors(folder / FILE_NAME, make_tensors(config))
    return folder


def calibrate(checkpoint: Path) -> dict[str, Tensor]:
    config = ModelConfig.from_file(checkpoint / "config.json")
    names = [
        name
        for name, shape in expected_tensors(config).items()
        if len(shape) == 2 and "embed" not in name
    ]
    largest = {name: torch.tensor([3.0 + number / 7]) for number, name in enumerate(names)}
    save_file(largest, largest_inputs_path(checkpoint))
    return largest


def test_the_published_size_has_forty_slots_and_all_weights() -> None:
    layout = parts(PUBLISHED)
    used = Counter(source for part in layout.values() for source in part.sources)
    assert used == Counter(list(expected_tensors(PUBLISHED))) and len(used) == 446
    assert sum(math.prod(part.shape) for part in layout.values()) == 9_095_694_336
    slots = [name for name in layout if name.endswith(".qkv")]
    assert slots == [f"layers.{slot}.qkv" for slot in range(40)]
    prefixes = slot_prefixes(PUBLISHED)
    assert len(set(prefixes)) == 40
    assert (
        prefixes[32] == "model.text_block.layers.0."
        and prefixes[36] == "model.audio_block.layers.0."
    )
    assert layout["layers.39.qkv"].shape == (6144, 4096) and layout["layers.0.gate_up"].shape == (
        24576,
        4096,
    )
    assert layout["layers.36.k_norm"].sources == (
        "model.audio_block.layers.0.self_attn.k_norm.weight",
    )
    assert {
        "embed.text",
        "embed.audio",
        "text.norm",
        "audio.norm",
        "text.head",
        "audio.head",
    } < set(layout)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_layout_is_the_checkpoint_joined(dtype: str, checkpoint: Path, tmp_path: Path) -> None:
    report = convert(checkpoint, tmp_path / "out", dtype)
    converted = open_converted(tmp_path / "out")
    assert (converted.dtype, converted.checkpoint_digest) == (dtype, checkpoint_digest(checkpoint))
    assert (
        report["tensors"] == len(converted.names)
        and report["files"] == converted.config.num_layers + 2
    )
    source = load_tensors(checkpoint, expected_tensors(converted.config))
    for name, part in parts(converted.config).items():
        expected = torch.cat([source[s].to(getattr(torch, dtype)) for s in part.sources])
        assert torch.equal(converted.read(name), expected), name


def test_what_was_converted_computes_the_same_network(checkpoint: Path, tmp_path: Path) -> None:
    """Taken apart again by the published names, the layout's tensors give the reference's
    logits."""
    config = ModelConfig.from_file(checkpoint / "config.json")
    source = load_tensors(checkpoint, expected_tensors(config))
    halves = {name: tensor.half().float().numpy() for name, tensor in source.items()}
    convert(checkpoint, tmp_path / "out", "float16")
    converted = open_converted(tmp_path / "out")
    found = {}
    for name, part in parts(config).items():
        pieces = (
            converted.read(name)
            .float()
            .split([expected_tensors(config)[source][0] for source in part.sources])
        )
        found |= {source: piece.numpy() for source, piece in zip(part.sources, pieces)}
    values = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    rows = [(9, 3), (values["modality_pad_token_id"], 5), (11, 2)]
    ours = reference_logits(found, values, rows)
    theirs = reference_logits(halves, values, rows)
    for one, other in zip(ours, theirs):
        assert (abs(one - other) < 1e-12).all()


def test_float8_has_one_scale_a_matrix_and_one_for_its_inputs(
    checkpoint: Path, tmp_path: Path
) -> None:
    largest = calibrate(checkpoint)
    convert(checkpoint, tmp_path / "out", "float8")
    converted = open_converted(tmp_path / "out")
    source = load_tensors(checkpoint, expected_tensors(converted.config), dtype=torch.bfloat16)
    for name, part in parts(converted.config).items():
        expected = torch.cat([source[s] for s in part.sources])
        if not name.startswith("layers.") or len(part.shape) < 2:
            assert torch.equal(converted.read(name), expected), name
            continue
        values, scale = converted.read(name), converted.read(name + ".weight_scale")
        assert values.dtype is torch.float8_e4m3fn and scale.shape == (1,)
        assert torch.equal(scale, scale.bfloat16().float())
        error = (values.float() * scale - expected.float()).abs()
        assert (error <= torch.maximum(expected.float().abs() / 16, scale / 512)).all()
        assert float(values.float().abs().amax()) in (416.0, 448.0)
        inputs = max(float(largest[s]) for s in part.sources)
        assert inputs / 448 <= float(converted.read(name + ".input_scale")) <= inputs / 448 * 1.01


def test_float8_needs_calibration(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"float8_inputs.safetensors is missing.*scripts\.quantize"
    ):
        convert(checkpoint, tmp_path / "out", "float8")
    assert not (tmp_path / "out").exists()
    largest = calibrate(checkpoint)
    save_file({**largest, "text_lm_head.weight": torch.zeros(1)}, largest_inputs_path(checkpoint))
    with pytest.raises(CheckpointError, match=r"says 0\.0 of text_lm_head\.weight"):
        convert(checkpoint, tmp_path / "out", "float8")


class FullDisk:
    """Writes fail once so many bytes have been written."""

    def __init__(self, room: int):
        self.room = room

    def __call__(self, file: object, data: memoryview) -> None:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)  # type: ignore[attr-defined]


def test_a_full_disk_is_said_and_the_same_command_goes_on(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moss_engine.models import tensor_file

    out = tmp_path / "out"
    whole = tmp_path / "whole"
    convert(checkpoint, whole, "bfloat16")
    total = sum(path.stat().st_size for path in whole.glob("*.safetensors"))
    with monkeypatch.context() as patch:
        patch.setattr(tensor_file, "_write", FullDisk(total * 2 // 3))
        with pytest.raises(
            ConfigError, match=r"out cannot be written \(No space .*\); .*free some .*same command"
        ):
            convert(checkpoint, out, "bfloat16")
    assert not list(out.glob("*.partial"))
    with pytest.raises(CheckpointError, match="no finished conversion"):
        open_converted(out)
    kept = sorted(out.glob("*.safetensors"))
    assert len(kept) > 1
    kept[0].write_bytes(kept[0].read_bytes()[:-1])  # as after a power cut
    read: list[str] = []
    stream = convert_module.stream_parts

    def watched(*args: object) -> Iterator[tuple[str, Tensor]]:
        read.extend(args[-1])  # type: ignore[arg-type]
        return stream(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(convert_module, "stream_parts", watched)
    report = convert(checkpoint, out, "bfloat16")
    assert report["files_kept"] == len(kept) - 1
    assert 0 < len(read) < report["tensors"]
    for path in whole.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
    assert not (out / JOURNAL_NAME).exists()


def test_too_little_space_is_said_beforehand(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 5000))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"needs 0\.\d\d GB more .* 0\.00 GB are free; free some"):
        convert(checkpoint, tmp_path / "out", "bfloat16")
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_a_disk_that_is_full_from_the_start_is_said(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        (tmp_path / "out" / f"{JOURNAL_NAME}.partial").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(convert_module, "_write_journal", full)
        with pytest.raises(ConfigError, match=r"\(No space left on device\); .*free some space"):
            convert(checkpoint, tmp_path / "out", "bfloat16")
    assert convert(checkpoint, tmp_path / "out", "bfloat16")["files_kept"] == 0


def test_a_folder_that_cannot_be_made_is_said(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, words in (
        (checkpoint / "converted", "lies within .*checkpoint, which is to stay as it is"),
        (tmp_path / "file", "is a file; name a folder"),
        (tmp_path / "file" / "out", r"cannot be written \(Not a directory\); make it writable"),
    ):
        with pytest.raises(ConfigError, match=words):
            convert(checkpoint, out, "bfloat16")


def test_another_conversion_is_not_continued(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(checkpoint, out, "bfloat16")
    with pytest.raises(ConfigError, match=r"is not empty \(it holds config.json\)"):
        convert(checkpoint, out, "bfloat16")
    (out / "manifest.json").unlink()
    (out / JOURNAL_NAME).write_text(
        json.dumps({"made_by": {"dtype": "float16"}, "files": {}}), encoding="utf-8"
    )
    with pytest.raises(ConfigError, match="unfinished conversion with format None"):
        convert(checkpoint, out, "bfloat16")


@pytest.mark.parametrize("damage", ["lacks", "unknown", "shape", "tied", "nan"])
def test_a_strange_checkpoint_is_refused(damage: str, checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / FILE_NAME)
    words = {
        "lacks": "lacks tensors model.audio_norm.weight",
        "unknown": "unknown tensors lm_head.weight",
        "shape": "model.text_norm.weight has shape",
        "tied": "as if tied",
        "nan": "has NaN or infinite values",
    }
    if damage == "lacks":
        del tensors["model.audio_norm.weight"]
    elif damage == "unknown":
        tensors["lm_head.weight"] = torch.zeros(2, 2)
    elif damage == "shape":
        tensors["model.text_norm.weight"] = torch.ones(3)
    elif damage == "tied":
        tensors["audio_lm_head.weight"] = tensors["model.audio_embed.weight"].clone()
    else:
        tensors["model.text_norm.weight"] = torch.full_like(
            tensors["model.text_norm.weight"], torch.nan
        )
    save_file(tensors, checkpoint / FILE_NAME)
    with pytest.raises(CheckpointError, match=words[damage]):
        convert(checkpoint, tmp_path / "out", "bfloat16")


def test_a_value_beyond_float16_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / FILE_NAME)
    tensors["model.shared_block.layers.0.mlp.down_proj.weight"] *= 1e6
    save_file(tensors, checkpoint / FILE_NAME)
    with pytest.raises(
        CheckpointError, match=r"layers\.0\.down is beyond float16; convert with --dtype bf16"
    ):
        convert(checkpoint, tmp_path / "out", "float16")


@pytest.mark.parametrize("damage", ["altered", "missing", "retyped"])
def test_a_damaged_conversion_is_not_opened(damage: str, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(checkpoint, out, "bfloat16")
    layer = out / "layer_001.safetensors"
    if damage == "altered":
        data = bytearray(layer.read_bytes())
        data[-1] ^= 1
        layer.write_bytes(data)
    elif damage == "missing":
        layer.unlink()
    else:
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        manifest["made_by"]["dtype"] = "float16"
        (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CheckpointError):
        open_converted(out)


def test_files_are_safetensors_that_others_read(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(checkpoint, out, "bfloat16")
    config = ModelConfig.from_file(out / "config.json")
    found = {
        name: (tensor.dtype, tuple(tensor.shape))
        for path in out.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    assert found == entries_of(config, "bfloat16")


def test_the_command(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(checkpoint), str(tmp_path / "out"), "--dtype", "fp16"])
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["dtype"] == "fp16" and report["files_kept"] == 0
    assert "100%" in captured.err
