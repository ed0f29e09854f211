"""From a checkpoint to an engine file by the command `build_engine`: nothing lost, and no half
result."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.config import EngineConfig
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors, save_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import LARGEST_INPUTS_NAME, entries_of, stream_float8_parts
from moss_engine.models.layout import parts, stream_parts
from moss_engine.models.manifest import MANIFEST_NAME, checkpoint_digest, write_manifest
from moss_engine.runtime.engine_manifest import read_engine_manifest
from scripts import build_engine
from tests.fixtures.make_tiny_checkpoint import make_tensors
from tests.runtime.engines.stand_in import installed

CAPACITY = {"block_size": 8, "kv_rows": 512, "max_sessions": 2, "max_step_rows": 64}
OPTIONS = EngineConfig(**CAPACITY)


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint's configuration with weights in float32."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(tiny_checkpoint / "config.json", folder)
    save_tensors(folder / FILE_NAME, make_tensors(ModelConfig.from_file(folder / "config.json")))
    return folder


def calibrate(checkpoint: Path, **others: float) -> dict[str, Tensor]:
    """Say how large inputs become, as `scripts.quantize` does; returns what was said."""
    shapes = expected_tensors(ModelConfig.from_file(checkpoint / "config.json"))
    names = [name for name, shape in shapes.items() if len(shape) == 2 and "embed" not in name]
    largest = {name: torch.tensor([3.0 + number / 7]) for number, name in enumerate(names)}
    largest |= {f"{name}.weight": torch.tensor([value]) for name, value in others.items()}
    save_file(largest, checkpoint / LARGEST_INPUTS_NAME)
    return largest


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    """A machine whose TensorRT is the stand-in, with a GPU of compute capability 8.9."""
    with installed():
        yield


def build(checkpoint: Path, out: Path, dtype: str = "bfloat16") -> dict[str, object]:
    return build_engine.build(checkpoint, out, "tensorrt", dtype, None, OPTIONS)


def test_the_command_says_what_it_made(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = tmp_path / "engine"
    options = ["--backend=tensorrt"]
    options += [f"--{name.replace('_', '-')}={value}" for name, value in CAPACITY.items()]
    build_engine.main([str(checkpoint), str(engine), *options])
    captured = capsys.readouterr()
    report, manifest = json.loads(captured.out.splitlines()[-1]), read_engine_manifest(engine)
    assert (report["plan_digest"], report["dtype"]) == (manifest.plan_digest, "bfloat16")
    assert manifest.checkpoint_digest == checkpoint_digest(checkpoint) and report["build_s"] >= 0
    assert "building" in captured.err and "done" in captured.err


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_layout_is_the_checkpoint_joined(dtype: str, checkpoint: Path) -> None:
    config = ModelConfig.from_file(checkpoint / "config.json")
    source = load_tensors(checkpoint, expected_tensors(config))
    found = dict(stream_parts(checkpoint, config, getattr(torch, dtype)))
    for name, part in parts(config).items():
        expected = torch.cat([source[s].to(getattr(torch, dtype)) for s in part.sources])
        assert torch.equal(found[name], expected), name
    assert {n: (t.dtype, tuple(t.shape)) for n, t in found.items()} == entries_of(config, dtype)


def test_float8_has_one_scale_a_matrix_and_one_for_its_inputs(
    checkpoint: Path, tmp_path: Path
) -> None:
    config, out = ModelConfig.from_file(checkpoint / "config.json"), tmp_path / "out"
    with pytest.raises(CheckpointError, match=r"float8_inputs.safetensors .*scripts\.quantize"):
        build(checkpoint, out, "float8")
    calibrate(checkpoint, text_lm_head=0.0)
    with pytest.raises(CheckpointError, match=r"says 0\.0 of text_lm_head\.weight"):
        build(checkpoint, out, "float8")
    assert not out.exists()
    largest = calibrate(checkpoint)
    assert build(checkpoint, out, "float8")["dtype"] == "float8"
    found = dict(stream_float8_parts(checkpoint, config))
    source = load_tensors(checkpoint, expected_tensors(config), dtype=torch.bfloat16)
    for name, part in parts(config).items():
        expected = torch.cat([source[s] for s in part.sources])
        if not name.startswith("layers.") or len(part.shape) < 2:
            assert torch.equal(found[name], expected), name
            continue
        values, scale = found[name], found[name + ".weight_scale"]
        assert values.dtype is torch.float8_e4m3fn and scale.shape == (1,)
        assert torch.equal(scale, scale.bfloat16().float())
        error = (values.float() * scale - expected.float()).abs()
        assert (error <= torch.maximum(expected.float().abs() / 16, scale / 512)).all()
        inputs = max(float(largest[s]) for s in part.sources)
        assert inputs / 448 <= float(found[name + ".input_scale"]) <= inputs / 448 * 1.01


def test_room_is_asked_for_beforehand(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines without their weights need none that matters."""
    calibrate(checkpoint)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 5000))
    words = r"The plan needs 0\.\d\d GB more .* 0\.00 GB are free; free some"
    with pytest.raises(ConfigError, match=words):
        build(checkpoint, tmp_path / "float8", "float8")
    assert not list((tmp_path / "float8").iterdir())
    assert build(checkpoint, tmp_path / "bfloat16")["plan_bytes"]


def test_folders_that_cannot_be_made_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.*config\.json is missing; .*\.$"):
        build(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    engine = tmp_path / "engine"
    build(checkpoint, engine)
    for out, words in (
        (engine, "holds an engine already"),
        (tmp_path / "full", "is no empty folder"),
        (tmp_path / "file", "is no empty folder"),
        (checkpoint / "engine", "lies within .*checkpoint, which is to stay as it is"),
        (tmp_path / "file" / "engine", r"cannot be written \(Not a directory\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            build(checkpoint, out)


def test_a_strange_checkpoint_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / FILE_NAME)
    save_file(tensors | {"audio_lm_head.weight": tensors["model.audio_embed.weight"].clone()},
              checkpoint / FILE_NAME)  # fmt: skip
    with pytest.raises(CheckpointError, match="as if tied"):
        build(checkpoint, tmp_path / "out")
    del tensors["model.audio_norm.weight"]
    save_file(tensors, checkpoint / FILE_NAME)
    with pytest.raises(CheckpointError, match=r"lacks tensors model\.audio_norm\.weight"):
        build(checkpoint, tmp_path / "out")


def test_an_altered_checkpoint_is_not_built(checkpoint: Path, tmp_path: Path) -> None:
    write_manifest(checkpoint, {})
    data = (checkpoint / FILE_NAME).read_bytes()
    (checkpoint / FILE_NAME).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"differs from its entry in .*{MANIFEST_NAME}"):
        build(checkpoint, tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_a_build_that_fails_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> None:
        args[2].write_bytes(b"half a plan")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_engine, "build_tensorrt_plan", failing)
    words = r"cannot be written \(No space left on device\); free some space"
    with pytest.raises(ConfigError, match=words):
        build(checkpoint, tmp_path / "engine")
    assert not list((tmp_path / "engine").iterdir())
