"""Checkpoint files: what is read is exactly what was expected, and everything else is refused in
one sentence."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moss_engine.api.errors import CheckpointError
from moss_engine.models import checkpoint
from moss_engine.models.checkpoint import (
    FILE_NAME,
    INDEX_NAME,
    load_tensors,
    save_shards,
    save_tensors,
    stores_int8,
)
from moss_engine.models.manifest import MANIFEST_NAME, verify_manifest, write_manifest

EXPECTED = {"a.weight": (4, 6), "b.weight": (3, 2, 5), "c": (7,)}
Change = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors() -> Tensors:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in EXPECTED.items()}


def same(found: Tensors, wanted: Tensors) -> bool:
    return all(torch.equal(found[name], wanted[name]) for name in wanted)


def write(path: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(path: Path, expected: dict[str, tuple[int, ...]] = EXPECTED) -> str:
    """The sentence with which the path is refused; no tensor may have been read by then."""
    reads: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *args, **kwargs: reads.append("memory was taken"))
        with pytest.raises(CheckpointError) as error:
            load_tensors(path, expected)
    assert not reads
    sentence = str(error.value)
    assert sentence.endswith(".") and "; " in sentence and "\n" not in sentence
    return sentence


def test_round_trip_keeps_every_bit(tmp_path: Path, tensors: Tensors) -> None:
    mixed = {
        "a.weight": tensors["a.weight"].bfloat16(),
        "b.weight": tensors["b.weight"].half(),
        "c": tensors["c"],
    }
    save_tensors(tmp_path / FILE_NAME, mixed)
    for loaded in (load_tensors(tmp_path, EXPECTED), load_tensors(tmp_path / FILE_NAME, EXPECTED)):
        assert list(loaded) == list(EXPECTED)
        assert all(loaded[name].dtype == mixed[name].dtype for name in mixed)
        assert same(loaded, mixed)
    assert not stores_int8(tmp_path)


def test_files_are_those_of_the_safetensors_package(tmp_path: Path, tensors: Tensors) -> None:
    save_tensors(tmp_path / "ours", tensors)
    assert (tmp_path / "ours").stat().st_mode & 0o444 == 0o444
    assert same(load_file(tmp_path / "ours"), tensors)
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert same(load_tensors(tmp_path / "theirs", EXPECTED), tensors)


def test_int8_is_the_nearest_of_its_row(tmp_path: Path, tensors: Tensors) -> None:
    tensors["a.weight"][1] = 0.0
    save_tensors(tmp_path / FILE_NAME, tensors, ["a.weight", "b.weight"])
    wide, kept = load_tensors(tmp_path, EXPECTED), load_tensors(tmp_path, EXPECTED, keep_int8=True)
    assert stores_int8(tmp_path)
    for name in ("a.weight", "b.weight"):
        scale = kept[name + "_scale"]
        assert (
            kept[name].dtype == torch.int8
            and scale.shape == EXPECTED[name][:1]
            and scale.dtype == torch.float32
        )
        per_row = scale.view(-1, *[1] * (wide[name].dim() - 1))
        assert torch.equal(wide[name], kept[name].float() * per_row)
        # half a step, and what rounding the scale to float16 takes off the largest values
        assert ((wide[name] - tensors[name]).abs() <= per_row * (0.5 + 127 * 2**-11)).all()
    assert not wide["a.weight"][1].any()
    assert wide["c"].dtype == torch.float32 and torch.equal(wide["c"], tensors["c"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("c"), "lacks tensors c (1 in all)"),
        (lambda t: t.update({"model.extra": torch.ones(1)}), "has the unknown tensors model.extra"),
        (lambda t: t.update(c=torch.ones(8)), "tensor c has shape [8] instead of [7]"),
        (lambda t: t.update(c=torch.ones(7, dtype=torch.float64)), "stores 'c' as 'F64'"),
        (
            lambda t: t.update({"a.weight": torch.ones(4, 6, dtype=torch.int8)}),
            "lacks tensors a.weight_scale",
        ),
        (
            lambda t: t.update({"c": torch.ones(7, dtype=torch.int8), "c_scale": torch.ones(7)}),
            "may not be stored as int8",
        ),
    ],
)
def test_other_tensors_are_refused(
    change: Callable[[Tensors], Any], words: str, tmp_path: Path, tensors: Tensors
) -> None:
    change(tensors)
    save_file(tensors, tmp_path / FILE_NAME)
    sentence = refusal(tmp_path)
    assert words in sentence and str(tmp_path) in sentence


F = entry("F32", [7], 0, 28)
DAMAGED = "is truncated, altered or no safetensors file"


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", 0),
        (b'{"c": 1, "c": 2}', 0),
        ([], 0),
        ({"c": 3}, 28),
        ({"c": entry("F32", [-7], 0, 28)}, 28),
        ({"c": entry("F32", [7], 28, 0)}, 28),
        ({"c": entry("F32", [1 << 40], 0, 28)}, 28),
        ({"c": F}, 27),
        ({"c": entry("F32", [7], 4, 32)}, 32),
        ({"c": F, "d": entry("F32", [7], 24, 52)}, 52),
    ],
)
def test_damaged_headers_are_refused(header: Any, data: int, tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, header, b"\0" * data)
    assert DAMAGED in refusal(tmp_path, {"c": (7,)})


def test_files_without_a_header_and_missing_ones_are_named(tmp_path: Path) -> None:
    assert f"{tmp_path} holds neither {FILE_NAME} nor {INDEX_NAME}" in refusal(tmp_path)
    assert f"{tmp_path / 'x'} is missing" in refusal(tmp_path / "x")
    for content in (b"", b"\1\2\3", struct.pack("<Q", 1 << 62), struct.pack("<Q", 9) + b"{}"):
        (tmp_path / FILE_NAME).write_bytes(content)
        assert DAMAGED in refusal(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(
    value: float, tmp_path: Path, tensors: Tensors
) -> None:
    tensors["b.weight"][1, 1, 1] = value
    save_file(tensors, tmp_path / FILE_NAME)
    with pytest.raises(CheckpointError, match=r"NaN or infinite values in tensor 'b\.weight'"):
        load_tensors(tmp_path, EXPECTED)


SHARDS = {name: f"model-0000{i}.safetensors" for i, name in enumerate(EXPECTED, 1)}


def write_shards(folder: Path, tensors: Tensors) -> None:
    """Each tensor in a file of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "SHARD_BYTES", 1)
        save_shards(folder, tensors.items())


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX_NAME).write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )


def test_shards_are_read_as_one(tmp_path: Path, tensors: Tensors) -> None:
    write_shards(tmp_path, tensors)
    assert same(load_tensors(tmp_path, EXPECTED), tensors)


def swap_shards(folder: Path) -> None:
    first, second = folder / "model-00001.safetensors", folder / "model-00002.safetensors"
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_shards, "which model.safetensors.index.json places elsewhere"),
        (lambda f: (f / "model-00002.safetensors").unlink(), "model-00002.safetensors is missing"),
        (
            lambda f: (f / "model-00002.safetensors").write_bytes(
                (f / "model-00002.safetensors").read_bytes()[:-1]
            ),
            "truncated",
        ),
        (lambda f: write_index(f, {**SHARDS, "d": "model-00002.safetensors"}), "lacks tensor 'd'"),
        (lambda f: write_index(f, {"c": "../model-00002.safetensors"}), "outside its folder"),
        (lambda f: write_index(f, None), "is no index of shards"),
        (lambda f: (f / INDEX_NAME).write_text("{"), "cannot be read"),
    ],
)
def test_wrong_shards_are_refused(
    change: Change, words: str, tmp_path: Path, tensors: Tensors
) -> None:
    write_shards(tmp_path, tensors)
    change(tmp_path)
    assert words in refusal(tmp_path)


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


def alter_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def link_outside(folder: Path) -> None:
    file = folder / "config.json"
    (folder.parent / "outside.json").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(folder.parent / "outside.json")


def link_folder(folder: Path) -> None:
    shutil.move(folder / "codec", folder.parent / "codec")
    (folder / "codec").symlink_to(folder.parent / "codec")


def test_a_manifest_is_of_what_is_there_but_for_hidden_files(folder: Path) -> None:
    assert verify_manifest(folder)["name"] == "tiny-random"
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("hidden files are nobody's business")
    assert verify_manifest(folder)["name"] == "tiny-random"
    (folder / "new.txt").write_text("x")
    write_manifest(folder, {"name": "other"})
    assert verify_manifest(folder) == {"name": "other"}
    (folder / MANIFEST_NAME).unlink()
    assert verify_manifest(folder) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: alter_byte(f / FILE_NAME), "model.safetensors differs from its entry"),
        (lambda f: (f / "codec" / "config.json").unlink(), "codec/config.json is missing though"),
        (lambda f: (f / "codec" / "more.bin").write_text("x"), "codec/more.bin is not listed"),
        (link_outside, "config.json is a link that leaves the checkpoint folder"),
        (link_folder, "codec is a linked folder"),
        (lambda f: (f / MANIFEST_NAME).write_text("{}"), "is no manifest"),
    ],
)
def test_folders_that_differ_from_their_manifest_are_refused(
    change: Change, words: str, folder: Path
) -> None:
    change(folder)
    with pytest.raises(CheckpointError) as error:
        verify_manifest(folder)
    assert words in str(error.value) and str(error.value).endswith(".")
