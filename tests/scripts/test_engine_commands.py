"""From a checkpoint to an engine file, by the commands `convert` and `build_engine`: nothing lost,
and no half result."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.models import tensor_file
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors, save_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.converted import entries_of, open_converted
from moss_engine.models.float8 import largest_inputs_path
from moss_engine.models.layout import parts
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import read_engine_manifest
from moss_engine.runtime.make import make_limits
from moss_engine.runtime.tensorrt.runtime import load_trt_runtime
from scripts import build_engine
from scripts import convert as convert_module
from scripts.build_engine import build
from scripts.convert import JOURNAL_NAME, convert
from tests.fixtures.make_tiny_checkpoint import make_tensors
from tests.runtime.tensorrt.stand_in import installed

CAPACITY = {"block_size": 8, "kv_rows": 512, "max_sessions": 2, "max_step_rows": 64}
OPTIONS = EngineConfig(**CAPACITY)


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint's configuration with weights that float16 holds."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(tiny_checkpoint / "config.json", folder)
    tensors = make_tensors(ModelConfig.from_file(folder / "config.json"))
    halves = {name: tensor.half().float() for name, tensor in tensors.items()}
    save_tensors(folder / FILE_NAME, halves)
    return folder


@pytest.fixture
def converted(checkpoint: Path, tmp_path: Path) -> Path:
    convert(checkpoint, tmp_path / "converted", "float16")
    return tmp_path / "converted"


@pytest.fixture
def emulated() -> Iterator[None]:
    """A machine whose TensorRT is the stand-in, with a GPU of compute capability 8.9."""
    with installed():
        yield


@pytest.mark.parametrize("weights", ["bound", "baked"])
@pytest.mark.usefixtures("emulated")
def test_what_the_commands_made_is_served(
    weights: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, engine = tmp_path / "layout", tmp_path / "engine"
    convert_module.main([str(checkpoint), str(layout), "--dtype", "fp16"])
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["dtype"], report["files_kept"]) == ("fp16", 0) and "100%" in captured.err
    numbers = [f"--{name.replace('_', '-')}={value}" for name, value in CAPACITY.items()]
    build_engine.main(
        [str(layout), str(engine), "--backend=tensorrt", "--weights", weights, *numbers]
    )
    captured = capsys.readouterr()
    report = json.loads(captured.out.splitlines()[-1])
    manifest = read_engine_manifest(engine)
    assert (report["plan_digest"], report["weights"]) == (manifest.plan_digest, weights)
    assert {"build_s", "peak_gpu_gib"} <= report.keys() and report["peak_host_gib"] > 0
    assert "building" in captured.err and "done" in captured.err and " GiB" in captured.err

    config = EngineConfig(checkpoint=checkpoint, runtime="tensorrt", engine=engine, **CAPACITY)
    limits = make_limits(config, ModelConfig.from_file(checkpoint / "config.json"))
    rows, cpu = tuple(Row(7 + i, i) for i in range(9)), torch.device("cpu")
    batch = ScheduledBatch((ScheduledSequence(rows, 0, (3, 1), True),))
    ours = load_trt_runtime(config, limits, cpu).forward(batch)
    reference = load_torch_runtime(checkpoint, limits, device=cpu, dtype=torch.float32, threads=1)
    for found, wanted in zip(ours, reference.forward(batch), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_layout_is_the_checkpoint_joined(dtype: str, checkpoint: Path, tmp_path: Path) -> None:
    """In files that others read, too."""
    out = tmp_path / "out"
    report = convert(checkpoint, out, dtype)
    converted = open_converted(out)
    assert (converted.dtype, converted.checkpoint_digest) == (dtype, checkpoint_digest(checkpoint))
    assert report["tensors"] == len(converted.tensors)
    assert report["files"] == converted.config.num_layers + 2
    source = load_tensors(checkpoint, expected_tensors(converted.config))
    for name, part in parts(converted.config).items():
        expected = torch.cat([source[s].to(getattr(torch, dtype)) for s in part.sources])
        assert torch.equal(converted.read(name), expected), name
    stored = [load_file(path) for path in out.glob("*.safetensors")]
    found = {name: (t.dtype, tuple(t.shape)) for file in stored for name, t in file.items()}
    assert found == entries_of(converted.config, dtype)


def test_float8_has_one_scale_a_matrix_and_one_for_its_inputs(
    checkpoint: Path, tmp_path: Path
) -> None:
    config = ModelConfig.from_file(checkpoint / "config.json")
    with pytest.raises(CheckpointError, match=r"float8_inputs.safetensors .*scripts\.quantize"):
        convert(checkpoint, tmp_path / "out", "float8")
    shapes = expected_tensors(config)
    names = [name for name, shape in shapes.items() if len(shape) == 2 and "embed" not in name]
    largest = {name: torch.tensor([3.0 + number / 7]) for number, name in enumerate(names)}
    save_file({**largest, "text_lm_head.weight": torch.zeros(1)}, largest_inputs_path(checkpoint))
    with pytest.raises(CheckpointError, match=r"says 0\.0 of text_lm_head\.weight"):
        convert(checkpoint, tmp_path / "out", "float8")
    assert not (tmp_path / "out").exists()
    save_file(largest, largest_inputs_path(checkpoint))
    convert(checkpoint, tmp_path / "out", "float8")
    converted = open_converted(tmp_path / "out")
    source = load_tensors(checkpoint, shapes, dtype=torch.bfloat16)
    for name, part in parts(config).items():
        expected = torch.cat([source[s] for s in part.sources])
        if not name.startswith("layers.") or len(part.shape) < 2:
            assert torch.equal(converted.read(name), expected), name
            continue
        values, scale = converted.read(name), converted.read(name + ".weight_scale")
        assert values.dtype is torch.float8_e4m3fn and scale.shape == (1,)
        assert torch.equal(scale, scale.bfloat16().float())
        error = (values.float() * scale - expected.float()).abs()
        assert (error <= torch.maximum(expected.float().abs() / 16, scale / 512)).all()
        inputs = max(float(largest[s]) for s in part.sources)
        assert inputs / 448 <= float(converted.read(name + ".input_scale")) <= inputs / 448 * 1.01


def test_a_full_disk_is_said_and_the_same_command_goes_on(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    convert(checkpoint, whole, "bfloat16")
    room = sum(path.stat().st_size for path in whole.glob("*.safetensors")) * 2 // 3

    def write(file, data: memoryview) -> None:
        nonlocal room
        room -= len(data)
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)

    with monkeypatch.context() as patch:
        patch.setattr(tensor_file, "_write", write)
        words = r"out cannot be written \(No space .*\); .*free some .*same command"
        with pytest.raises(ConfigError, match=words):
            convert(checkpoint, out, "bfloat16")
    assert not list(out.glob("*.partial"))
    with pytest.raises(CheckpointError, match="no finished conversion"):
        open_converted(out)
    with pytest.raises(ConfigError, match="unfinished conversion with dtype 'bfloat16', not"):
        convert(checkpoint, out, "float16")
    kept = sorted(out.glob("*.safetensors"))
    assert len(kept) > 1
    kept[0].write_bytes(kept[0].read_bytes()[:-1])  # as after a power cut
    times = {path: path.stat().st_mtime_ns for path in kept}
    report = convert(checkpoint, out, "bfloat16")
    assert report["files_kept"] == len(kept) - 1
    assert all(path.stat().st_mtime_ns == times[path] for path in kept[1:])
    for path in whole.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
    assert not (out / JOURNAL_NAME).exists()
    with pytest.raises(ConfigError, match=r"is not empty \(it holds config.json\)"):
        convert(checkpoint, out, "bfloat16")


@pytest.mark.usefixtures("emulated")
def test_room_is_asked_for_beforehand(
    converted: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound engines need none that matters."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 5000))
    words = r"needs 0\.\d\d GB more .* 0\.00 GB are free; free some"
    with pytest.raises(ConfigError, match=f"The conversion {words}"):
        convert(checkpoint, tmp_path / "out", "bfloat16")
    with pytest.raises(ConfigError, match=f"The plan {words}"):
        build(converted, tmp_path / "baked", "tensorrt", "baked", None, OPTIONS)
    assert not list((tmp_path / "baked").iterdir())
    report = build(converted, tmp_path / "bound", "tensorrt", "bound", None, OPTIONS)
    assert report["weights"] == "bound"


@pytest.mark.usefixtures("emulated")
def test_folders_that_cannot_be_made_are_refused(
    converted: Path, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.*config\.json is missing; .*\.$"):
        convert(tmp_path / "nowhere", tmp_path / "out", "bfloat16")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    for out, words in (
        (checkpoint / "within", "lies within .*checkpoint, which is to stay as it is"),
        (tmp_path / "file", "is a file; name a folder"),
        (tmp_path / "file" / "out", r"cannot be written \(Not a directory\); make it writable"),
    ):
        with pytest.raises(ConfigError, match=words):
            convert(checkpoint, out, "bfloat16")
    engine = tmp_path / "engine"
    build(converted, engine, "tensorrt", None, None, OPTIONS)
    for out, words in (
        (engine, "holds an engine already"),
        (checkpoint, "is no empty folder"),
        (converted / "engine", "lies within"),
        (tmp_path / "file" / "engine", r"cannot be written \(Not a directory\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            build(converted, out, "tensorrt", None, None, OPTIONS)


DAMAGES: dict[str, tuple[str, Tensor | float | None, str]] = {
    "lacks": ("model.audio_norm.weight", None, "lacks tensors model.audio_norm.weight"),
    "tied": ("audio_lm_head.weight", 1.0, "as if tied"),
    "nan": ("model.text_norm.weight", math.nan, "has NaN or infinite values"),
    "large": ("model.shared_block.layers.0.mlp.down_proj.weight", 1e6,
              r"layers\.0\.down is beyond float16; convert with --dtype bf16"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_strange_checkpoint_is_refused(damage: str, checkpoint: Path, tmp_path: Path) -> None:
    name, factor, words = DAMAGES[damage]
    tensors = load_file(checkpoint / FILE_NAME)
    source = tensors["model.audio_embed.weight"] if damage == "tied" else tensors[name]
    del tensors[name]
    if factor is not None:
        tensors[name] = source * factor
    save_file(tensors, checkpoint / FILE_NAME)
    with pytest.raises(CheckpointError, match=words):
        convert(checkpoint, tmp_path / "out", "float16")


def test_a_damaged_conversion_is_not_built(converted: Path, tmp_path: Path) -> None:
    layer, manifest = converted / "layer_001.safetensors", converted / "manifest.json"
    data, text = layer.read_bytes(), manifest.read_text(encoding="utf-8")
    for altered, values in (
        (data[:-1] + bytes([data[-1] ^ 1]), text),
        (data, text.replace('"float16"', '"bfloat16"')),
    ):
        layer.write_bytes(altered)
        manifest.write_text(values, encoding="utf-8")
        with pytest.raises(CheckpointError):
            build(converted, tmp_path / "engine", "tensorrt", None, None, OPTIONS)
    manifest.unlink()
    words = r"holds no finished conversion.*python -m scripts\.convert"
    with pytest.raises(CheckpointError, match=words):
        build(converted, tmp_path / "engine", "tensorrt", None, None, OPTIONS)
    assert not (tmp_path / "engine").exists()


@pytest.mark.usefixtures("emulated")
def test_a_build_that_fails_leaves_nothing(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> None:
        args[3].write_bytes(b"half a plan")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_engine, "build_tensorrt_plan", failing)
    words = r"cannot be written \(No space left on device\); free some space"
    with pytest.raises(ConfigError, match=words):
        build(converted, tmp_path / "engine", "tensorrt", None, None, OPTIONS)
    assert not list((tmp_path / "engine").iterdir())
