"""The build command: from a converted folder to an engine that a runtime opens, and what a failure
leaves behind."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import CheckpointError, ConfigError, MissingPackageError
from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.export.tensorrt import BuiltPlan
from moss_engine.models.checkpoint import FILE_NAME, save_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import read_engine_manifest
from moss_engine.runtime.make import make_limits
from moss_engine.runtime.tensorrt.runtime import load_trt_runtime
from scripts import build_engine
from scripts.build_engine import build, main
from scripts.convert import convert
from tests.fixtures.make_tiny_checkpoint import make_tensors
from tests.runtime.tensorrt.stand_in import installed

CAPACITY = ["--block-size", "8", "--kv-rows", "512", "--max-sessions", "2", "--max-step-rows", "64"]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    shutil.copy(tiny_checkpoint / "config.json", folder)
    tensors = make_tensors(ModelConfig.from_file(folder / "config.json"))
    save_tensors(
        folder / FILE_NAME, {name: tensor.half().float() for name, tensor in tensors.items()}
    )
    return folder


@pytest.fixture(scope="module")
def converted(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "fp16"
    convert(checkpoint, folder, "float16")
    return folder


@pytest.fixture
def emulated() -> Iterator[None]:
    """A machine whose TensorRT is the stand-in, with a GPU of compute capability 8.9."""
    with installed():
        yield


@pytest.mark.parametrize("weights", ["bound", "baked"])
@pytest.mark.usefixtures("emulated")
def test_what_was_built_is_served(
    weights: str,
    checkpoint: Path,
    converted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(
        [
            str(converted),
            str(tmp_path / "engine"),
            "--backend",
            "tensorrt",
            "--weights",
            weights,
            *CAPACITY,
        ]
    )
    captured = capsys.readouterr()
    report = json.loads(captured.out.splitlines()[-1])
    manifest = read_engine_manifest(tmp_path / "engine")
    assert (report["plan_digest"], report["weights"]) == (manifest.plan_digest, weights)
    assert "build_s" in report and report["peak_host_gib"] > 0
    assert "building" in captured.err and "done" in captured.err and " GiB" in captured.err
    options = EngineConfig(
        checkpoint=checkpoint,
        runtime="tensorrt",
        engine=tmp_path / "engine",
        block_size=8,
        kv_rows=512,
        max_sessions=2,
        max_step_rows=64,
    )
    limits = make_limits(options, ModelConfig.from_file(checkpoint / "config.json"))
    rows = tuple(Row(7 + i, i) for i in range(9))
    batch = ScheduledBatch((ScheduledSequence(rows, 0, (3, 1), True),))
    ours = load_trt_runtime(options, limits, torch.device("cpu")).forward(batch)
    theirs = load_torch_runtime(
        checkpoint, limits, device=torch.device("cpu"), dtype=torch.float32, threads=1
    ).forward(batch)
    torch.testing.assert_close(ours.text, theirs.text, rtol=0, atol=0.03)
    torch.testing.assert_close(ours.audio, theirs.audio, rtol=0, atol=0.03)


@pytest.mark.usefixtures("emulated")
def test_the_manifest_is_written_last(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> BuiltPlan:
        args[2].write_bytes(b"half a plan")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_engine, "build_plan", failing)
    with pytest.raises(
        ConfigError, match=r"cannot be written \(No space left on device\); free some space"
    ):
        build(converted, tmp_path / "engine", "tensorrt", None, None, EngineConfig())
    assert not list((tmp_path / "engine").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written \(Not a directory\)"):
        build(converted, tmp_path / "file" / "engine", "tensorrt", None, None, EngineConfig())


@pytest.mark.usefixtures("emulated")
def test_room_for_baked_weights_is_asked_for_beforehand(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 5000))  # type: ignore[attr-defined]
    config = EngineConfig(kv_rows=512, max_step_rows=64)
    with pytest.raises(
        ConfigError, match=r"The plan needs 0\.\d\d GB more in .* and 0\.00 GB are free; free some"
    ):
        build(converted, tmp_path / "baked", "tensorrt", "baked", None, config)
    assert not list((tmp_path / "baked").iterdir())
    assert (
        build(converted, tmp_path / "bound", "tensorrt", "bound", None, config)["weights"]
        == "bound"
    )


@pytest.mark.usefixtures("emulated")
def test_nothing_is_overwritten(converted: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    build(converted, out, "tensorrt", None, None, EngineConfig(kv_rows=512, max_step_rows=64))
    with pytest.raises(ConfigError, match="holds an engine already"):
        build(converted, out, "tensorrt", None, None, EngineConfig())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    for folder, words in (
        (tmp_path / "full", "is no empty folder"),
        (converted / "engine", "lies within"),
    ):
        with pytest.raises(ConfigError, match=words):
            build(converted, folder, "tensorrt", None, None, EngineConfig())


def test_an_unconverted_checkpoint_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"holds no finished conversion.*python -m scripts\.convert"
    ):
        build(checkpoint, tmp_path / "engine", "tensorrt", None, None, EngineConfig())
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("tensorrt", "tensorrt needs the package tensorrt"),
        ("tensorrt_llm", "--backend tensorrt_llm cannot be loaded"),
    ],
)
def test_a_missing_package_is_a_sentence(
    backend: str, words: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorrt", "tensorrt_llm"):
        monkeypatch.setitem(sys.modules, name, None)
    convert(checkpoint, tmp_path / "converted", "bfloat16")
    with pytest.raises(MissingPackageError, match=words):
        build(tmp_path / "converted", tmp_path / "engine", backend, None, None, EngineConfig())


@pytest.mark.parametrize("option", ["--max-waiting", "--max-text-chars", "--max-speech-s"])
def test_an_option_without_effect_on_the_engine_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["IN", str(tmp_path / "out"), "--backend", "tensorrt", *CAPACITY, option, "1"])
    assert f"unrecognized arguments: {option} 1" in capsys.readouterr().err


def test_scales_are_baked() -> None:
    assert [build_engine.default_weights(dtype) for dtype in ("bfloat16", "float16", "float8")] == [
        "bound",
        "bound",
        "baked",
    ]


@pytest.mark.parametrize(
    "command",
    [["convert", "NOWHERE", "OUT"], ["build_engine", "NOWHERE", "OUT", "--backend", "tensorrt"]],
)
def test_the_commands_end_with_one_sentence(command: list[str], tmp_path: Path) -> None:
    folders = {"NOWHERE": str(tmp_path / "nowhere"), "OUT": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, "-m", f"scripts.{command[0]}", *(folders.get(a, a) for a in command[1:])],
        capture_output=True,
        text=True,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    assert folders["NOWHERE"] in last and last.endswith(".") and not (tmp_path / "out").exists()
