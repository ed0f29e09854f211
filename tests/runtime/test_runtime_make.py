"""From options to a runtime: what is chosen, and what is refused before weights are read."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moss_engine.api.errors import CheckpointError, ConfigError, MissingPackageError
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import Bits
from moss_engine.models.manifest import write_manifest
from moss_engine.runtime import make, memory
from moss_engine.runtime.cuda.weights import Float8, allocate, runtime_info
from moss_engine.runtime.eager import network
from moss_engine.runtime.eager.runtime import TorchRuntime
from moss_engine.runtime.make import make_runtime


@pytest.fixture
def config(tiny_checkpoint: Path) -> EngineConfig:
    return EngineConfig(
        checkpoint=tiny_checkpoint, device="cpu", kv_rows=256, max_sessions=2, max_step_rows=64
    )


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("moss_engine.models.checkpoint.read_tensor", read)


def test_limits_are_those_of_the_options(config: EngineConfig) -> None:
    limits = make_runtime(config).limits
    assert dataclasses.astuple(limits) == (16, 16, 2, 64, 256)
    longer = make_runtime(dataclasses.replace(config, kv_rows=10_000, block_size=8)).limits
    assert (longer.num_blocks, longer.max_seq_len) == (1250, 4096)  # the context of the model


def test_what_was_asked_for_runs_and_auto_takes_int8_where_it_is_faster(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        runtime = make_runtime(dataclasses.replace(config, dtype=dtype, runtime="torch"))
        assert isinstance(runtime, TorchRuntime) and runtime.info.dtype == dtype
    for faster, dtype in ((True, "int8"), (False, "float32")):
        monkeypatch.setattr(make, "int8_decodes_well", lambda threads, faster=faster: faster)
        assert make_runtime(config).info.dtype == dtype


def test_measuring_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    assert network.int8_decodes_well(before + 1) in (True, False)
    assert network.fastest_prefill_dtype(before + 1) in (torch.float32, torch.bfloat16)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "tpu"}, "'tpu' is no device"),
        ({"device": "meta"}, "'meta' is not supported"),
        ({"kv_rows": 64, "block_size": 100}, "--kv-rows 64 is less than one block of 100"),
        ({"max_sessions": 65}, "--max-step-rows 64 must be at least --max-sessions 65"),
        ({"dtype": "int4"}, "int4 runs on a GPU only; use int8 or float32"),
        (
            {"kv_cache_dtype": "int8"},
            "int8 runs on a GPU only, and not in float32; omit it, or use",
        ),
        (
            {"kv_cache_dtype": "int8", "engine": Path("e"), "runtime": "tensorrt"},
            "--kv-cache-dtype int8 is for --runtime torch, not tensorrt; omit it",
        ),
        ({"runtime": "tensorrt"}, "runs an engine file; build one with `python -m scripts.build_"),
        ({"engine": Path("e")}, "--engine e needs a TensorRT runtime; name it with --runtime, or"),
        ({"plugin": Path("p.so")}, "--plugin p.so needs a TensorRT runtime"),
        (
            {"plugin": Path("p.so"), "engine": Path("e"), "runtime": "tensorrt"},
            "--plugin is for --runtime tensorrt_llm, not tensorrt",
        ),
    ],
)
@pytest.mark.usefixtures("no_weights")
def test_options_that_cannot_work_are_refused(
    change: dict[str, object], words: str, config: EngineConfig
) -> None:
    with pytest.raises(ConfigError) as error:
        make_runtime(dataclasses.replace(config, **change))  # type: ignore[arg-type]
    assert words in str(error.value) and str(error.value).endswith(".")


@pytest.mark.usefixtures("no_weights")
def test_a_gpu_is_resolved_or_refused(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert make.resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"needs an NVIDIA GPU.*--device cpu"):
        make_runtime(dataclasses.replace(config, device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert make.resolve_device("auto") == make.resolve_device("cuda") == torch.device("cuda:1")
    assert make.resolve_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(ConfigError, match="there are 2 GPUs"):
        make.resolve_device("cuda:2")


def test_the_bits_of_a_gpu_are_the_asked_or_the_stored(config: EngineConfig) -> None:
    model = ModelConfig.from_file(config.checkpoint / "config.json")

    def bits(dtype: str) -> Bits | None:
        return make.gpu_bits(dataclasses.replace(config, dtype=dtype), model)

    assert bits("bfloat16") is None and bits("float8") is None
    assert set((bits("auto") or {}).values()) == {8}  # the folder stores int8
    assert bits("int8") == bits("auto")
    assert (bits("int4") or {})["trunk.0.qkv"] == 4 and (bits("int4") or {})["heads"] == 8


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "resolve_device", lambda name: torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 40)
    monkeypatch.setenv("CC", sys.executable)  # any program will do
    monkeypatch.setenv("CPATH", "somewhere")


def test_bfloat16_on_a_gpu_takes_the_cuda_runtime(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch)
    loaded, gpu = [], torch.device("cuda:0")
    load_cuda = lambda folder, limits, **how: loaded.append(tuple(how.values())[:3])  # noqa: E731
    load_torch = lambda *_, device, dtype, **how: loaded.append((device, dtype))  # noqa: E731
    module = SimpleNamespace(load_cuda_runtime=load_cuda)
    monkeypatch.setitem(sys.modules, "moss_engine.runtime.cuda.runtime", module)
    monkeypatch.setattr(make, "load_torch_runtime", load_torch)
    for dtype in ("auto", "float8", "float32"):
        make_runtime(dataclasses.replace(config, dtype=dtype))
    plain, float8 = ((gpu, torch.bfloat16, kind) for kind in (Float8.NONE, Float8.TRUNK))
    assert loaded == [plain, float8, (gpu, torch.float32)]
    with pytest.raises(ConfigError, match="multiples of 16, but the model has vocab_size 299"):
        make_runtime(dataclasses.replace(config, dtype="float8-all"))


def test_a_visitor_is_told_the_checkpoints_name_and_not_its_path(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = config.checkpoint.name
    assert make_runtime(config).info.weights == name
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    weights = allocate(model, torch.bfloat16, torch.device("cpu"))
    assert runtime_info(weights, config.checkpoint).weights == name
    monkeypatch.chdir(config.checkpoint)
    assert runtime_info(weights, Path()).weights == name
    assert runtime_info(weights, "random, seed 1").weights == "random, seed 1"


@pytest.mark.usefixtures("no_weights")
def test_a_gpu_without_triton_is_refused(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch)
    homes = ("moss_engine.runtime.cuda.runtime", "moss_engine.kernels")
    for name in [name for name in sys.modules if name.startswith(homes)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingPackageError, match="pip install triton"):
        make_runtime(config)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_a_gpu_without_a_compiler_is_refused_unless_triton_has_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CPATH", raising=False)
    for name, value in {"PATH": "", "TRITON_CACHE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(make.sysconfig, "get_path", lambda *_: str(tmp_path))
    for cc, words in (
        (None, r"a C compiler and Python's headers.*apt-get install gcc python3-dev"),
        ("no-such-cc", r"a C compiler \(CC=no-such-cc is none\)"),
        (sys.executable, "needs Python's headers, with which"),
    ):
        if cc is not None:
            monkeypatch.setenv("CC", cc)
        with pytest.raises(MissingPackageError, match=words):
            make.require_compiler()
    (tmp_path / "Python.h").touch()
    make.require_compiler()
    monkeypatch.setenv("CC", "no-such-cc")
    (tmp_path / "ABC").mkdir()
    (tmp_path / "ABC" / "cuda_utils.cpython-311-x86_64-linux-gnu.so").touch()
    make.require_compiler()


@pytest.mark.usefixtures("no_weights")
def test_too_little_memory_is_refused_with_the_numbers(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 << 29)
    # 4 layers x 2 x 2 heads x 8 values x 4 bytes a row
    words = r"needs 3\.00 GiB on cpu.*KV 2\.00 GiB.*1\.50 GiB are free; lower --kv-rows.*--dtype"
    with pytest.raises(ConfigError, match=words):
        make_runtime(dataclasses.replace(config, kv_rows=1 << 22))
    on_a_gpu(monkeypatch)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 << 29)
    # 8 values of a byte and a scale of two for each head
    with pytest.raises(ConfigError, match=r"on cuda:0.*KV 0\.62 GiB"):
        make_runtime(dataclasses.replace(config, kv_rows=1 << 22, kv_cache_dtype="int8"))


def test_free_memory_is_within_the_container_where_it_can_be_told(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_available_bytes", lambda: 7000)
    for container, expected in ((None, 7000), (500, 500), (9000, 7000)):
        monkeypatch.setattr(memory, "_container_bytes", lambda container=container: container)
        assert memory.free_bytes(torch.device("cpu")) == expected
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    assert isinstance(make_runtime(config), TorchRuntime)


@pytest.mark.usefixtures("no_weights")
def test_an_altered_checkpoint_is_refused(config: EngineConfig, tmp_path: Path) -> None:
    folder = shutil.copytree(config.checkpoint, tmp_path / "altered")
    (folder / "tokenizer.json").write_text("altered")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json differs from its entry"):
        make_runtime(dataclasses.replace(config, checkpoint=folder))
    write_manifest(folder, {})
    with pytest.raises(AssertionError, match="weights were read"):
        make_runtime(dataclasses.replace(config, checkpoint=folder))


ENGINES = ("tensorrt", "tensorrt_rtx", "tensorrt_llm")


@pytest.mark.parametrize("runtime", ENGINES)
@pytest.mark.usefixtures("no_weights")
def test_an_engine_runtime_is_loaded_by_its_module(
    runtime: str, config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are drawn by kernels where triton is installed."""
    on_a_gpu(monkeypatch)
    kernels = SimpleNamespace(KernelSampler=lambda model, max_batch, device: (max_batch, device))
    load = lambda options, limits, device: SimpleNamespace(  # noqa: E731
        name=options.runtime, engine=options.engine, device=device, limits=limits, sampler=None
    )
    loaders = SimpleNamespace(load_trt_runtime=load, load_trtllm_runtime=load)
    for name, module in (
        ("cuda.sampler", kernels),
        ("cuda.runtime", None),
        (f"{runtime.removesuffix('_rtx')}.runtime", loaders),
    ):
        monkeypatch.setitem(sys.modules, f"moss_engine.runtime.{name}", module)
    gpu = torch.device("cuda:0")
    for has_triton, sampler in ((True, (config.max_sessions, gpu)), (False, None)):
        found = "triton" if has_triton else None
        monkeypatch.setattr(make, "find_spec", lambda name, found=found: found)
        made = make_runtime(dataclasses.replace(config, runtime=runtime, engine=tmp_path))
        assert (made.name, made.engine, made.device) == (runtime, tmp_path, gpu)
        assert made.sampler == sampler


@pytest.mark.parametrize("runtime", ENGINES)
@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.usefixtures("no_weights")
def test_an_engine_runtime_never_becomes_another(
    runtime: str,
    has_gpu: bool,
    config: EngineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the package, with an empty folder, without a GPU: a sentence each time, and no other
    runtime."""
    if has_gpu:
        on_a_gpu(monkeypatch)
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt_llm"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError if has_gpu else ConfigError) as error:
        make_runtime(dataclasses.replace(config, runtime=runtime, engine=tmp_path))
    no_gpu = f"--runtime {runtime} needs an NVIDIA GPU, not cpu"
    words = "install it with `pip install" if has_gpu else no_gpu
    assert words in str(error.value) and "--runtime torch" in str(error.value)
