"""Engine files: opened through the options, and every way in which one may be the wrong one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moss_engine.api.errors import (
    ConfigError,
    EngineFaultError,
    EngineFileError,
    MissingPackageError,
)
from moss_engine.config import EngineConfig
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import file_digest
from moss_engine.runtime import memory
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_manifest import ENGINE_MANIFEST_NAME, PLAN_NAME
from moss_engine.runtime.tensorrt import engine as trt_engine
from moss_engine.runtime.tensorrt.runtime import EngineRuntime, load_trt_runtime
from moss_engine.runtime.tensorrt.tensors import PARTS, join_plans
from moss_engine.runtime.tensorrt_llm import runtime as llm_runtime
from moss_engine.runtime.tensorrt_llm.runtime import find_plugin, load_plugin, load_trtllm_runtime
from scripts import build_engine
from tests.runtime.engines import stand_in
from tests.runtime.engines.stand_in import installed
from tests.runtime.engines.support import CPU, STAND_IN, assert_agrees, prefill

BUILT = Limits(block_size=8, num_blocks=64, max_batch=3, max_step_rows=32, max_seq_len=512)
OPTIONS = EngineConfig(block_size=8, kv_rows=512, max_sessions=3, max_step_rows=32)


@pytest.fixture(scope="module")
def built(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("engines")
    found = {backend: folder / backend for backend in ("tensorrt", "tensorrt_llm")}
    with installed(folder=folder):
        for backend, engine in found.items():
            build_engine.build(tiny_checkpoint, engine, backend, "float32", None, OPTIONS)
    return found


@pytest.fixture(params=["tensorrt", "tensorrt_llm"])
def engine(
    request: pytest.FixtureRequest,
    built: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """A copy to be spoilt, on a machine with the stand-in for the packages and a GPU of compute
    capability 8.9."""
    monkeypatch.setattr(llm_runtime, "load_plugin", lambda path: None)
    with installed(folder=tmp_path):
        yield Path(shutil.copytree(built[request.param], tmp_path / request.param))


only_plain = pytest.mark.parametrize("engine", ["tensorrt"], indirect=True)
only_llm = pytest.mark.parametrize("engine", ["tensorrt_llm"], indirect=True)


def load(
    checkpoint: Path, engine: Path, limits: Limits = BUILT, dtype: str = "auto"
) -> EngineRuntime:
    config = EngineConfig(checkpoint=checkpoint, engine=engine, runtime=engine.name, dtype=dtype)
    load = load_trtllm_runtime if engine.name == "tensorrt_llm" else load_trt_runtime
    return load(config, limits, CPU)


def alter(engine: Path, **fields: object) -> None:
    path = engine / ENGINE_MANIFEST_NAME
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | fields), encoding="utf-8")


def test_an_engine_file_runs_within_its_limits(tiny_checkpoint: Path, engine: Path) -> None:
    """What the command built has the torch runtime's logits, also with fewer blocks, shorter
    sequences and smaller steps than it was built for."""
    for limits in (BUILT, Limits(8, 20, 2, 20, 40)):
        runtime = load(tiny_checkpoint, engine, limits)
        info = runtime.info
        assert (info.name, info.version, info.dtype) == (engine.name, "10.16.1.11", "float32")
        assert info.engine_digest == file_digest(engine / PLAN_NAME)
        assert_agrees(runtime, tiny_checkpoint)
        runtime.close()
        runtime.close()
        with pytest.raises(AssertionError, match="closed"):
            prefill(runtime)


def test_memory_that_an_engine_lacks_is_not_had_by_another_dtype(
    tiny_checkpoint: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number format is that of the file."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 20)
    with pytest.raises(ConfigError, match=r"are free; lower --kv-rows or free some\.$"):
        load(tiny_checkpoint, engine)
    with pytest.raises(EngineFileError, match="dtype float32 where bfloat16 is needed"):
        load(tiny_checkpoint, engine, dtype="bfloat16")


@only_plain
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (b"half an engine", r"does not hold the three parts .*scripts\.build_engine"),
        (join_plans(dict.fromkeys(PARTS, b"none")), r"tensorrt 10\.16\.1\.11 refuses the plan"),
    ],
)
def test_a_plan_that_cannot_be_opened_is_a_sentence(
    tiny_checkpoint: Path, engine: Path, plan: bytes, words: str
) -> None:
    (engine / PLAN_NAME).write_bytes(plan)
    alter(engine, plan_digest=file_digest(engine / PLAN_NAME), plan_bytes=len(plan))
    with pytest.raises(EngineFileError, match=words):
        load(tiny_checkpoint, engine)


def test_tensors_that_are_not_the_known_ones_are_named(tiny_checkpoint: Path, engine: Path) -> None:
    """The manifest says something else than the plan was built with."""
    alter(engine, limits=dataclasses.asdict(dataclasses.replace(BUILT, max_seq_len=640)))
    words = r"tensor '(rotary|cache_indirection)' has shape \(.* where \(.* is needed"
    with pytest.raises(EngineFileError, match=words):
        load(tiny_checkpoint, engine)


@only_llm
def test_inputs_are_those_that_are_known(
    tiny_checkpoint: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(llm_runtime.INPUTS, "more", llm_runtime.INPUTS["select"])
    with pytest.raises(EngineFileError, match="The engine lacks the input 'more'"):
        load(tiny_checkpoint, engine)
    alter(engine, dtype="float8")
    monkeypatch.delitem(llm_runtime.INPUTS, "more")
    with pytest.raises(EngineFileError, match=r"has an unknown input 'audio\.head'"):
        load(tiny_checkpoint, engine)


@pytest.mark.parametrize("call", ["set_input_shape", "set_tensor_address", "execute_async_v3"])
def test_every_return_code_is_checked(
    call: str, tiny_checkpoint: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in.Context, call, lambda *args: False)
    with pytest.raises(EngineFaultError, match=call):
        prefill(load(tiny_checkpoint, engine))


def test_a_library_that_cannot_serve_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trt_engine._MODULES, "tensorrt", ("no_such_tensorrt",))
    with pytest.raises(MissingPackageError, match=r"pip install .*tensorrt.*--runtime torch"):
        trt_engine.load_library("tensorrt")
    with pytest.raises(ConfigError, match=r"tensorrt 8\.6\.0 is installed and 10\.4 is the oldest"):
        trt_engine.describe("tensorrt", SimpleNamespace(__version__="8.6.0"))
    library = dataclasses.replace(STAND_IN, backend="tensorrt_rtx")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(ConfigError, match="H100 and H200"):
        trt_engine.compute_capability(library, torch.device("cuda"))


@pytest.mark.parametrize(
    ("build", "dtype", "change", "words"),
    [
        (build_llm_plan, "bfloat16", {"block_size": 24}, "--block-size 24 is no power of two"),
        (build_llm_plan, "bfloat16", {"block_size": 4}, "is no power of two from 8 on"),
        (build_tensorrt_plan, "float32", {"gpu": "9.0"}, "which has compute capability 8.9"),
        (build_llm_plan, "float32", {"gpu": "9.0"}, "which has compute capability 8.9"),
        (build_tensorrt_plan, "float32", {"gpu": None}, "builds on the GPU that the engine is for"),
        (build_llm_plan, "float32", {"gpu": None}, "builds on the GPU that the engine is for"),
        (build_llm_plan, "float32", {"llm": "1.3.0"}, "1.3.0 is installed and engines are built"),
        (build_tensorrt_plan, "float32", {"fails": True}, "could not build .* --max-step-rows"),
        (build_llm_plan, "float32", {"fails": True}, "could not build .* --max-step-rows"),
    ],
)
def test_what_cannot_be_built_is_a_sentence(
    build: Callable[..., object],
    dtype: str,
    change: dict[str, Any],
    words: str,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    limits = dataclasses.replace(BUILT, block_size=change.get("block_size", 8))
    backend = "tensorrt_llm" if build is build_llm_plan else "tensorrt"
    target = BuildTarget(backend, dtype, change.get("gpu"), limits)
    if "fails" in change:
        monkeypatch.setattr(stand_in.Builder, "build_serialized_network", lambda *given: None)
    with (
        installed(str(change.get("llm", "1.2.1")), tmp_path),
        pytest.MonkeyPatch.context() as patch,
    ):
        if "gpu" in change and change["gpu"] is None:
            patch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match=words):
            build(config, target, tmp_path / PLAN_NAME, None, lambda line: None)
    assert not (tmp_path / PLAN_NAME).exists()


def test_a_missing_llm_package_is_a_sentence(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    target = BuildTarget("tensorrt_llm", "bfloat16", None, BUILT)
    words = r"install tensorrt_llm 1\.2\.1 .*, as docs/engine_files\.md says"
    with pytest.raises(MissingPackageError, match=words):
        build_llm_plan(config, target, tmp_path / PLAN_NAME, None, print)


def test_the_plugins_library_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or in the folder of its package, which is never imported."""
    plugin, library = tmp_path / "plugin.so", tmp_path / llm_runtime.LIBRARY
    plugin.write_bytes(b"no library")
    assert find_plugin(plugin) == plugin
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_plugin(plugin)
    words = r"--plugin .* is no file; name libnvinfer_plugin_tensorrt_llm\.so"
    with pytest.raises(ConfigError, match=words):
        find_plugin(tmp_path / "missing.so")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    for found in (None, spec):
        monkeypatch.setattr(llm_runtime, "find_spec", lambda name, found=found: found)
        words = r"pip install --no-deps tensorrt_llm==1\.2\.1.*--plugin"
        with pytest.raises(MissingPackageError, match=words):
            find_plugin(None)
    library.parent.mkdir()
    library.touch()
    assert find_plugin(None) == library


CODE = """
#include <stdbool.h>
#include <string.h>
bool %s(void* logger, char const* space) { return %d && !logger && !strcmp(space, "tensorrt_llm"); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("name", "registers", "words"),
    [
        ("initTrtLlmPlugins", 1, ""),
        ("initTrtLlmPlugins", 0, r"registered no plugins; use .* tensorrt_llm 1\.0\.0 or 1\.2\.1"),
        ("initOtherPlugins", 1, r"cannot be loaded .*initTrtLlmPlugins"),
    ],
)
def test_registration_is_checked(name: str, registers: int, words: str, tmp_path: Path) -> None:
    """A library of its own, called as the real one is."""
    source, library = tmp_path / "plugin.c", tmp_path / "plugin.so"
    source.write_text(CODE % (name, registers), encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext():
        load_plugin(library)
