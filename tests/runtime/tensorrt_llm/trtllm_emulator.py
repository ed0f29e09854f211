"""TensorRT-LLM's attention plugin as its contract has it, and engines around it, in torch on the
CPU.

The plugin gets nothing but the engine's named tensors, read from the addresses that were bound. It
finds keys and values in the pool by pointer arithmetic, so that a wrong length, type, offset,
table, pointer or copy changes the logits, or is refused as the library refuses it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits
from tests.runtime.tensorrt import trt_emulator

CONTEXT, GENERATION = 0, 1
SHAPES_1_2_1: dict[str, tuple[str, tuple[int | str, ...]]] = {
    "input_ids": ("int32", (-1,)),
    "position_ids": ("int32", (-1,)),
    "last_token_ids": ("int32", (-1,)),
    "sequence_length": ("int32", (-1,)),
    "host_past_key_value_lengths": ("int32", (-1,)),
    "context_lengths": ("int32", (-1,)),
    "host_context_lengths": ("int32", (-1,)),
    "host_request_types": ("int32", (-1,)),
    "host_max_attention_window_sizes": ("int32", ("L",)),
    "host_sink_token_length": ("int32", (1,)),
    "cache_indirection": ("int32", (-1, -1, -1)),
    "kv_cache_block_offsets": ("int32", (1, -1, 2, -1)),
    "host_kv_cache_block_offsets": ("int32", (1, -1, 2, -1)),
    "host_kv_cache_pool_pointers": ("int64", (1, 2)),
    "host_kv_cache_pool_mapping": ("int32", ("L", 2)),
    "host_runtime_perf_knobs": ("int64", (16,)),
    "host_context_progress": ("int64", (1,)),
}
"""What an engine of release 1.2.1 is given."""


def _without(shapes: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: shape for name, shape in shapes.items() if name not in names}


VARIANTS = {
    "1.2.1": SHAPES_1_2_1,
    "0.16": {**SHAPES_1_2_1, "host_kv_cache_pool_mapping": ("int32", ("L",))},
    "0.14": {
        **_without(SHAPES_1_2_1, "host_context_progress"),
        "host_kv_cache_pool_mapping": ("int32", ("L",)),
    },
    "0.13": {
        **_without(SHAPES_1_2_1, "host_context_progress", "host_kv_cache_pool_mapping"),
        "kv_cache_block_offsets": ("int32", (-1, 2, -1)),
        "host_kv_cache_block_offsets": ("int32", (-1, 2, -1)),
        "host_kv_cache_pool_pointers": ("int64", (2,)),
    },
}
"""Input lists that releases had, each by one that had it."""


class Refused(Exception):
    """What the plugin, or the device, would not do."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Refused(reason)


@dataclass
class Plugin:
    """Attributes of the plugin that are fixed at build time. `memory` is what may be read and
    written by address; what lies on a GPU is brought here for the length of a call.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokens_per_block: int
    dtype: torch.dtype
    memory: list[Tensor] = field(default_factory=list)
    _mirrors: list[Tensor] = field(default_factory=list)

    def begin(self) -> None:
        self._mirrors = [tensor.cpu() for tensor in self.memory]

    def end(self) -> None:
        for tensor, mirror in zip(self.memory, self._mirrors, strict=True):
            if mirror is not tensor:
                tensor.copy_(mirror)

    def at(self, address: int, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] of the memory at an address."""
        for tensor, mirror in zip(self.memory, self._mirrors, strict=True):
            start = address - tensor.data_ptr()
            if start >= 0 and start + num_bytes <= tensor.nbytes:
                return mirror.view(-1).view(torch.uint8)[start : start + num_bytes]
        raise Refused("an illegal address")

    def attend(
        self, slot: int, qkv: Tensor, named: Mapping[str, Tensor], cos_sin: Tensor
    ) -> Tensor:
        """qkv [T, (heads + 2 kv_heads) * head_dim], normed but not rotated; cos_sin [positions,
        head_dim / 2, 2]."""
        require(not named["host_sink_token_length"].any(), "sink tokens")
        require(not named["cache_indirection"].any(), "another beam's cache")
        require(named["cache_indirection"].shape[1] == 1, "more than one beam")
        window = min(
            int(named["host_max_attention_window_sizes"][slot]), named["cache_indirection"].shape[2]
        )
        kinds = named["host_request_types"].tolist()
        num_context = kinds.count(CONTEXT)
        require(
            kinds == [CONTEXT] * num_context + [GENERATION] * (len(kinds) - num_context),
            "context comes first",
        )
        context_rows = int(named["host_context_lengths"][:num_context].sum())
        require(
            context_rows + len(kinds) - num_context == len(qkv), "lengths and packed rows differ"
        )
        pool = _Pool(self, slot, named)
        attended, start = [], 0
        for b, kind in enumerate(kinds):
            num_rows, first = self._rows_of(b, kind, named)
            total = int(named["sequence_length"][b])
            require(num_rows > 0 and total <= len(cos_sin), "a length")
            rows = qkv[start : start + num_rows].unflatten(1, (-1, self.head_dim)).float()
            start += num_rows
            positions = torch.arange(first, first + num_rows)
            require(first >= 0 and int(positions[-1]) < len(cos_sin), "a position")
            q, k, v = rows.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
            q, k = _rotate(q, cos_sin[positions]), _rotate(k, cos_sin[positions])
            pool.write(named["kv_cache_block_offsets"], b, positions, k, v)
            table = "host_kv_cache_block_offsets" if kind == CONTEXT else "kv_cache_block_offsets"
            seen = torch.arange(max(0, total - window), total)
            keys, values = pool.read(named[table], b, seen)
            last = total - num_rows + torch.arange(num_rows).unsqueeze(1)
            hidden = torch.zeros(num_rows, len(seen)).masked_fill_(seen > last, -torch.inf)
            attended.append(
                F.scaled_dot_product_attention(
                    q.transpose(0, 1),
                    keys.transpose(0, 1),
                    values.transpose(0, 1),
                    attn_mask=hidden,
                    enable_gqa=True,
                )
                .transpose(0, 1)
                .flatten(1)
            )
        return torch.cat(attended).to(qkv.dtype)

    @staticmethod
    def _rows_of(b: int, kind: int, named: Mapping[str, Tensor]) -> tuple[int, int]:
        """How many rows a sequence has in this call, and the position of the first."""
        past, prompt = (
            int(named["host_past_key_value_lengths"][b]),
            int(named["context_lengths"][b]),
        )
        if kind == CONTEXT:
            return prompt, past - prompt
        require(1 <= prompt <= past, "a prompt longer than the cache")
        return 1, past


class _Pool:
    """Keys and values of one layer, by address."""

    def __init__(self, plugin: Plugin, slot: int, named: Mapping[str, Tensor]):
        self._plugin = plugin
        pool, place = 0, slot
        if "host_kv_cache_pool_mapping" in named:
            mapping = named["host_kv_cache_pool_mapping"][slot]
            pool, place = map(int, mapping) if mapping.dim() else (int(mapping), slot)
        pointers = named["host_kv_cache_pool_pointers"].reshape(-1, 2)
        require(pool < len(pointers), "a pool that is not there")
        require(
            any(t.data_ptr() == int(pointers[pool][0]) for t in plugin.memory),
            "a pool that begins elsewhere",
        )
        require(int(pointers[pool][1]) == 0, "a secondary pool where there is none")
        self._pool = pool
        self._block_bytes = (
            plugin.num_kv_heads * plugin.tokens_per_block * plugin.head_dim * plugin.dtype.itemsize
        )
        self._base = int(pointers[pool][0]) + place * 2 * self._block_bytes

    def write(
        self, tables: Tensor, b: int, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        for i, position in enumerate(positions.tolist()):
            for which, rows in enumerate((keys, values)):
                self._block(tables, b, which, position)[
                    :, position % self._plugin.tokens_per_block
                ] = rows[i]

    def read(self, tables: Tensor, b: int, positions: Tensor) -> list[Tensor]:
        """Keys and values of consecutive positions, each float32 [rows, kv_heads, head_dim]."""
        size, first, end = self._plugin.tokens_per_block, int(positions[0]), int(positions[-1]) + 1
        starts = range(first // size * size, end, size)
        rows = [
            torch.cat([self._block(tables, b, which, start).transpose(0, 1) for start in starts])
            for which in (0, 1)
        ]
        return [which[first - starts[0] : end - starts[0]].float() for which in rows]

    def _block(self, tables: Tensor, b: int, which: int, position: int) -> Tensor:
        """[kv_heads, tokens_per_block, head_dim] of the block that holds a position."""
        plugin = self._plugin
        table = (tables[self._pool] if tables.dim() == 4 else tables)[b]
        index = position // plugin.tokens_per_block
        require(index < table.shape[1], "a position beyond the block table")
        key, value = int(table[0, index]), int(table[1, index])
        require(key >= 0 and value >= 0, "an offset into the secondary pool")
        require(value == key + 1, "values do not lie behind keys")
        address = self._base + (key, value)[which] * self._block_bytes
        shape = (plugin.num_kv_heads, plugin.tokens_per_block, plugin.head_dim)
        return plugin.at(address, self._block_bytes).view(plugin.dtype).view(shape)


def _rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """NeoX: x [rows, heads, head_dim]; element i turns with element i + half."""
    cos, sin = cos_sin.unsqueeze(1).unbind(-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class ReferenceNetwork:
    """What an engine computes around the plugin, from the checkpoint's own tensors in float32."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], plugin: Plugin, max_seq_len: int
    ):
        self.config, self.tensors, self.plugin = config, tensors, plugin
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        angles = torch.arange(max_seq_len).unsqueeze(1) * config.rope_theta**-exponents
        self.cos_sin = torch.stack([angles.cos(), angles.sin()], dim=-1)

    def __call__(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        config, tensors = self.config, self.tensors
        ids = named["input_ids"].long()
        table = torch.cat(
            [tensors["model.embed_tokens.weight"], tensors["model.audio_embed.weight"]]
        )
        require(int(ids.min()) >= 0 and int(ids.max()) < len(table), "an id")
        if "position_ids" in named:
            require(named["position_ids"].tolist() == positions_of(named), "positions")
        x, shared, branch = table[ids], config.num_shared_layers, config.num_modality_layers
        for i in range(shared):
            x = self._layer(x, f"model.shared_block.layers.{i}.", i, named)
        outputs, last = {}, named["last_token_ids"].long() - 1
        for number, (name, output) in enumerate((("text", "logits"), ("audio", "audio_logits"))):
            y = x
            for i in range(branch):
                y = self._layer(
                    y, f"model.{name}_block.layers.{i}.", shared + number * branch + i, named
                )
            normed = self._norm(y[last], f"model.{name}_norm.weight")
            outputs[output] = F.linear(normed, tensors[f"{name}_lm_head.weight"])
        return outputs

    def _layer(self, x: Tensor, prefix: str, slot: int, named: Mapping[str, Tensor]) -> Tensor:
        normed = self._norm(x, prefix + "input_layernorm.weight")
        q, k, v = (
            F.linear(normed, self.tensors[f"{prefix}self_attn.{name}_proj.weight"])
            for name in "qkv"
        )
        q, k = (
            self._norm(
                heads.unflatten(1, (-1, self.config.head_dim)),
                f"{prefix}self_attn.{name}_norm.weight",
            )
            for heads, name in ((q, "q"), (k, "k"))
        )
        attended = self.plugin.attend(
            slot, torch.cat([q.flatten(1), k.flatten(1), v], dim=1), named, self.cos_sin
        )
        x = x + F.linear(attended, self.tensors[prefix + "self_attn.o_proj.weight"])
        normed = self._norm(x, prefix + "post_attention_layernorm.weight")
        gate, up = (
            F.linear(normed, self.tensors[f"{prefix}mlp.{name}_proj.weight"])
            for name in ("gate", "up")
        )
        return x + F.linear(F.silu(gate) * up, self.tensors[prefix + "mlp.down_proj.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[name], self.config.rms_norm_eps)


def positions_of(named: Mapping[str, Tensor]) -> list[int]:
    positions: list[int] = []
    for b, kind in enumerate(named["host_request_types"].tolist()):
        num_rows, first = Plugin._rows_of(b, kind, named)
        positions += range(first, first + num_rows)
    return positions


def profiles(limits: Limits) -> list[dict[str, list[tuple[int, ...]]]]:
    """One for a row of each sequence, one for steps of many rows."""
    blocks = -(-limits.max_seq_len // limits.block_size)
    found = []
    for rows in (limits.max_batch, limits.max_step_rows):
        sizes = {
            "T": (1, rows, rows),
            "B": (1, 1, limits.max_batch),
            "M": (1, blocks, blocks),
            "S": (blocks * limits.block_size,) * 3,
            "1": (1, 1, 1),
            "P": (1, 1, 1),
            "2": (2, 2, 2),
        }
        axes = {"input_ids": "T", "position_ids": "T", "cache_indirection": "B1S"}
        axes |= dict.fromkeys(("kv_cache_block_offsets", "host_kv_cache_block_offsets"), "PB2M")
        found.append(
            {
                name: [tuple(sizes[axis][i] for axis in axes.get(name, "B")) for i in range(3)]
                for name in SHAPES_1_2_1
            }
        )
    return found


class Engine:
    """What TensorRT shows of an engine, and `run`, which computes outputs from the tensors that
    were bound."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[str, tuple[int | str, ...]]],
        outputs: Mapping[str, int],
        num_layers: int,
        ranges: Sequence[Mapping[str, list[tuple[int, ...]]]],
        run: Any,
        plugin: Callable[[], Plugin] | None = None,
    ):
        known = {
            name: (dtype, tuple(num_layers if size == "L" else size for size in shape))
            for name, (dtype, shape) in shapes.items()
        }
        self.inputs = {name: (0, dtype, shape) for name, (dtype, shape) in known.items()}
        self.outputs = dict(outputs)
        self.names = [*self.inputs, *self.outputs]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(ranges)
        self.device_memory_size_v2 = 1024
        self.run = run
        self.plugin = plugin
        self._ranges = ranges

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> Any:
        return (
            trt_emulator.TensorIOMode.INPUT
            if name in self.inputs
            else trt_emulator.TensorIOMode.OUTPUT
        )

    def get_tensor_dtype(self, name: str) -> Any:
        return trt_emulator._Type(self.inputs[name][1] if name in self.inputs else "float32")

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.inputs[name][2] if name in self.inputs else (-1, self.outputs[name])

    def get_tensor_location(self, name: str) -> Any:
        return trt_emulator.TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        shape = self.inputs[name][2]
        if -1 not in shape:
            return [shape] * 3
        found = self._ranges[profile][name]
        return [sizes[-len(shape) :] for sizes in found]

    def create_execution_context(self, strategy: Any) -> Any:
        return Context(self)  # type: ignore[arg-type]


class Context(trt_emulator.Context):
    """Runs where the addresses are: host tensors must lie on the host, all others on the device, if
    there is one."""

    def execute_async_v3(self, stream: int) -> object:
        engine: Any = self.engine
        if not self.memory or any(name not in self.addresses for name in engine.names):
            return False
        if stream:
            torch.cuda.ExternalStream(stream).synchronize()
        named = {}
        for name, (_, dtype, shape) in engine.inputs.items():
            if -1 in shape and name not in self.shapes:
                return False
            named[name] = torch.empty(self.shapes.get(name, shape), dtype=getattr(torch, dtype))
            if stream:
                require(
                    _is_on_device(self.addresses[name]) != name.startswith("host_"),
                    f"{name} on the wrong side",
                )
            _copy(named[name].data_ptr(), self.addresses[name], named[name].nbytes, stream)
        plugin = engine.plugin()
        plugin.begin()
        for name, tensor in engine.run(named).items():
            found = tensor.float().contiguous()
            _copy(self.addresses[name], found.data_ptr(), found.nbytes, stream)
        plugin.end()
        if stream:
            torch.cuda.synchronize()
        return True


def _copy(target: int, source: int, num_bytes: int, stream: int) -> None:
    if not stream:
        ctypes.memmove(target, source, num_bytes)
    elif num_bytes:
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuMemcpy(
            ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(num_bytes)
        )
        require(status == 0, f"cuMemcpy gave {status}")


def _is_on_device(address: int) -> bool:
    """By the driver's word; memory that it does not know lies on the host."""
    kind = ctypes.c_uint32(0)
    status = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(
        ctypes.byref(kind), 2, ctypes.c_uint64(address)
    )
    return status == 0 and kind.value == 2


PLANS: dict[bytes, Engine] = {}
"""Engines by the bytes of their plans."""


class _Runtime:
    def __init__(self, logger: Any):
        assert isinstance(logger, trt_emulator.Logger)

    def deserialize_cuda_engine(self, plan: Any) -> Engine | None:
        return PLANS.get(bytes(plan))


TENSORRT = SimpleNamespace(
    __version__="10.14.1.48",
    __name__="tensorrt",
    Runtime=_Runtime,
    Logger=trt_emulator.Logger,
    TensorIOMode=trt_emulator.TensorIOMode,
    TensorLocation=trt_emulator.TensorLocation,
    ExecutionContextAllocationStrategy=trt_emulator.ExecutionContextAllocationStrategy,
)
"""The package `tensorrt`, as far as a runtime needs it."""


def reference_engine(
    name: str, config: ModelConfig, tensors: Mapping[str, Tensor], limits: Limits, plugin: Plugin
) -> bytes:
    """The plan of an engine with the inputs of release `name`."""
    capacity = -(-limits.max_seq_len // limits.block_size) * limits.block_size
    network = ReferenceNetwork(config, tensors, plugin, capacity)
    plan = f"release {name}, engine {len(PLANS)}".encode()
    PLANS[plan] = Engine(
        VARIANTS[name],
        {"logits": config.vocab_size, "audio_logits": config.audio_vocab_size},
        config.num_layers,
        profiles(limits),
        network,
        lambda: plugin,
    )
    return plan
