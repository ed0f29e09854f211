"""The runtime's own attention kernels on a scene of `scripts.bench.lm.attention_case`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from moss_engine.api.tokens import Row
from moss_engine.runtime.base import Limits, ScheduledSequence
from scripts.bench.lm.attention_case import BLOCK_SIZE, Scene

OURS = "this runtime's Triton kernels"


@dataclass(frozen=True)
class Method:
    """`attend(slot)` -> [rows, heads, head_dim], over KV in the library's layout.

    `gather(slot)` brings it into that layout for `attend_gathered`, where the paged pool itself
    cannot be read; `fused` norms, rotates and writes the new rows, too. `plan_ms` is work of the
    host before every step.
    """

    name: str
    attend: Callable[[int], Tensor]
    fused: bool = False
    gather: Callable[[int], Any] | None = None
    attend_gathered: Callable[[Any], Tensor] | None = None
    plan_ms: float | None = None

    def whole(self, slot: int) -> Tensor:
        """What a step has to run once the new rows are in the pool."""
        if self.gather is None:
            return self.attend(slot)
        assert self.attend_gathered is not None
        return self.attend_gathered(self.gather(slot))


class Kernels:
    """The runtime's kernels on a scene, with inputs made as the runtime makes them."""

    def __init__(self, scene: Scene):
        from moss_engine.kernels.lm.paged import PagedAttention, Pool
        from moss_engine.runtime.cuda.inputs import DeviceInputs
        from moss_engine.runtime.cuda.programs import rows_shapes
        from moss_engine.runtime.cuda.runtime import rope_table

        config, case = scene.config, scene.case
        batch = 1 << (len(case.new) - 1).bit_length()
        limits = Limits(
            BLOCK_SIZE,
            scene.num_blocks,
            batch,
            max(case.num_rows, 16),
            BLOCK_SIZE * scene.tables.shape[1],
        )
        shapes = rows_shapes(config, limits)
        rope = rope_table(config, limits.max_seq_len, scene.device)
        groups = 2 * max(batch, *(shape.max_tiles for shape in shapes))
        self._scene = scene
        self._attention = PagedAttention(config, Pool(scene.keys, scene.values), rope, groups)
        inputs = DeviceInputs(limits, shapes, scene.device)
        sequences = [
            ScheduledSequence((Row(0, 0),) * new, cached, tuple(table), True)
            for cached, new, table in zip(case.cached, case.new, scene.tables.tolist(), strict=True)
        ]
        self._step, self._rows = inputs.decode(batch), inputs.rows(shapes[-1])
        if case.decodes:
            inputs.put_decode(sequences, batch)
            count, self._places = batch, self._step
        else:
            inputs.put_rows(sequences, shapes[-1], 0, 1)
            count, self._places = shapes[-1].rows, self._rows
        self._qkv = scene.qkv.new_zeros(1, count, scene.qkv.shape[1])
        self._qkv[0, : case.num_rows] = scene.qkv
        self._queries, self._out = (
            scene.qkv.new_zeros(1, count, config.num_attention_heads * config.head_dim)
            for _ in range(2)
        )

    def store(self, slot: int) -> None:
        """Norm, rotate and write the new rows: one kernel."""
        scene, places = self._scene, self._places
        self._attention.store(
            self._qkv,
            scene.q_norm,
            scene.k_norm,
            slot,
            0,
            places.positions,
            places.pool_rows,
            self._queries,
        )

    def method(self) -> Method:
        self.store(0)  # queries for attention alone
        return (
            Method(OURS, self._decode, fused=True)
            if self._scene.case.decodes
            else Method(OURS, self._attend)
        )

    def _decode(self, slot: int) -> Tensor:
        scene, step = self._scene, self._step
        self._attention.decode(
            self._qkv, scene.q_norm, scene.k_norm, slot, 0, step.positions, step.tables, self._out
        )
        return self._result()

    def _attend(self, slot: int) -> Tensor:
        rows = self._rows
        self._attention.attend(
            self._queries, slot, 0, rows.tiles, rows.tile_rows, rows.tables, self._out
        )
        return self._result()

    def _result(self) -> Tensor:
        return self._out[0, : self._scene.case.num_rows].unflatten(
            -1, (-1, self._scene.config.head_dim)
        )
