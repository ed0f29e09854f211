"""Engine files of TensorRT: opened through the options, and every way in which one may be the wrong
one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moss_engine.api.errors import ConfigError, EngineFileError, MissingPackageError, MossError
from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.export import tensorrt as export
from moss_engine.export.target import BuildTarget
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime import memory
from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.engine_manifest import (
    ENGINE_MANIFEST_NAME,
    PLAN_NAME,
    plan_digest,
    write_engine_manifest,
)
from moss_engine.runtime.tensorrt import library as trt_library
from moss_engine.runtime.tensorrt import load as trt
from moss_engine.runtime.tensorrt.part_tensors import PARTS, join_plans
from tests.runtime.tensorrt.trt_support import EMULATOR, manifest_of

CPU = torch.device("cpu")
BUILT = Limits(block_size=4, num_blocks=64, max_batch=3, max_step_rows=32, max_seq_len=128)


@pytest.fixture(scope="module")
def built(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine folder, as the build command leaves it."""
    folder = tmp_path_factory.mktemp("engine")
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    plan = export.build_plan(
        EMULATOR, config, "float32", BuildTarget("tensorrt", "bound", None, BUILT), None, print
    )
    (folder / PLAN_NAME).write_bytes(plan)
    digest, num_bytes = plan_digest(folder / PLAN_NAME)
    manifest = dataclasses.replace(
        manifest_of(EMULATOR, BUILT, "float32", "bound"),
        plan_digest=digest,
        plan_bytes=num_bytes,
        checkpoint_digest=checkpoint_digest(tiny_checkpoint),
    )
    write_engine_manifest(folder, manifest)
    return folder


@pytest.fixture
def engine(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be spoilt, on a machine with the emulator for TensorRT and a GPU of compute
    capability 9.0."""
    monkeypatch.setattr(
        trt, "load_library", lambda backend: dataclasses.replace(EMULATOR, backend=backend)
    )
    monkeypatch.setattr(trt, "compute_capability", lambda library, device: "9.0")
    return Path(shutil.copytree(built, tmp_path / "engine"))


def load(
    checkpoint: Path,
    engine: Path,
    limits: Limits = BUILT,
    runtime: str = "tensorrt",
    dtype: str = "auto",
) -> trt.TrtRuntime:
    config = EngineConfig(checkpoint=checkpoint, engine=engine, runtime=runtime, dtype=dtype)
    return trt.load_trt_runtime(config, limits, CPU)


def alter(engine: Path, **fields: object) -> None:
    path = engine / ENGINE_MANIFEST_NAME
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8"
    )


def test_an_engine_file_runs_within_its_limits(tiny_checkpoint, engine):
    """Fewer blocks, shorter sequences and smaller steps than the engine was built for."""
    rows = tuple(Row(text, 3) for text in range(7, 17))
    found = []
    for limits in (BUILT, Limits(4, 20, 2, 16, 40)):
        runtime = load(tiny_checkpoint, engine, limits)
        assert runtime.info.engine_digest == plan_digest(engine / PLAN_NAME)[0]
        found.append(
            runtime.forward(ScheduledBatch((ScheduledSequence(rows, 0, (5, 1, 7), True),)))
        )
        runtime.close()
    torch.testing.assert_close(found[0].text, found[1].text)
    torch.testing.assert_close(found[0].audio, found[1].audio)


@pytest.mark.parametrize(
    ("fields", "both", "remedy"),
    [
        (
            {"library_version": "10.3.0"},
            "library_version 10.3.0 where 10.16.1.11",
            "install release 10.3.0",
        ),
        ({"compute_capability": "8.9"}, "compute_capability 8.9 where 9.0", "scripts.build_engine"),
        ({"checkpoint_digest": "0" * 64}, "checkpoint_digest 000000000000 where", "--checkpoint"),
        (
            {"backend": "tensorrt_rtx"},
            "backend tensorrt_rtx where tensorrt",
            "--runtime tensorrt_rtx",
        ),
        ({"block_size": 8}, "block_size 8 where 4", "--block-size 8"),
        ({"max_batch": 2}, "max_batch 2 where 3", "--max-sessions 2"),
    ],
)
def test_an_engine_for_something_else_is_refused(tiny_checkpoint, engine, fields, both, remedy):
    alter(engine, **fields)
    with pytest.raises(EngineFileError) as refused:
        load(tiny_checkpoint, engine)
    assert both in str(refused.value) and remedy in str(refused.value)


def test_memory_that_an_engine_lacks_is_not_had_by_another_dtype(
    tiny_checkpoint, engine, monkeypatch
):
    """Its number format is that of the file."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 20)
    with pytest.raises(ConfigError, match=r"are free; lower --kv-rows or free some\.$"):
        load(tiny_checkpoint, engine)


def test_another_number_format_is_refused(tiny_checkpoint, engine):
    with pytest.raises(EngineFileError, match="dtype float32 where bfloat16 is needed"):
        load(tiny_checkpoint, engine, dtype="bfloat16")


@pytest.mark.parametrize("spoil", ["edited", "truncated", "missing"])
def test_a_plan_that_is_not_the_one_that_was_built_is_refused(tiny_checkpoint, engine, spoil):
    plan = engine / PLAN_NAME
    values = bytearray(plan.read_bytes())
    values[len(values) // 2] ^= 1
    if spoil == "missing":
        plan.unlink()
    else:
        plan.write_bytes(values if spoil == "edited" else values[:-7])
    with pytest.raises(EngineFileError, match=PLAN_NAME) as refused:
        load(tiny_checkpoint, engine)
    assert "scripts.build_engine" in str(refused.value)


def test_a_plan_that_the_library_refuses_is_a_sentence(tiny_checkpoint, engine):
    (engine / PLAN_NAME).write_bytes(join_plans(dict.fromkeys(PARTS, b"no plan at all")))
    digest, num_bytes = plan_digest(engine / PLAN_NAME)
    alter(engine, plan_digest=digest, plan_bytes=num_bytes)
    with pytest.raises(EngineFileError, match=r"tensorrt 10\.16\.1\.11 refuses the plan"):
        load(tiny_checkpoint, engine)


def test_a_plan_that_is_not_in_parts_is_a_sentence(tiny_checkpoint, engine):
    (engine / PLAN_NAME).write_bytes(b"a whole engine, or half of one")
    digest, num_bytes = plan_digest(engine / PLAN_NAME)
    alter(engine, plan_digest=digest, plan_bytes=num_bytes)
    with pytest.raises(
        EngineFileError, match=r"holds 30 bytes and not the three parts .*scripts\.build_engine"
    ):
        load(tiny_checkpoint, engine)


def test_tensors_that_are_not_the_known_ones_are_named(tiny_checkpoint, engine):
    """The manifest says another length than the plan was built with: the rotary table has another
    shape."""
    alter(engine, max_seq_len=160)
    with pytest.raises(
        EngineFileError, match=r"'rotary' has shape \(128, .*\) where \(160, .*\) is needed"
    ):
        load(tiny_checkpoint, engine)


def test_a_missing_package_is_a_sentence(monkeypatch):
    monkeypatch.setitem(trt_library._MODULES, "tensorrt", ("no_such_tensorrt",))
    with pytest.raises(MissingPackageError, match=r"pip install .*tensorrt.*--runtime torch"):
        trt_library.load_library("tensorrt")


def test_an_old_release_is_refused():
    with pytest.raises(ConfigError, match=r"tensorrt 8\.5\.3 is installed and 8\.6 is the oldest"):
        trt_library.describe("tensorrt", SimpleNamespace(__version__="8.5.3"))


def test_rtx_refuses_a_gpu_that_it_does_not_serve(monkeypatch):
    library = dataclasses.replace(EMULATOR, backend="tensorrt_rtx")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(ConfigError, match="H100 and H200"):
        trt_library.compute_capability(library, torch.device("cuda"))


def test_what_cannot_be_built_is_a_sentence(tiny_checkpoint, monkeypatch):
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    old = dataclasses.replace(EMULATOR, version="8.6.0", release=(8, 6))
    for library, dtype, weights, sentence in (
        (old, "bfloat16", "bound", "has no bfloat16"),
        (EMULATOR, "float8", "bound", "--weights baked"),
    ):
        with pytest.raises(MossError, match=sentence):
            export.build_plan(
                library, config, dtype, BuildTarget("tensorrt", weights, None, BUILT), None, print
            )
    target = BuildTarget("tensorrt", "bound", None, BUILT)
    with monkeypatch.context() as failing:
        builder = EMULATOR.module.Builder
        failing.setattr(builder, "build_serialized_network", lambda *given: None)
        with pytest.raises(ConfigError, match=r"build with smaller --max-step-rows.* convert with"):
            export.build_plan(EMULATOR, config, "float32", target, None, print)
    monkeypatch.setattr(export, "load_library", lambda backend: EMULATOR)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="builds on the GPU that the engine is for"):
        export.build_tensorrt_plan(
            config,
            "float32",
            BuildTarget("tensorrt", "bound", None, BUILT),
            Path("none"),
            None,
            print,
        )
