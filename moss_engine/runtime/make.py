"""`make_runtime`: from the options to the runtime that was asked for, or a refusal."""

from __future__ import annotations

import math
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.config import EngineConfig
from moss_engine.models.checkpoint import expected_tensors, stores_int8
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import FORMATS, Bits, bits_of_format, stored_bits
from moss_engine.models.manifest import verify_manifest
from moss_engine.runtime.base import BACKENDS, Limits, Runtime
from moss_engine.runtime.cuda.weights import Float8, num_bytes
from moss_engine.runtime.eager.network import int8_decodes_well
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.memory import TO_FIT_WITH_DTYPE, kv_row_bytes, require_memory
from moss_engine.runtime.sampler import LogitsRuntime

# Number formats in which some linear layers are float8 and all else is bfloat16.
FLOAT8 = {"float8": Float8.TRUNK, "float8-all": Float8.ALL}


def make_runtime(config: EngineConfig) -> Runtime:
    """Load the checkpoint of `config` into the runtime it names.

    Everything that can be refused is refused before weights are read: a damaged folder
    (CheckpointError), a device or number format that this machine cannot serve, too little memory
    (ConfigError with the numbers), an engine file of something else (EngineFileError), or a package
    that is absent (MissingPackageError). The torch runtime is `CudaRuntime` on a GPU, except in
    float32; that and a CPU are served by `TorchRuntime`.
    """
    require_runtime(config)
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    limits = make_limits(config, model)
    return LOADERS[config.runtime](config, limits, resolve_device(config.device))


def require_runtime(config: EngineConfig) -> None:
    """Raise ConfigError for a runtime without a loader, and for options that it does not have."""
    if config.runtime not in LOADERS:
        raise ConfigError(f"--runtime is {config.runtime!r}; choose one of {', '.join(LOADERS)}.")
    if config.runtime in BACKENDS:
        return
    for name in ("engine", "plugin"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"--{name} {getattr(config, name)} needs a TensorRT runtime; name it with "
                f"--runtime, or omit --{name}."
            )


def _load_torch(config: EngineConfig, limits: Limits, device: torch.device) -> LogitsRuntime:
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    dtype = resolve_dtype(config, device)
    kernels = device.type == "cuda" and dtype is torch.bfloat16
    if config.kv_cache_dtype == "int8" and not kernels:
        raise ConfigError(
            "--kv-cache-dtype int8 runs on a GPU only, and not in float32; omit it, or use "
            "--device cuda without --dtype float32."
        )
    _require_memory(config, model, limits, device, dtype)
    verify_manifest(config.checkpoint)
    if kernels:
        return _load_cuda_runtime(config, limits, device)
    return load_torch_runtime(
        config.checkpoint, limits, device=device, dtype=dtype, threads=config.threads
    )


def make_limits(config: EngineConfig, model: ModelConfig) -> Limits:
    """Capacity that the options ask for, within the model's context; raises ConfigError where
    there is no block, or no row of a step for every session."""
    num_blocks = config.kv_rows // config.block_size
    if num_blocks == 0:
        raise ConfigError(
            f"--kv-rows {config.kv_rows} is less than one block of {config.block_size}; raise it."
        )
    max_seq_len = min(model.max_position_embeddings, num_blocks * config.block_size)
    if config.max_step_rows < config.max_sessions:
        raise ConfigError(
            f"--max-step-rows {config.max_step_rows} must be at least --max-sessions "
            f"{config.max_sessions}: every session gets a row in a step."
        )
    return Limits(
        config.block_size, num_blocks, config.max_sessions, config.max_step_rows, max_seq_len
    )


def resolve_device(name: str) -> torch.device:
    """cpu, cuda, cuda:N, or auto (a GPU when there is one) -> the device; raises ConfigError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"--device {name!r} is no device; use auto, cpu, cuda or cuda:N."
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r} is not supported; use auto, cpu, cuda or cuda:N.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"--device {name} needs an NVIDIA GPU and a torch built for it; use --device cpu."
            )
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(
                f"--device {name}: there are {torch.cuda.device_count()} GPUs; choose a lower "
                f"number."
            )
        device = torch.device(
            "cuda", torch.cuda.current_device() if device.index is None else device.index
        )
    return device


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype | str:
    """The number format of the torch runtime: a dtype, or "int8" on a CPU.

    On a GPU it is that of what is not rounded further: bfloat16, also for --dtype float8, int8 and
    int4, or float32. auto on a CPU is "int8" where the checkpoint stores int8 and this CPU is not
    clearly slower with it, else float32. Raises ConfigError for a format that the device does not
    run.
    """
    if device.type == "cuda":
        if config.dtype != "float32" and not torch.cuda.is_bf16_supported(
            including_emulation=False
        ):
            raise ConfigError(
                f"{torch.cuda.get_device_name(device)} has no bfloat16; use --dtype float32."
            )
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    if config.dtype in FLOAT8:
        raise ConfigError(
            f"--dtype {config.dtype} runs on a GPU only; use int8 or float32, or --device cuda."
        )
    if config.dtype == "int4":
        raise ConfigError(
            "--dtype int4 runs on a GPU only; use int8 or float32, in which a folder of 4 bits "
            "keeps its values, or --device cuda."
        )
    if config.dtype == "auto":
        int8 = stores_int8(config.checkpoint) and int8_decodes_well(config.threads)
        return "int8" if int8 else torch.float32
    return "int8" if config.dtype == "int8" else getattr(torch, config.dtype)


def _load_engine(config: EngineConfig, limits: Limits, device: torch.device) -> LogitsRuntime:
    if config.plugin is not None and config.runtime != "tensorrt_llm":
        raise ConfigError(f"--plugin is for --runtime tensorrt_llm, not {config.runtime}; omit it.")
    if config.kv_cache_dtype != "auto":
        raise ConfigError(
            f"--kv-cache-dtype {config.kv_cache_dtype} is for --runtime torch, not "
            f"{config.runtime}; omit it."
        )
    if config.engine is None:
        raise ConfigError(
            f"--runtime {config.runtime} runs an engine file; build one with `python -m "
            f"scripts.build_engine` and name its folder with --engine."
        )
    if device.type != "cuda":
        raise ConfigError(
            f"--runtime {config.runtime} needs an NVIDIA GPU, not {device}; use --runtime torch."
        )
    verify_manifest(config.checkpoint)
    if config.runtime == "tensorrt_llm":
        from moss_engine.runtime.tensorrt_llm.runtime import load_trtllm_runtime as load
    else:
        from moss_engine.runtime.tensorrt.runtime import load_trt_runtime as load
    runtime = load(config, limits, device)
    _draw_in_kernels(runtime, ModelConfig.from_file(config.checkpoint / "config.json"), device)
    return runtime


def _draw_in_kernels(runtime: LogitsRuntime, model: ModelConfig, device: torch.device) -> None:
    """Rows are drawn by kernels where triton is installed, else in plain PyTorch."""
    if find_spec("triton") is not None:
        from moss_engine.runtime.cuda.sampler import KernelSampler

        runtime.sampler = KernelSampler(model, runtime.limits.max_batch, device)


def _load_cuda_runtime(config: EngineConfig, limits: Limits, device: torch.device) -> LogitsRuntime:
    try:
        from moss_engine.runtime.cuda.runtime import load_cuda_runtime
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise MissingPackageError(
            "bfloat16 on a GPU needs the package triton; install it with `pip install triton` "
            "or use --dtype float32."
        ) from None
    require_compiler()
    return load_cuda_runtime(
        config.checkpoint,
        limits,
        device=device,
        dtype=torch.bfloat16,
        float8=FLOAT8.get(config.dtype, Float8.NONE),
        bits=gpu_bits(config, ModelConfig.from_file(config.checkpoint / "config.json")),
        kv_int8=config.kv_cache_dtype == "int8",
    )


def require_compiler() -> None:
    """Raise MissingPackageError where Triton could not make its first launch: it compiles the
    bridge to the driver with $CC, gcc or clang and Python's headers, unless it has done so before.
    Looks on Linux only."""
    cache = os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")
    if sys.platform != "linux" or any(Path(cache).glob("*/cuda_utils*.so")):
        return
    named = os.environ.get("CC")
    lacking = []
    if not any(shutil.which(name) for name in ([named] if named else ["gcc", "clang"])):
        lacking.append(f"a C compiler (CC={named} is none)" if named else "a C compiler")
    scheme = sysconfig.get_default_scheme()  # Debian's own is not where its headers are
    headers = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    if not (os.environ.get("CPATH") or (Path(headers) / "Python.h").is_file()):
        lacking.append("Python's headers")
    if lacking:
        raise MissingPackageError(
            f"A GPU needs {' and '.join(lacking)}, with which Triton compiles at its first start; "
            "install them (Debian, Ubuntu: apt-get install gcc python3-dev), or use --device cpu."
        )


def gpu_bits(config: EngineConfig, model: ModelConfig) -> Bits | None:
    """The parts that the CUDA runtime keeps in 8 or 4 bits: what int8 or int4 asks for, where the
    folder does not store fewer; with auto what the folder stores. None where all have 16 or float8.

    Raises ConfigError, and CheckpointError as `stored_bits` does.
    """
    if config.dtype not in ("auto", *FORMATS):
        return None
    stored = stored_bits(config.checkpoint, model)
    if config.dtype == "auto":
        return stored or None
    asked = bits_of_format(model, config.dtype)
    return {part: min(bits, stored.get(part, bits)) for part, bits in asked.items()}


def _require_memory(
    config: EngineConfig,
    model: ModelConfig,
    limits: Limits,
    device: torch.device,
    dtype: torch.dtype | str,
) -> None:
    if device.type == "cuda" and dtype is torch.bfloat16:
        float8 = FLOAT8.get(config.dtype, Float8.NONE)
        weight_bytes = num_bytes(model, torch.bfloat16, float8, gpu_bits(config, model))
    else:
        num_weights = sum(math.prod(shape) for shape in expected_tensors(model).values())
        weight_bytes = num_weights * (1 if isinstance(dtype, str) else dtype.itemsize)
    kv_size = (
        torch.float32.itemsize if device.type == "cpu" or isinstance(dtype, str) else dtype.itemsize
    )
    row_bytes = kv_row_bytes(model, kv_size, int8=config.kv_cache_dtype == "int8")
    kv_bytes = limits.num_blocks * limits.block_size * row_bytes
    require_memory(device, weight_bytes, kv_bytes, TO_FIT_WITH_DTYPE)


LOADERS: dict[str, Callable[[EngineConfig, Limits, torch.device], Runtime]] = {
    "auto": _load_torch,
    "torch": _load_torch,
    **dict.fromkeys(BACKENDS, _load_engine),
}
"""What loads the runtime of each name of `--runtime`."""
