"""An engine in parts: opened as one, and run as ids to hidden rows, layers after layers, and both
heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.runtime.tensorrt.engine import TrtEngine, check_tensors
from moss_engine.runtime.tensorrt.library import Library
from moss_engine.runtime.tensorrt.part_tensors import (
    AUDIO_HIDDEN,
    EMBED,
    HEADS,
    HIDDEN,
    LAYERED,
    LAYERS,
    PARTS,
    TEXT_HIDDEN,
    hidden_shapes,
    layers_at_a_time,
    new_kv_values,
    part_inputs,
    part_outputs,
    part_weights,
    split_plan,
)
from moss_engine.runtime.tensorrt.tensors import AUDIO_LOGITS, LOGITS, NEW_KV


class TrtParts:
    """As `TrtEngine`, for the tensors of a whole engine: `bind` keeps them, and `run` gives each
    part its share."""

    def __init__(
        self,
        library: Library,
        plan: Any,
        config: ModelConfig,
        block_size: int,
        max_seq_len: int,
        dtype: str,
        device: torch.device,
        stream: int,
    ):
        """dtype: of weights and pool. Raises EngineFileError for a plan that is refused, or with
        other tensors."""
        self._config = config
        self._layers = layers_at_a_time(config)
        transposed = library.wide_io
        plans = split_plan(plan)
        self._parts = {
            part: TrtEngine(
                library,
                plans[part],
                check_tensors(
                    part_inputs(
                        part, config, block_size, max_seq_len, dtype, transposed=transposed
                    ),
                    part_outputs(part, config, dtype),
                ),
                device,
                stream,
            )
            for part in PARTS
        }
        self._weights = {
            part: tuple(part_weights(part, config, max_seq_len, dtype, transposed=transposed))
            for part in PARTS
        }
        profiles = zip(*(part.profile_shapes for part in self._parts.values()), strict=True)
        self.profile_shapes = [
            {name: shape for shapes in profile for name, shape in shapes.items()}
            for profile in profiles
        ]
        self._tensors: list[dict[str, Tensor]] = [{} for _ in self.profile_shapes]
        self._shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in self.profile_shapes]
        rows = max(shapes["ids"][2][0] * shapes["ids"][2][1] for shapes in self.profile_shapes)
        self._rows = [torch.empty(rows, config.hidden_size, device=device) for _ in range(4)]

    @property
    def memory_bytes(self) -> int:
        return sum(part.memory_bytes for part in self._parts.values())

    def bind(
        self,
        profile: int,
        tensors: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """The pool must lie in memory that goes on for one block behind it: parts read it from a
        later start."""
        self._tensors[profile] |= tensors
        self._shapes[profile] |= shapes or {}

    def run(self, profile: int, stream: int) -> None:
        """Enqueue one step with what is bound."""
        config, (trunk, other, one, two) = self._config, self._rows
        self._run(EMBED, profile, stream, {HIDDEN: trunk})
        for slot in range(0, config.num_shared_layers, self._layers):
            self._run_layers(slot, profile, stream, trunk, other)
            trunk, other = other, trunk
        text, slot = self._branch(config.num_shared_layers, profile, stream, trunk, one, two)
        audio, _ = self._branch(slot, profile, stream, trunk, other, two if text is one else one)
        tensors = self._tensors[profile]
        self._run(
            HEADS,
            profile,
            stream,
            {
                TEXT_HIDDEN: text,
                AUDIO_HIDDEN: audio,
                LOGITS: tensors[LOGITS],
                AUDIO_LOGITS: tensors[AUDIO_LOGITS],
            },
        )

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._tensors.clear()
        self._rows.clear()

    def _branch(
        self, slot: int, profile: int, stream: int, trunk: Tensor, one: Tensor, two: Tensor
    ) -> tuple[Tensor, int]:
        """The layers of a branch from `slot` on; returns its rows, in `one` or `two`, and the next
        slot."""
        source = trunk
        for first in range(slot, slot + self._config.num_modality_layers, self._layers):
            target = two if source is one else one
            self._run_layers(first, profile, stream, source, target)
            source = target
        return source, slot + self._config.num_modality_layers

    def _run_layers(
        self, slot: int, profile: int, stream: int, source: Tensor, target: Tensor
    ) -> None:
        """Layers slot, slot + 1, ...: weights, pool and new rows' keys and values from there on."""
        tensors, (sequences, rows, _) = self._tensors[profile], self._shapes[profile]["ids"]
        pool, new_kv, config = tensors["kv_pool"], tensors[NEW_KV], self._config
        first_tile = slot * 2 * config.num_key_value_heads
        _, stride = new_kv_values(config, self._layers, sequences * rows, new_kv.itemsize)
        own = {name: tensors[_in_layout(name, slot)] for name in self._weights[LAYERS]}
        own["kv_pool"] = pool.as_strided(
            pool.shape, pool.stride(), pool.storage_offset() + first_tile * pool.stride(0)
        )
        own[NEW_KV] = new_kv[slot // self._layers * stride :]
        self._run(LAYERS, profile, stream, {**own, HIDDEN: source, LAYERED: target})

    def _run(self, part: str, profile: int, stream: int, own: Mapping[str, Tensor]) -> None:
        engine, tensors, shapes = self._parts[part], self._tensors[profile], self._shapes[profile]
        sequences, rows, _ = shapes["ids"]
        shapes = {**shapes, **hidden_shapes(sequences, rows, self._config)}
        inputs = {
            name: tensors[name]
            for name, tensor in engine.tensors.items()
            if tensor.is_input and name not in own
        }
        engine.bind(
            profile,
            {**inputs, **own},
            {
                name: shape
                for name, shape in shapes.items()
                if name in engine.tensors and engine.tensors[name].is_input
            },
        )
        engine.run(profile, stream)


def _in_layout(name: str, slot: int) -> str:
    """The layout's name of a weight that the part calls layers.0.x, layers.1.x, ..."""
    first, *rest = name.split(".")
    return f"layers.{int(rest[0]) + slot}.{rest[1]}" if first == "layers" else name
