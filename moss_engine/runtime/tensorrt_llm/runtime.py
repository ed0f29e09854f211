"""The runtime of `--runtime tensorrt_llm`: an engine file with the attention plugin, over a pool in
its layout.

The engine tells its inputs by name, rank and type; each must be one of `tensors.KNOWN`. Only
`tensorrt` and the plugin's library are loaded, never the tensorrt_llm package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from moss_engine.api.errors import EngineFileError
from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row, is_audio_row
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import parts
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, check_batch
from moss_engine.runtime.engine_manifest import EngineManifest
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.runtime.tensorrt.engine import EngineTensor, TrtEngine
from moss_engine.runtime.tensorrt.library import Library
from moss_engine.runtime.tensorrt_llm.tensors import (
    HOST_PREFIX,
    KNOWN,
    OUTPUTS,
    EngineInput,
    Geometry,
    Step,
    is_generation,
    make_step,
    match_inputs,
    values_of,
)


class TrtLlmRuntime(LogitsRuntime):
    """`Runtime` on one engine file. All sequences of a step run in one call."""

    def __init__(
        self,
        library: Library,
        plan: memoryview,
        manifest: EngineManifest,
        config: ModelConfig,
        limits: Limits,
        weights: Mapping[str, Tensor],
        info: RuntimeInfo,
        device: torch.device,
    ):
        """weights: the layout's tensors by name for an engine whose weights are bound, else
        nothing."""
        self.limits = limits
        self.info = info
        self._config = config
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        check = partial(self._check, bound=manifest.weights == "bound")
        self._engine: TrtEngine | None = TrtEngine(library, plan, check, device, self._handle())
        self._shapes = match_inputs(self._step_inputs(), config.num_layers)
        self._pool = torch.zeros(
            pool_shape(config, limits), dtype=pool_dtype(manifest.dtype), device=device
        )
        self._geometry = self._measure(manifest)
        self._logits = Logits(
            *(
                torch.empty(limits.max_batch, getattr(config, size), device=device)
                for size in OUTPUTS.values()
            )
        )
        self._kept = {**weights, **dict(zip(OUTPUTS, self._logits, strict=True))}
        self._num_profiles = len(self._engine.profile_shapes)
        for profile in range(self._num_profiles):
            self._engine.bind(profile, self._kept)
        self._given: dict[str, Tensor] = {}
        self._constants: dict[tuple[str, int], Tensor] = {}
        self._done = torch.cuda.Event() if self._stream else None

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._engine is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        order = sorted(range(len(batch.sequences)), key=lambda i: is_generation(batch.sequences[i]))
        step = make_step(
            [batch.sequences[i] for i in order], self._geometry.max_blocks, self._table_index
        )
        if self._stream is None or self._done is None:
            self._run(step)
        else:
            # the plugin reads the tensors on the host until its call has run
            self._done.synchronize()
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                self._run(step)
                self._done.record(self._stream)
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        places = [order.index(i) for i, sequence in enumerate(batch.sequences) if sequence.sample]
        select = torch.tensor(places, dtype=torch.long, device=self._device)
        return Logits(*(logits.index_select(0, select) for logits in self._logits))

    def close(self) -> None:
        if self._stream is not None:
            torch.cuda.synchronize(self._device)
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._kept.clear()
        self._given.clear()
        self._constants.clear()
        self._pool = torch.empty(0)
        if self._stream is not None:
            torch.cuda.empty_cache()

    def _run(self, step: Step) -> None:
        assert self._engine is not None
        self._given = {name: self._placed(name, step) for name in self._shapes}
        shapes = {name: tuple(tensor.shape) for name, tensor in self._given.items()}
        profile = self._profile_for(shapes)
        self._engine.bind(profile, self._given, shapes)
        self._engine.run(profile, self._handle())

    def _placed(self, name: str, step: Step) -> Tensor:
        """An input's values where the engine reads them: on the host, or on the device."""
        if (name, len(step.new)) in self._constants:
            return self._constants[name, len(step.new)]
        placed = torch.from_numpy(values_of(name, self._shapes[name], step, self._geometry))
        if self._stream is not None:
            placed = placed.pin_memory()
            if not name.startswith(HOST_PREFIX):
                placed = placed.to(self._device, non_blocking=True)
        if KNOWN[name].constant:
            self._constants[name, len(step.new)] = placed
        return placed

    def _profile_for(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """The first profile that takes a call of these shapes: those for few rows come first."""
        assert self._engine is not None
        for index, ranges in enumerate(self._engine.profile_shapes):
            if all(
                _lies_within(shapes[name], ranges[name][0], ranges[name][-1])
                for name in ranges
                if name in shapes
            ):
                return index
        raise AssertionError(f"no profile of the engine takes {shapes}")

    def _measure(self, manifest: EngineManifest) -> Geometry:
        """Sizes that the engine leaves open, as its profiles bound them."""
        assert self._engine is not None
        profiles, tensors = self._engine.profile_shapes, self._engine.tensors

        def size(name: str, axis: int) -> int:
            fixed = tensors[name].shape[axis]
            return max(ranges[name][-1][axis] for ranges in profiles) if fixed == -1 else fixed

        max_blocks = size("kv_cache_block_offsets", len(self._shapes["kv_cache_block_offsets"]) - 1)
        capacity = size("cache_indirection", 2)
        sizes = {
            "max_seq_len": min(capacity, max_blocks * self.limits.block_size),
            "max_batch": size("sequence_length", 0),
            "max_step_rows": size("input_ids", 0),
        }
        for field, found in sizes.items():
            if found < getattr(self.limits, field):
                raise EngineFileError(
                    f"The engine's profiles have {field} {found} and its manifest says "
                    f"{getattr(manifest, field)}; build it again with `python -m "
                    "scripts.build_engine --backend tensorrt_llm`."
                )
        offsets = self.limits.num_blocks * self._config.num_layers * 2
        assert offsets < 1 << 31, "the highest bit of an offset means another pool"
        return Geometry(self._config.num_layers, max_blocks, capacity, self._pool.data_ptr())

    def _step_inputs(self) -> dict[str, EngineInput]:
        assert self._engine is not None
        weights = parts(self._config)
        return {
            name: EngineInput(tensor.dtype, tensor.shape)
            for name, tensor in self._engine.tensors.items()
            if tensor.is_input and name not in weights
        }

    def _check(self, tensors: Mapping[str, EngineTensor], *, bound: bool) -> None:
        """Raise EngineFileError for outputs and weights that are not this network's; step inputs
        are matched later."""
        again = (
            "build the engine again with `python -m scripts.build_engine --backend tensorrt_llm`."
        )
        outputs = {
            name: (tensor.dtype, (-1, *tensor.shape[1:]))
            for name, tensor in tensors.items()
            if not tensor.is_input
        }  # the first size is fixed where all profiles have one sequence
        wanted = {
            name: ("float32", (-1, getattr(self._config, size))) for name, size in OUTPUTS.items()
        }
        for name in sorted(outputs.keys() | wanted.keys()):
            if outputs.get(name) != wanted.get(name):
                raise EngineFileError(
                    f"The engine's output {name!r} is {outputs.get(name)} where {wanted.get(name)} "
                    f"is needed; {again}"
                )
        for name, part in parts(self._config).items():
            if (name in tensors) != bound:
                found, stated = ("lacks", "bound") if bound else ("has", "baked")
                raise EngineFileError(
                    f"The engine {found} the weight {name!r} as an input, and its manifest says "
                    f"that its weights are {stated}; {again}"
                )
            if bound and tensors[name].shape != part.shape:
                raise EngineFileError(
                    f"The engine's weight {name!r} has shape {list(tensors[name].shape)} instead "
                    f"of "
                    f"{list(part.shape)}; {again}"
                )

    def _table_index(self, row: Row) -> int:
        """Ids of the audio channel follow those of the text channel."""
        return (
            self._config.vocab_size + row.audio
            if is_audio_row(row, self._config.special)
            else row.text
        )

    def _handle(self) -> int:
        return 0 if self._stream is None else self._stream.cuda_stream


def pool_shape(config: ModelConfig, limits: Limits) -> tuple[int, ...]:
    """[blocks, layers, keys and values, kv_heads, rows of a block, head_dim]."""
    return (
        limits.num_blocks,
        config.num_layers,
        2,
        config.num_key_value_heads,
        limits.block_size,
        config.head_dim,
    )


def pool_dtype(engine_dtype: str) -> torch.dtype:
    return torch.bfloat16 if engine_dtype == "float8" else getattr(torch, engine_dtype)


def _lies_within(shape: Sequence[int], low: Sequence[int], high: Sequence[int]) -> bool:
    return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))
