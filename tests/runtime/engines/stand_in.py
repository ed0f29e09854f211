"""A stand-in for the packages tensorrt and tensorrt_llm. It records networks layer by layer and
runs them in torch on the CPU, the attention plugin according to its documented contract.

A runtime gives it what it gives TensorRT: a plan's bytes, shapes and addresses by name, a profile.
It reads inputs at those addresses and writes outputs there, and the plugin finds keys and values in
the pool by pointer arithmetic, so that a wrong binding, length, type, offset, table or pointer
changes the logits or is refused. Layers assert what the library would refuse.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

CONTEXT, GENERATION = 0, 1


def memory(address: int, dtype: torch.dtype, shape: Sequence[int], stream: int = 0) -> Tensor:
    """The memory at an address as a tensor, without a copy: on the device if there is a stream,
    else on the host."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if stream:
        known = {"data": (address, False), "shape": (num_bytes,), "typestr": "|u1", "version": 3}
        data = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=known), device="cuda")
    else:
        values = (ctypes.c_byte * num_bytes).from_address(address)
        data = torch.frombuffer(values, dtype=torch.uint8)
    return data.view(dtype).view(tuple(shape))


@dataclass(frozen=True)
class Plugin:
    """Attributes of the plugin that are fixed at build time."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokens_per_block: int
    dtype: torch.dtype

    def attend(
        self, slot: int, qkv: Tensor, named: Mapping[str, Tensor], cos_sin: Tensor, stream: int
    ) -> Tensor:
        """qkv [T, (heads + 2 kv_heads) * head_dim], normed but not rotated; cos_sin [positions,
        head_dim / 2, 2]."""
        assert not named["host_sink_token_length"].any() and not named["cache_indirection"].any()
        assert named["cache_indirection"].shape[1] == 1, "more than one beam"
        capacity, size = named["cache_indirection"].shape[2], self.tokens_per_block
        window = min(int(named["host_max_attention_window_sizes"][slot]), capacity)
        kinds = named["host_request_types"].tolist()
        assert kinds == sorted(kinds), "context comes first"
        context_rows = int(named["host_context_lengths"][: kinds.count(CONTEXT)].sum())
        assert context_rows + kinds.count(GENERATION) == len(qkv), "lengths and rows differ"
        pool, place = named["host_kv_cache_pool_mapping"][slot].tolist()
        pointer, secondary = named["host_kv_cache_pool_pointers"][pool].tolist()
        assert secondary == 0, "a secondary pool where there is none"
        # [sequences, keys and values, blocks] in tiles of one layer and block
        written, on_host = (
            named[f"{where}kv_cache_block_offsets"][pool].long() for where in ("", "host_")
        )
        for offsets in (written, on_host):
            assert (offsets[:, 0] >= 0).all(), "no block has a negative number"
            assert (offsets[:, 1] == offsets[:, 0] + 1).all(), "values do not lie behind keys"
        first, last = 2 * place, 2 * place + int(written.max())
        shape = (last + 1, self.num_kv_heads, size, self.head_dim)
        tiles = memory(pointer, self.dtype, shape, stream)[first:]
        attended, start = [], 0
        for b, kind in enumerate(kinds):
            past = int(named["host_past_key_value_lengths"][b])
            prompt, total = int(named["context_lengths"][b]), int(named["sequence_length"][b])
            num_rows, first = (prompt, past - prompt) if kind == CONTEXT else (1, past)
            assert num_rows > 0 and 0 < prompt <= past and total <= len(cos_sin), "a length"
            rows = qkv[start : start + num_rows].unflatten(1, (-1, self.head_dim)).float()
            start += num_rows
            positions = torch.arange(first, first + num_rows)
            q, k, v = rows.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
            q, k = _rotate(q, cos_sin[positions]), _rotate(k, cos_sin[positions])
            new = torch.stack([k, v]).to(tiles)
            tiles[written[b][:, positions // size], :, positions % size] = new
            read = (on_host if kind == CONTEXT else written)[b][:, : -(-total // size)]
            seen = torch.arange(max(0, total - window), total)
            keys, values = tiles[read].cpu().float().transpose(1, 2).flatten(2, 3)[:, :, seen]
            last = total - num_rows + torch.arange(num_rows).unsqueeze(1)
            heads = F.scaled_dot_product_attention(
                q.transpose(0, 1), keys, values, seen <= last, enable_gqa=True
            )
            attended.append(heads.transpose(0, 1).flatten(1))
        return torch.cat(attended).to(qkv.dtype)


def _rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """NeoX: x [rows, heads, head_dim]; element i turns with element i + half."""
    cos, sin = cos_sin.unsqueeze(1).unbind(-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Type(Enum):
    FLOAT = torch.float32
    HALF = torch.float16
    BF16 = torch.bfloat16
    INT32 = torch.int32
    INT64 = torch.int64
    BOOL = torch.bool
    FP8 = torch.float8_e4m3fn


MatrixOperation = Enum("MatrixOperation", "NONE TRANSPOSE")
TensorIOMode = Enum("TensorIOMode", "INPUT OUTPUT")
BuilderFlag = Enum("BuilderFlag", "TF32")
Strategy = Enum("ExecutionContextAllocationStrategy", "STATIC USER_MANAGED")


class Logger(SimpleNamespace):
    WARNING = 2

    def __init__(self, severity: int):
        """Nothing is said."""


class Weights:
    def __init__(self, values: Any, address: int = 0, count: int = 0):
        if isinstance(values, Type):
            values = memory(address, values.value, (count,)).clone()
        self.tensor = torch.as_tensor(values)


class Value:
    """A tensor of the network."""

    name = ""

    def set_dimension_name(self, axis: int, name: str) -> None:
        """Sizes of one name are equal; nothing here depends on it."""


class Layer(Value):
    """A layer and the tensor that it gives, which is `compute` of the layer itself, with its
    options, and of the values of its inputs."""

    first_transpose = reshape_dims = None

    def __init__(self, compute: Callable[..., Tensor], given: Sequence[Any]):
        self.compute = compute
        self.inputs = dict(enumerate(value for value in given if isinstance(value, Value)))
        self.options = [value for value in given if not isinstance(value, Value)]
        self.set_input = self.inputs.__setitem__

    def get_output(self, index: int) -> Value:
        return self


ELEMENTWISE = SimpleNamespace(
    SUM=torch.add,
    SUB=torch.sub,
    PROD=torch.mul,
    DIV=torch.div,
    LESS=torch.lt,
    EQUAL=torch.eq,
    SQRT=torch.sqrt,
    SIGMOID=torch.sigmoid,
)


def elementwise(operation: Callable[..., Tensor], *values: Tensor) -> Tensor:
    typed = values[operation is torch.where :]
    assert len({value.dtype for value in typed}) == len({value.dim() for value in values}) == 1
    return operation(*values)


def quantized(_: Layer, dtype: Type, x: Tensor, scale: Tensor) -> Tensor:
    assert scale.dim() == 0 and scale.dtype is x.dtype
    return (x.float() / scale.float()).clamp(-448, 448).to(dtype.value)


def dequantized(_: Layer, dtype: Type, x: Tensor, scale: Tensor) -> Tensor:
    assert scale.dim() == 0, "one scale for all values"
    return (x.float() * scale.float()).to(dtype.value)


def product(_: Layer, a_form: Enum, b_form: Enum, a: Tensor, b: Tensor) -> Tensor:
    assert a_form is MatrixOperation.NONE
    return a @ (b.mT if b_form is MatrixOperation.TRANSPOSE else b)


def gathered(_: Layer, axis: int, data: Tensor, indices: Tensor) -> Tensor:
    assert axis == 0 and indices.dtype is torch.int32
    assert indices.min() >= 0 and indices.max() < len(data), "an index outside its tensor"
    return data.index_select(0, indices.flatten()).reshape(*indices.shape, *data.shape[1:])


def shuffled(layer: Layer, x: Tensor, sizes: Tensor | None = None) -> Tensor:
    if layer.first_transpose is not None:
        x = x.permute(layer.first_transpose)
    if sizes is not None:
        return x.reshape(sizes.tolist())
    dims = x.shape if layer.reshape_dims is None else layer.reshape_dims
    return x.reshape([size or x.shape[i] for i, size in enumerate(dims)])


def sliced(_: Layer, start: Any, shape: Any, stride: Any, x: Tensor, sizes: Tensor) -> Tensor:
    """Its sizes come from a tensor."""
    ends = [first + size for first, size in zip(start, sizes.tolist(), strict=True)]
    assert all(end <= size for end, size in zip(ends, x.shape, strict=True))
    return x[tuple(map(slice, start, ends))]


def _axis(axes: int) -> int:
    return axes.bit_length() - 1


LAYERS: dict[str, Callable[..., Tensor]] = {
    "constant": lambda _, shape, weights: weights.tensor.reshape(tuple(shape)),
    "cast": lambda _, dtype, x: x.to(dtype.value),
    "elementwise": lambda _, operation, a, b: elementwise(operation, a, b),
    "unary": lambda _, operation, x: elementwise(operation, x),
    "activation": lambda _, operation, x: elementwise(operation, x),
    "select": lambda _, *values: elementwise(torch.where, *values),
    "reduce": lambda _, operation, axes, keep, x: operation(x, _axis(axes), keepdim=keep),
    "softmax": lambda layer, x: x.softmax(_axis(layer.axes)),
    "concatenation": lambda layer, *values: torch.cat(values, layer.axis),
    "matrix_multiply": product,
    "quantize": quantized,
    "dequantize": dequantized,
    "gather": gathered,
    "shuffle": shuffled,
    "slice": sliced,
}


class Network:
    """`stream` is the run's, 0 on a CPU, and None while only types and shapes are found out."""

    def __init__(self) -> None:
        self.stream: int | None = None
        self.plugins: dict[int, Plugin] = {}
        self.layers: list[Layer] = []
        self.inputs: dict[str, tuple[Value, Type, tuple[int, ...]]] = {}
        self.outputs: list[Value] = []
        self.profiles: list[Profile] = []

    def __getattr__(self, name: str) -> Callable[..., Layer]:
        """add_cast and its like take values and options as the library does."""
        compute = LAYERS[name.removeprefix("add_")]
        return lambda *given: self.add(compute, *given)

    def add(self, compute: Callable[..., Tensor], *given: Any) -> Layer:
        self.layers.append(Layer(compute, given))
        return self.layers[-1]

    def add_input(self, name: str, dtype: Type, shape: tuple[int, ...]) -> Value:
        self.inputs[name] = Value(), dtype, tuple(shape)
        return self.inputs[name][0]

    def mark_output(self, value: Value) -> None:
        self.outputs.append(value)

    def add_concatenation(self, values: Sequence[Value]) -> Layer:
        return self.add(LAYERS["concatenation"], *values)

    def add_shape(self, x: Value) -> Layer:
        return self.add(lambda _, x: torch.tensor(x.shape), x)

    def run(self, inputs: dict[str, Tensor], stream: int | None = None) -> dict[str, Tensor]:
        self.stream = stream
        values = {self.inputs[name][0]: tensor for name, tensor in inputs.items()}
        for layer in self.layers:
            given = (values[value] for _, value in sorted(layer.inputs.items()))
            values[layer] = layer.compute(layer, *layer.options, *given)
        return {value.name: values[value] for value in self.outputs}


class Profile(dict[str, list[tuple[int, ...]]]):
    def set_shape(self, name: str, *sizes: tuple[int, ...]) -> None:
        for ascending in zip(*sizes, strict=True):
            assert list(ascending) == sorted(ascending), f"{name}: sizes do not ascend"
        self[name] = [tuple(size) for size in sizes]


class Settings(SimpleNamespace):
    def __init__(self) -> None:
        self.profiles, self.flags = [], {BuilderFlag.TF32}
        self.clear_flag = self.flags.discard
        self.add_optimization_profile = self.profiles.append


PLANS: dict[bytes, Network] = {}
"""The networks that were built, by the bytes of their plans."""


class Builder:
    def __init__(self, logger: Logger):
        self.create_builder_config, self.create_optimization_profile = Settings, Profile

    def create_network(self, flags: int) -> Network:
        assert flags == 1 << 1, "a network is typed strongly"
        return Network()

    def build_serialized_network(self, network: Network, settings: Settings) -> memoryview:
        dynamic = {name for name, (_, _, shape) in network.inputs.items() if -1 in shape}
        assert all(profile.keys() == dynamic for profile in settings.profiles)
        network.profiles = settings.profiles
        plan = f"recorded network {len(PLANS)}".encode()
        PLANS[plan] = network
        return memoryview(plan)


class Runtime:
    def __init__(self, logger: Logger):
        """It needs nothing of it."""

    def deserialize_cuda_engine(self, plan: Any) -> Engine | None:
        network = PLANS.get(bytes(plan))
        return network and Engine(network)


class Engine:
    def __init__(self, network: Network):
        self.network, self.inputs = network, network.inputs
        self.num_optimization_profiles = len(network.profiles)
        inputs = {name: (dtype, shape) for name, (_, dtype, shape) in self.inputs.items()}
        self.tensors = inputs | self._outputs()
        self.names = [*self.tensors]
        self.num_io_tensors = len(self.names)
        self.get_tensor_name = self.names.__getitem__
        self.get_tensor_dtype = lambda name: self.tensors[name][0]
        self.get_tensor_shape = lambda name: self.tensors[name][1]
        self.get_tensor_location = lambda name: SimpleNamespace(name="DEVICE")
        self.device_memory_size_v2 = 1024
        self.create_execution_context = lambda strategy: Context(self)

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def profile_shapes(self, name: str) -> list[list[tuple[int, ...]]]:
        fixed = [self.inputs[name][2]] * 3
        return [profile.get(name, fixed) for profile in self.network.profiles]

    def _outputs(self) -> dict[str, tuple[Type, tuple[int, ...]]]:
        """Shapes of the outputs, by runs with zeros at several sizes; a size that changes is -1."""
        runs = []
        for profile, which in ((0, 0), (-1, 0), (-1, 1)):
            zeros = {
                name: torch.zeros(self.profile_shapes(name)[profile][which], dtype=dtype.value)
                for name, (_, dtype, _) in self.inputs.items()
            }
            runs.append(self.network.run(zeros))
        found = {}
        for name, first in runs[0].items():
            sizes = zip(*(run[name].shape for run in runs), strict=True)
            shape = tuple(size[0] if len({*size}) == 1 else -1 for size in sizes)
            found[name] = Type(first.dtype), shape
        return found


class Context:
    """With a stream it runs where the addresses are: what begins with host_ must lie on the host,
    all else on the device."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = 0

    def set_optimization_profile_async(self, profile: int, stream: int) -> object:
        self.profile = profile
        return 0 <= profile < self.engine.num_optimization_profiles

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= 1024
        self.memory = address

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> object:
        assert self.profile is not None, "no profile was chosen"
        low, _, high = self.engine.profile_shapes(name)[self.profile]
        self.shapes[name] = tuple(shape)
        within = [a <= size <= b for a, size, b in zip(low, shape, high)]
        return all(within) and len(shape) == len(low)

    def set_tensor_address(self, name: str, address: int) -> object:
        self.addresses[name] = address
        return name in self.engine.names and address

    def execute_async_v3(self, stream: int) -> object:
        if not self.memory or self.addresses.keys() != {*self.engine.names}:
            return False
        if stream:
            torch.cuda.ExternalStream(stream).synchronize()
        inputs = {}
        for name, (_, dtype, shape) in self.engine.inputs.items():
            shape, address = self.shapes.get(name, shape), self.addresses[name]
            assert -1 not in shape, f"{name} has no shape"
            place = 0 if name.startswith("host_") else stream
            assert not stream or _is_on_device(address) == bool(place), name
            inputs[name] = memory(address, dtype.value, shape, place).cpu()
        for name, tensor in self.engine.network.run(inputs, stream).items():
            memory(self.addresses[name], tensor.dtype, tensor.shape, stream).copy_(tensor)
        return True


def _is_on_device(address: int) -> bool:
    """As the driver says; memory that it does not know is on the host."""
    kind = ctypes.c_uint32(0)
    ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    status = ask(ctypes.byref(kind), 2, ctypes.c_uint64(address))
    return status == 0 and kind.value == 2


_FLAGS = "EXPLICIT_BATCH STRONGLY_TYPED"
TENSORRT = SimpleNamespace(
    __version__="10.16.1.11",
    Builder=Builder,
    BuilderFlag=BuilderFlag,
    Logger=Logger,
    MatrixOperation=MatrixOperation,
    NetworkDefinitionCreationFlag=IntEnum("NetworkDefinitionCreationFlag", _FLAGS, start=0),
    Permutation=tuple,
    Runtime=Runtime,
    TensorIOMode=TensorIOMode,
    ExecutionContextAllocationStrategy=Strategy,
    Weights=Weights,
    ElementWiseOperation=ELEMENTWISE,
    UnaryOperation=ELEMENTWISE,
    ActivationType=ELEMENTWISE,
    ReduceOperation=SimpleNamespace(AVG=torch.mean),
    fp8=Type.FP8,
    **{str(kind.value).removeprefix("torch."): kind for kind in Type},
)
"""The package tensorrt."""


class LlmTensor(SimpleNamespace):
    """A tensor of tensorrt_llm that wraps one of the network."""


PLUGIN_FIELDS = (
    "dtype gpt_attention_plugin gemm_plugin remove_input_padding paged_kv_cache tokens_per_block "
    "context_fmha use_paged_context_fmha use_fp8_context_fmha"
).split()


class LlmNetwork:
    """A network whose `plugin_config` has the fields used here; no others may be set."""

    current: LlmNetwork

    def __init__(self) -> None:
        self.trt_network = Network()
        self.plugin_config = type("PluginConfig", (), {"__slots__": PLUGIN_FIELDS})()


class LlmBuilder:
    def __init__(self) -> None:
        self.trt_builder, self.create_network = Builder(Logger(2)), LlmNetwork


@contextmanager
def net_guard(network: LlmNetwork) -> Iterator[None]:
    LlmNetwork.current = network
    yield
    del LlmNetwork.current


def gpt_attention(
    *,
    qkv: LlmTensor,
    layer_idx: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_size_per_head: int,
    rotary_embedding_base: float,
    rotary_embedding_max_positions: int,
    max_context_length: int,
    rotary_inv_freq: LlmTensor,
    rotary_cos_sin: LlmTensor,
    **named: Any,
) -> tuple[LlmTensor, None]:
    """The function of release 1.2.1, as far as it is used; its layer runs `Plugin.attend`."""
    outer = LlmNetwork.current
    network, settings = outer.trt_network, outer.plugin_config
    assert settings.paged_kv_cache and settings.remove_input_padding and settings.context_fmha
    assert settings.use_paged_context_fmha and not settings.use_fp8_context_fmha
    fixed = {
        "past_key_value": None,
        "q_scaling": 1.0,
        "rotary_embedding_dim": hidden_size_per_head,
        "position_embedding_type": "rope_gpt_neox",
        "mask_type": "causal",
        "use_cache": True,
    }
    assert {name: named.pop(name) for name in fixed} == fixed
    dtype = getattr(torch, settings.gpt_attention_plugin)
    sizes = num_heads, num_kv_heads, hidden_size_per_head, settings.tokens_per_block
    assert layer_idx not in network.plugins, "two layers of one slot"
    plugin = network.plugins[layer_idx] = Plugin(*sizes, dtype)
    for name, tensor in named.items():
        assert network.inputs[name][0] is tensor.trt_tensor, f"{name} is another tensor"

    def compute(_: Layer, x: Tensor, cos_sin: Tensor, frequencies: Tensor, *rest: Tensor) -> Tensor:
        assert x.dtype is dtype
        if network.stream is None:
            return x[:, : num_heads * hidden_size_per_head]
        half = hidden_size_per_head // 2
        expected = 1.0 / rotary_embedding_base ** (torch.arange(half) / half)
        torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=0)
        assert cos_sin.shape == (1, rotary_embedding_max_positions * hidden_size_per_head)
        tensors = dict(zip(named, rest, strict=True))
        lengths = tensors["context_lengths"][tensors["host_request_types"] == 0].tolist()
        assert max(lengths, default=0) <= max_context_length, "a longer context than built for"
        return plugin.attend(layer_idx, x, tensors, cos_sin.view(-1, half, 2), network.stream)

    given = [qkv, rotary_cos_sin, rotary_inv_freq, *named.values()]
    layer = network.add(compute, *(tensor.trt_tensor for tensor in given))
    return LlmTensor(trt_tensor=layer.get_output(0)), None


@contextmanager
def installed(
    llm: str = "1.2.1", folder: Path | None = None, tensorrt: SimpleNamespace = TENSORRT
) -> Iterator[None]:
    """Inside, `import tensorrt` finds the stand-in, and there is a GPU of compute capability 8.9;
    with a folder for its plugin library, `import tensorrt_llm` finds one, too."""
    package = ModuleType("tensorrt_llm")
    package.__version__, package.Builder, package.net_guard = llm, LlmBuilder, net_guard
    package.functional = functional = ModuleType("tensorrt_llm.functional")
    functional.Tensor, functional.gpt_attention = LlmTensor, gpt_attention
    functional.PositionEmbeddingType = SimpleNamespace(rope_gpt_neox="rope_gpt_neox")
    functional.AttentionMaskType = SimpleNamespace(causal="causal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorrt", tensorrt)
        if folder is not None:
            package.__spec__ = ModuleSpec("tensorrt_llm", None, is_package=True)
            package.__path__ = package.__spec__.submodule_search_locations = [str(folder)]
            (folder / "libs").mkdir(exist_ok=True)
            library = folder / "libs" / "libnvinfer_plugin_tensorrt_llm.so"
            if not library.exists():
                library.write_bytes(b"a plugin library")
            for module in (package, functional):
                patch.setitem(sys.modules, module.__name__, module)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 9))
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 40, 1 << 40))
        yield
