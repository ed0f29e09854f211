"""Builds TensorRT-LLM engine files from converted checkpoints, on the GPU that will run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.export.target import BuildTarget, BuiltPlan, Report
from moss_engine.export.tensorrt_llm_network import NetworkWriter, step_inputs
from moss_engine.models.converted import Converted
from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE
from moss_engine.runtime.engine_manifest import plan_digest
from moss_engine.runtime.tensorrt_llm.plugin import RELEASES, find_plugin


def build_llm_plan(
    converted: Converted, target: BuildTarget, path: Path, report: Report
) -> BuiltPlan:
    """Write the engine to `path`; see `BuildTarget`. Raises ConfigError for what this library
    cannot build."""
    _refuse(converted, target)
    tensorrt, llm = _import_library()
    capability = _this_gpu(target.compute_capability)
    from tensorrt_llm import functional  # pyright: ignore

    builder = llm.Builder()
    network = builder.create_network()
    dtype = "bfloat16" if converted.dtype == "float8" else converted.dtype
    for name, value in plugin_settings(dtype, target.limits.block_size).items():
        setattr(network.plugin_config, name, value)
    report(
        "writing the network" + (" and reading its weights" if target.weights == "baked" else "")
    )
    with llm.net_guard(network):
        step = step_inputs(functional, converted.config.num_layers, target.limits)
        weights = NetworkWeights(functional, converted, dtype, target.weights)
        NetworkWriter(
            functional, converted.config, target.limits, dtype, weights, weights.linear
        ).write(step)
        unused = weights.unused()
        assert not unused, f"{unused[0]} was not used"
        settings = builder.create_builder_config(name="moss_speech", precision=dtype)
        report("building")
        try:
            plan = builder.build_engine(network, settings)
        except AssertionError as error:  # what the library raises when TensorRT gives it no engine
            raise ConfigError(
                f"TensorRT built no engine ({error}); its messages above say why. Where memory ran "
                "out, build with smaller --max-step-rows or --kv-rows."
            ) from None
    report("writing the plan")
    with path.open("wb") as file:
        file.write(plan)
    return BuiltPlan(
        str(tensorrt.__version__),
        capability,
        plan_digest(find_plugin(None))[0],
        {"tensorrt_llm": str(llm.__version__)},
    )


def plugin_settings(dtype: str, block_size: int) -> dict[str, Any]:
    """Plugin settings: paged KV, packed rows, and context attention over the paged pool."""
    return {
        "dtype": dtype,
        "gpt_attention_plugin": dtype,
        "gemm_plugin": None,
        "remove_input_padding": True,
        "paged_kv_cache": True,
        "tokens_per_block": block_size,
        "context_fmha": True,
        "use_paged_context_fmha": True,
        "use_fp8_context_fmha": False,
    }


class NetworkWeights:
    """The layout's tensors in the network: constants of a baked engine, inputs of a bound one."""

    def __init__(self, functional: Any, converted: Converted, dtype: str, weights: str):
        self._f = functional
        self._converted = converted
        self._dtype = dtype
        self._weights = weights
        self._made: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._bound(name) if self._weights == "bound" else self._baked(name)
        return self._made[name]

    def linear(self, x: Any, name: str) -> Any:
        """x [rows, inputs] -> [rows, outputs]; in float8 both are rounded with their scales."""
        weight = self(name)
        if name + WEIGHT_SCALE in self._converted.names:
            x = self._rounded(x, name + INPUT_SCALE, quantised=False)
            weight = self._rounded(weight, name + WEIGHT_SCALE, quantised=True)
        return self._f.matmul(x, weight, transb=True, use_fp32_acc=False)

    def unused(self) -> list[str]:
        return sorted(set(self._converted.names) - set(self._made))

    def _rounded(self, x: Any, scale_name: str, *, quantised: bool) -> Any:
        from tensorrt_llm.quantization.functional import dequantize, quantize  # pyright: ignore

        scale = self._f.cast(self(scale_name), self._dtype)
        values = x if quantised else quantize(x, scale, "fp8")
        return dequantize(values, scale, -1, self._dtype)

    def _bound(self, name: str) -> Any:
        stored = self._converted.tensors[name]
        return self._f.Tensor(
            name=name, dtype=str(stored.dtype).removeprefix("torch."), shape=list(stored.shape)
        )

    def _baked(self, name: str) -> Any:
        return self._f.constant(_to_numpy(self._converted.read(name)))


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """With the types that TensorRT-LLM gives to formats numpy does not have."""
    from tensorrt_llm._utils import torch_to_numpy  # pyright: ignore[reportMissingImports]

    return torch_to_numpy(tensor.contiguous())


def _refuse(converted: Converted, target: BuildTarget) -> None:
    if converted.dtype == "float16":
        raise ConfigError(
            "The weights are float16, in which this network overflows with tensorrt_llm; convert "
            "with --dtype bf16 or fp8."
        )
    if converted.dtype == "float8" and target.weights == "bound":
        raise ConfigError(
            "float8 engines keep their scales and hence their weights in the plan; build with "
            "--weights baked, or convert with --dtype bf16."
        )
    size = target.limits.block_size
    if size < 8 or size & (size - 1):
        raise ConfigError(
            f"--block-size {size} is no power of two from 8 on, which tensorrt_llm needs; use 32."
        )


def _import_library() -> tuple[Any, Any]:
    remedy = (
        "install tensorrt_llm 1.2.1 from NVIDIA's own package index, in an environment of its own "
        "with Python 3.10 or 3.12, as docs/engine_files.md says."
    )
    try:
        import tensorrt  # pyright: ignore[reportMissingImports]
        import tensorrt_llm  # pyright: ignore
        from tensorrt_llm import __version__ as version  # pyright: ignore
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingPackageError(
            f"--backend tensorrt_llm cannot be loaded ({error}); {remedy}"
        ) from None
    if version not in RELEASES:
        raise ConfigError(
            f"tensorrt_llm {version} is installed and engines are built with "
            f"{' or '.join(RELEASES)}; {remedy}"
        )
    return tensorrt, tensorrt_llm


def _this_gpu(wanted: str | None) -> str:
    if not torch.cuda.is_available():
        raise ConfigError(
            "--backend tensorrt_llm builds on the GPU that will run the engine, and there is none; "
            "use a machine with that GPU, or --backend tensorrt_rtx, which builds without one."
        )
    found = "{}.{}".format(*torch.cuda.get_device_capability())
    if wanted not in (None, found):
        raise ConfigError(
            f"--compute-capability {wanted} differs from this GPU's {found}; tensorrt_llm builds "
            "for the GPU that it runs on, so build on the other one."
        )
    return found
