"""A stand-in for the package tensorrt_llm: its functional API records a network, and an engine runs
it in torch.

Functions have the names, parameters and type rules of release 1.2.1 (a strongly typed network), so
that a call which that release would refuse is refused here. `gpt_attention` is the emulated plugin.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.runtime.tensorrt_llm.trtllm_emulator import PLANS, TENSORRT, Engine, Plugin, require

_NAMES = {"fp8": "float8_e4m3fn", "float8_e4m3fn": "float8_e4m3fn"}
ATTENTION_INPUTS = (
    "sequence_length",
    "host_past_key_value_lengths",
    "host_max_attention_window_sizes",
    "host_sink_token_length",
    "context_lengths",
    "cache_indirection",
    "host_request_types",
    "kv_cache_block_offsets",
    "host_kv_cache_block_offsets",
    "host_kv_cache_pool_pointers",
    "host_kv_cache_pool_mapping",
    "host_context_lengths",
    "host_runtime_perf_knobs",
    "host_context_progress",
)


class Network:
    """What has been recorded."""

    def __init__(self) -> None:
        self.plugin_config = PluginConfig()
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.slots: list[int] = []
        self.plugin: Plugin | None = None


PLUGIN_DEFAULTS = {
    "dtype": "float16",
    "gpt_attention_plugin": "auto",
    "gemm_plugin": None,
    "remove_input_padding": True,
    "paged_kv_cache": None,
    "tokens_per_block": 32,
    "context_fmha": True,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "multiple_profiles": False,
    "manage_weights": False,
}


class PluginConfig:
    """The fields of that release that matter here; others may not be set."""

    def __init__(self) -> None:
        self.__dict__.update(PLUGIN_DEFAULTS)

    def __setattr__(self, name: str, value: object) -> None:
        assert name in PLUGIN_DEFAULTS, f"PluginConfig has no field {name}"
        self.__dict__[name] = value


_current: list[Network] = []


class Tensor:
    """A value of the network. `run` computes it from those it depends on."""

    def __init__(
        self,
        name: str | None = None,
        dtype: str | None = None,
        shape: Any = None,
        dim_range: OrderedDict | None = None,
        *,
        sources: tuple[Tensor, ...] = (),
        run: Callable[..., torch.Tensor] | None = None,
    ):
        self.dtype = _NAMES.get(str(dtype), str(dtype))
        self.sources, self.run = sources, run
        self.width: int | None = None
        if run is not None:
            return
        assert name is not None and name not in _current[-1].inputs, (
            f"the input {name} is declared twice"
        )
        self.name, self.shape = name, tuple(shape)
        self.ranges = _check_ranges(name, self.shape, dim_range)
        self.dimension_names = list(dim_range or ())
        _current[-1].inputs[name] = self

    def mark_output(self, name: str, dtype: str) -> None:
        assert dtype == self.dtype and name not in _current[-1].outputs
        _current[-1].outputs[name] = self

    def value(self, done: dict[int, torch.Tensor]) -> torch.Tensor:
        if id(self) not in done:
            assert self.run is not None, f"{self.name} was not given"
            done[id(self)] = self.run(*(source.value(done) for source in self.sources))
            assert str(done[id(self)].dtype) == f"torch.{self.dtype}", (
                f"{done[id(self)].dtype} is not {self.dtype}"
            )
        return done[id(self)]


def _check_ranges(
    name: str, shape: tuple[int, ...], dims: OrderedDict | None
) -> list[list[tuple[int, int, int]]] | None:
    if dims is None:
        assert -1 not in shape, f"{name} has no ranges"
        return None
    assert isinstance(dims, OrderedDict) and len(dims) == len(shape), (
        f"{name} needs a range for every dimension"
    )
    found: list[list[tuple[int, int, int]]] = []
    for size, ranges in zip(shape, dims.values(), strict=True):
        ranges = [tuple(r) if isinstance(r, (tuple, list)) else (r, r, r) for r in ranges]
        assert all(0 <= low <= usual <= high for low, usual, high in ranges)
        assert size == -1 or all(r == (size, size, size) for r in ranges), (
            f"{name}: a fixed size that varies"
        )
        found.append(ranges)
    return found


def _record(dtype: str, run: Callable[..., torch.Tensor], *sources: Tensor) -> Tensor:
    return Tensor(dtype=dtype, sources=sources, run=run)


def _pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Numbers become constants of the other's type; the tensor of lower rank gets axes on its
    left."""
    dtype = a.dtype if isinstance(a, Tensor) else b.dtype
    a, b = (x if isinstance(x, Tensor) else _number(x, dtype) for x in (a, b))
    assert a.dtype == b.dtype, f"{a.dtype} and {b.dtype} in one operation"
    return a, b


def _number(value: float, dtype: str) -> Tensor:
    return _record(dtype, lambda: torch.tensor([value], dtype=getattr(torch, dtype)))


def _elementwise(
    operation: Callable[..., torch.Tensor], dtype: str | None = None
) -> Callable[[Any, Any], Tensor]:
    def add(left: Any, right: Any) -> Tensor:
        a, b = _pair(left, right)
        return _record(dtype or a.dtype, operation, a, b)

    return add


def constant(ndarray: np.ndarray, as_dtype: Any = None, as_shape: Any = None) -> Tensor:
    kept = torch.from_numpy(ndarray.copy()) if isinstance(ndarray, np.ndarray) else ndarray
    made = _record(str(kept.dtype).removeprefix("torch."), lambda: kept)
    made.shape = tuple(kept.shape)
    return made


def cast(input: Tensor, dtype: str) -> Tensor:
    name = _NAMES.get(dtype, dtype)
    made = _record(name, lambda x: x.to(getattr(torch, name)), input)
    made.width = input.width
    return made


def where(condition: Tensor, left: Any, right: Any) -> Tensor:
    a, b = (x if isinstance(x, Tensor) else _number(x, "int32") for x in (left, right))
    assert condition.dtype == "bool" and a.dtype == b.dtype
    return _record(a.dtype, torch.where, condition, a, b)


def embedding(
    input: Tensor,
    weight: Tensor,
    tp_size: int = 1,
    tp_group: Any = None,
    sharding_dim: int = 0,
    tp_rank: Any = None,
    per_token_scale: Any = None,
    padding: Any = None,
) -> Tensor:
    assert input.dtype == "int32"
    return _record(weight.dtype, lambda ids, table: F.embedding(ids.long(), table), input, weight)


def unsqueeze(input: Tensor, axis: int) -> Tensor:
    return _record(input.dtype, lambda x: x.unsqueeze(axis), input)


def view(input: Tensor, shape: list[int], zero_is_placeholder: bool = True) -> Tensor:
    assert shape.count(-1) <= 1 and 0 not in shape
    return _record(input.dtype, lambda x: x.reshape(shape), input)


def split(tensor: Tensor, split_size_or_sections: list[int], dim: int = 0) -> list[Tensor]:
    starts = [sum(split_size_or_sections[:i]) for i in range(len(split_size_or_sections))]

    def piece(x: torch.Tensor, start: int, size: int) -> torch.Tensor:
        assert x.shape[dim] == sum(split_size_or_sections)
        return x.narrow(dim, start, size)

    return [
        _record(tensor.dtype, lambda x, start=start, size=size: piece(x, start, size), tensor)
        for start, size in zip(starts, split_size_or_sections, strict=True)
    ]


def concat(inputs: list[Tensor], dim: int = 0) -> Tensor:
    assert len({x.dtype for x in inputs}) == 1
    return _record(inputs[0].dtype, lambda *tensors: torch.cat(tensors, dim), *inputs)


def silu(input: Tensor) -> Tensor:
    return _record(input.dtype, F.silu, input)


def matmul(
    input: Tensor,
    mat2: Tensor,
    transa: bool = False,
    transb: bool = False,
    use_fp32_acc: bool = True,
) -> Tensor:
    assert input.dtype == mat2.dtype and not transa
    made = _record(input.dtype, lambda a, b: a @ (b.T if transb else b), input, mat2)
    made.width = mat2.shape[0 if transb else 1]
    return made


def rms_norm(
    input: Tensor,
    normalized_shape: int,
    num_groups: int = 1,
    weight: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    assert weight is not None and weight.dtype == input.dtype and num_groups == 1

    def run(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        assert x.shape[-1] == normalized_shape == len(scale)
        wide = x.float()
        return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()).to(x.dtype) * scale

    return _record(input.dtype, run, input, weight)


def gather_last_token_logits(
    hidden_states: Tensor, last_token_ids: Tensor, remove_input_padding: bool
) -> Tensor:
    assert remove_input_padding
    return _record(
        hidden_states.dtype, lambda x, last: x[last.long() - 1], hidden_states, last_token_ids
    )


def gpt_attention(
    *,
    qkv: Tensor,
    past_key_value: None,
    sequence_length: Tensor,
    host_past_key_value_lengths: Tensor,
    host_max_attention_window_sizes: Tensor,
    host_sink_token_length: Tensor,
    context_lengths: Tensor,
    cache_indirection: Tensor,
    host_request_types: Tensor,
    layer_idx: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_size_per_head: int,
    q_scaling: float,
    rotary_embedding_dim: int = 0,
    rotary_embedding_base: float = 10000.0,
    rotary_embedding_max_positions: int = 1024,
    position_embedding_type: str = "learned_absolute",
    rotary_inv_freq: Tensor | None = None,
    rotary_cos_sin: Tensor | None = None,
    max_context_length: int | None = None,
    mask_type: str = "causal",
    kv_cache_block_offsets: Tensor,
    host_kv_cache_block_offsets: Tensor,
    host_kv_cache_pool_pointers: Tensor,
    host_kv_cache_pool_mapping: Tensor,
    host_context_lengths: Tensor,
    use_cache: bool = True,
    host_runtime_perf_knobs: Tensor,
    host_context_progress: Tensor,
) -> tuple[Tensor, None]:
    named = {name: tensor for name, tensor in locals().items() if name in ATTENTION_INPUTS}
    network = _current[-1]
    settings = network.plugin_config
    for name, tensor in named.items():
        assert network.inputs[name] is tensor, f"{name} is given another tensor"
    assert (
        settings.paged_kv_cache
        and settings.remove_input_padding
        and settings.use_paged_context_fmha
    )
    assert (
        settings.context_fmha
        and not settings.use_fp8_context_fmha
        and settings.gpt_attention_plugin == qkv.dtype
    )
    assert (
        past_key_value is None
        and use_cache
        and isinstance(max_context_length, int)
        and mask_type == "causal"
    )
    assert (
        position_embedding_type == "rope_gpt_neox" and rotary_embedding_dim == hidden_size_per_head
    )
    assert q_scaling == 1.0 and rotary_inv_freq is not None and rotary_cos_sin is not None
    assert layer_idx not in network.slots, f"slot {layer_idx} is used twice"
    network.slots.append(layer_idx)
    if network.plugin is None:
        network.plugin = Plugin(
            num_heads,
            num_kv_heads,
            hidden_size_per_head,
            settings.tokens_per_block,
            getattr(torch, qkv.dtype),
        )
    plugin = network.plugin
    assert (num_heads, num_kv_heads, hidden_size_per_head) == (
        plugin.num_heads,
        plugin.num_kv_heads,
        plugin.head_dim,
    )

    def run(
        x: torch.Tensor, table: torch.Tensor, frequencies: torch.Tensor, *values: torch.Tensor
    ) -> torch.Tensor:
        half = hidden_size_per_head // 2
        assert (
            table.shape == (1, rotary_embedding_max_positions * hidden_size_per_head)
            and len(frequencies) == half
        )
        expected = 1.0 / rotary_embedding_base ** (torch.arange(half) / half)
        torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=0)
        tensors = dict(zip(named, values, strict=True))
        lengths = tensors["context_lengths"][tensors["host_request_types"] == 0].tolist()
        require(max(lengths, default=0) <= max_context_length, "a longer context than built for")
        return plugin.attend(layer_idx, x, tensors, table.view(-1, half, 2))

    return _record(qkv.dtype, run, qkv, rotary_cos_sin, rotary_inv_freq, *named.values()), None


def quantize(input: Tensor, scale_factor: Tensor, dtype: str, axis: int = -1) -> Tensor:
    assert dtype == "fp8" and scale_factor.dtype == input.dtype
    return _record(
        "float8_e4m3fn",
        lambda x, scale: (x.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn),
        input,
        scale_factor,
    )


def dequantize(
    input: Tensor, scale_factor: Tensor, axis: int = -1, output_type: str = "float16"
) -> Tensor:
    assert input.dtype == "float8_e4m3fn" and scale_factor.dtype == output_type
    kind = getattr(torch, output_type)
    made = _record(
        output_type, lambda x, scale: (x.float() * scale.float()).to(kind), input, scale_factor
    )
    made.shape = getattr(input, "shape", ())
    return made


class _BuilderConfig(SimpleNamespace):
    pass


class Builder:
    """`build_engine` gives a plan by which the emulated TensorRT finds the network again."""

    gives_an_engine = True

    def create_network(self) -> Network:
        return Network()

    def create_builder_config(
        self,
        precision: str,
        timing_cache: Any = None,
        tensor_parallel: int = 1,
        use_refit: bool = False,
        int8: bool = False,
        strongly_typed: bool = True,
        **kwargs: Any,
    ) -> _BuilderConfig:
        assert precision in ("float32", "float16", "bfloat16") and set(kwargs) <= {"name"}
        return _BuilderConfig(precision=precision)

    def build_engine(self, network: Network, builder_config: _BuilderConfig) -> bytes:
        inputs = network.inputs.values()
        open_inputs = [tensor for tensor in inputs if tensor.ranges is not None]
        profiles = [
            {
                tensor.name: [tuple(dim[i][which] for dim in tensor.ranges) for which in range(3)]
                for tensor in open_inputs
            }
            for i in range(len(open_inputs[0].ranges[0]))
        ]
        _check_named_dimensions(network)
        assert self.gives_an_engine, "Engine building failed, please check the error log."
        outputs = {name: tensor.width for name, tensor in network.outputs.items()}
        plan = f"recorded network {len(PLANS)}".encode()

        def run(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            done = {id(tensor): named[tensor.name] for tensor in inputs}
            return {name: tensor.value(done) for name, tensor in network.outputs.items()}

        engine = Engine(
            {tensor.name: (tensor.dtype, tensor.shape) for tensor in inputs},
            outputs,
            0,
            profiles,
            run,
            lambda: network.plugin,
        )  # type: ignore[arg-type,return-value]
        engine.network = network  # type: ignore[attr-defined]
        PLANS[plan] = engine
        return plan


def _check_named_dimensions(network: Network) -> None:
    """One name, one range, in every profile: TensorRT refuses anything else."""
    seen: dict[str, object] = {}
    for tensor in network.inputs.values():
        for name, ranges in zip(tensor.dimension_names, tensor.ranges or ()):
            assert seen.setdefault(name, ranges) == ranges, (
                f"the dimension {name} of {tensor.name} varies"
            )


@contextlib.contextmanager
def net_guard(network: Network) -> Iterator[None]:
    _current.append(network)
    try:
        yield
    finally:
        _current.pop()


def torch_to_numpy(tensor: torch.Tensor) -> torch.Tensor:
    """The package has types of its own for what numpy lacks; here the tensor stands for its
    array."""
    assert isinstance(tensor, torch.Tensor) and tensor.is_contiguous()
    return tensor.clone()


def functional() -> ModuleType:
    module = ModuleType("tensorrt_llm.functional")
    for name in (
        "Tensor",
        "constant",
        "cast",
        "where",
        "embedding",
        "unsqueeze",
        "view",
        "split",
        "concat",
        "silu",
        "matmul",
        "rms_norm",
        "gather_last_token_logits",
        "gpt_attention",
    ):
        setattr(module, name, globals()[name])
    module.add, module.sub, module.mul = (
        _elementwise(op) for op in (torch.add, torch.sub, torch.mul)
    )
    module.gt = _elementwise(torch.gt, "bool")
    module.PositionEmbeddingType = SimpleNamespace(rope_gpt_neox="rope_gpt_neox")
    module.AttentionMaskType = SimpleNamespace(causal="causal")
    return module


@contextlib.contextmanager
def installed(version: str = "1.2.1") -> Iterator[None]:
    """Inside, `import tensorrt_llm` and `import tensorrt` find the stand-ins, and there is a GPU of
    8.9."""
    package = ModuleType("tensorrt_llm")
    package.__path__ = []
    package.__version__, package.Builder, package.net_guard = version, Builder, net_guard
    package.functional = functional()
    quantization = ModuleType("tensorrt_llm.quantization")
    quantization.__path__ = []
    functions = ModuleType("tensorrt_llm.quantization.functional")
    functions.quantize, functions.dequantize = quantize, dequantize
    utils = ModuleType("tensorrt_llm._utils")
    utils.torch_to_numpy = torch_to_numpy
    with pytest.MonkeyPatch.context() as patch:
        for module in (package, package.functional, quantization, functions, utils):
            patch.setitem(sys.modules, module.__name__, module)
        patch.setitem(sys.modules, "tensorrt", TENSORRT)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 9))
        yield
