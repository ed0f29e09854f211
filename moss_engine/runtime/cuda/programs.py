"""The programs of a `CudaRuntime`, one for every batch size and every number of rows, each a CUDA
graph; and what they read: a scheduled batch as integers on the device, put into pinned memory and
sent with one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moss_engine.kernels.launch import next_power_of_2
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, Logits, ScheduledSequence
from moss_engine.runtime.cuda.network import CudaNetwork, DecodeInput, FinishInput, RowsInput
from moss_engine.runtime.cuda.sampler import Draws


@dataclass(frozen=True)
class RowsShape:
    """Capacity of one captured `fill`: rows, and tiles of at most `tile_rows` rows of one
    sequence."""

    rows: int
    tile_rows: int
    max_tiles: int


class DeviceInputs:
    """Buffers of every integer that a step reads.

    Unused places hold what is harmless: position 0 of a sequence whose only block is the pool's
    last, which belongs to nobody. Block tables stay on the device and are sent again only when one
    of them has changed.
    """

    def __init__(self, limits: Limits, shapes: Sequence[RowsShape], device: torch.device):
        self._block_size, self._spare_block = limits.block_size, limits.num_blocks
        rows = max(limits.max_batch, *(shape.rows for shape in shapes))
        table_blocks = -(-limits.max_seq_len // limits.block_size)
        sizes = {
            "ids": 2 * rows,
            "positions": rows,
            "pool_rows": rows,
            "tiles": max(4 * shape.max_tiles for shape in shapes),
            "select": 2 * _batch_places(limits),
            "select_positions": _batch_places(limits),
        }
        self._num_small = sum(sizes.values())
        total = self._num_small + (_batch_places(limits) + limits.max_batch) * table_blocks
        self._host = torch.zeros(total, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        self._views: dict[str, tuple[np.ndarray, Tensor]] = {}
        start = 0
        for name, size in sizes.items():
            self._views[name] = (
                self._host[start : start + size].numpy(),
                self._device[start : start + size],
            )
            start += size
        self._host_tables = self._host[start:].view(-1, table_blocks).numpy()
        self._device_tables = self._device[start:].view(-1, table_blocks)
        self._tables: list[tuple[int, ...]] = [()] * len(self._host_tables)
        self._host_tables[:] = self._spare_block
        self._device_tables.fill_(self._spare_block)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None

    def decode(self, batch: int) -> DecodeInput:
        """What a captured decode of this batch size reads."""
        return DecodeInput(
            ids=self._views["ids"][1][: 2 * batch].view(batch, 2),
            positions=self._views["positions"][1][:batch],
            pool_rows=self._views["pool_rows"][1][:batch],
            tables=self._device_tables[:batch],
        )

    def rows(self, shape: RowsShape) -> RowsInput:
        """What a captured fill of this shape reads."""
        return RowsInput(
            ids=self._views["ids"][1][: 2 * shape.rows].view(shape.rows, 2),
            positions=self._views["positions"][1][: shape.rows],
            pool_rows=self._views["pool_rows"][1][: shape.rows],
            tiles=self._views["tiles"][1][: 4 * shape.max_tiles].view(4, shape.max_tiles),
            tile_rows=shape.tile_rows,
            tables=self._device_tables,
        )

    def finish(self, batch: int) -> FinishInput:
        """What a captured finish of this batch size reads."""
        return FinishInput(
            select=self._views["select"][1][: 2 * batch].view(2, batch),
            positions=self._views["select_positions"][1][:batch],
            tables=self._device_tables[:batch],
        )

    def put_decode(self, sequences: Sequence[ScheduledSequence], batch: int) -> None:
        """Send sequences of one row each to the places of a decode of `batch`."""
        self._wait()
        count = len(sequences)
        ids, positions, pool_rows = (
            self._views[name][0] for name in ("ids", "positions", "pool_rows")
        )
        ids[: 2 * count] = [channel for sequence in sequences for channel in sequence.rows[0]]
        ids[2 * count : 2 * batch] = 0
        positions[:count] = [sequence.num_cached for sequence in sequences]
        positions[count:batch] = 0
        size = self._block_size
        pool_rows[:count] = [
            sequence.block_table[sequence.num_cached // size] * size + sequence.num_cached % size
            for sequence in sequences
        ]
        pool_rows[count:batch] = self._spare_block * size
        self._send(
            self._put_tables(
                [sequence.block_table for sequence in sequences] + [()] * (batch - count)
            )
        )

    def put_rows(
        self, sequences: Sequence[ScheduledSequence], shape: RowsShape, num_sampled: int, batch: int
    ) -> None:
        """Send all rows of all sequences, those that are sampled first, and select the last rows of
        those.

        The tables of the others come after all `batch` places of a finish, so that none of its
        padding rows has one.
        """
        self._wait()
        views = {name: host for name, (host, _) in self._views.items()}
        views["ids"][: 2 * shape.rows] = 0
        views["positions"][: shape.rows] = 0
        views["pool_rows"][: shape.rows] = self._spare_block * self._block_size
        views["select"][: 2 * batch] = 0
        views["select_positions"][:batch] = 0
        tables = [sequence.block_table for sequence in sequences]
        tables[num_sampled:num_sampled] = [()] * (batch - num_sampled)
        tiles: list[tuple[int, int, int, int]] = []
        start = 0
        for index, sequence in enumerate(sequences):
            is_sampled, count = index < num_sampled, len(sequence.rows)
            self._put_sequence(views, sequence, start)
            place = index if is_sampled else index + batch - num_sampled
            tiles += [
                (start + i, min(shape.tile_rows, count - i), sequence.num_cached + i, place)
                for i in range(0, count, shape.tile_rows)
            ]
            start += count
            if is_sampled:
                views["select"][[index, batch + index]] = start - 1, shape.rows + start - 1
                views["select_positions"][index] = sequence.num_cached + count - 1
        assert start <= shape.rows and len(tiles) <= shape.max_tiles, (
            "the shape is too small for the batch"
        )
        tile_view = views["tiles"][: 4 * shape.max_tiles].reshape(4, shape.max_tiles)
        tile_view[:] = 0
        tile_view[:, : len(tiles)] = np.asarray(tiles, dtype=np.int32).T
        self._send(self._put_tables(tables))

    def _put_sequence(
        self, views: dict[str, np.ndarray], sequence: ScheduledSequence, start: int
    ) -> None:
        """Ids, positions and places in the pool of a sequence's rows, from row `start` on."""
        count, table = len(sequence.rows), np.asarray(sequence.block_table)
        end = start + count
        at = np.arange(sequence.num_cached, sequence.num_cached + count)
        views["ids"][2 * start : 2 * end] = np.fromiter(
            chain.from_iterable(sequence.rows), np.int32, 2 * count
        )
        views["positions"][start:end] = at
        views["pool_rows"][start:end] = (
            table[at // self._block_size] * self._block_size + at % self._block_size
        )

    def _put_tables(self, tables: Sequence[tuple[int, ...]]) -> int:
        """Write the tables that changed; returns up to which row they have to be sent."""
        width = self._host_tables.shape[1]
        changed = 0
        for index, whole in enumerate(tables):
            table = whole[:width]
            if table != self._tables[index]:
                self._tables[index] = table
                self._host_tables[index, : len(table)] = table
                self._host_tables[index, len(table) :] = self._spare_block
                changed = index + 1
        return changed

    def _wait(self) -> None:
        """Until the copy of the last step has read the pinned memory."""
        if self._sent is not None:
            self._sent.synchronize()

    def _send(self, num_tables: int) -> None:
        size = self._num_small + num_tables * self._host_tables.shape[1]
        self._device[:size].copy_(self._host[:size], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def _batch_places(limits: Limits) -> int:
    """Places for sequences: the largest captured batch, which is max_batch rounded up to a power of
    two."""
    return 1 << (limits.max_batch - 1).bit_length()


_TILE_QUERIES = 64


class Program(NamedTuple):
    """What a program runs: `decode` and `finish` for a batch size, `fill` for a number of rows;
    with text logits or without, and with rows drawn at the end or not."""

    name: str
    size: int
    text_logits: bool = False
    draws: bool = False


class LogitsBuffer:
    """Where programs leave their logits: float32 [max_batch, vocab_size] and [max_batch,
    audio_vocab_size]."""

    def __init__(self, config: ModelConfig, max_batch: int, device: torch.device):
        self._text = torch.empty(max_batch, config.vocab_size, device=device)
        self._audio = torch.empty(max_batch, config.audio_vocab_size, device=device)
        self._no_text = torch.zeros(1, config.vocab_size, device=device)

    def first(self, count: int, *, text_logits: bool) -> Logits:
        """Of the first sequences; zeros for text logits that are not computed."""
        text = self._text[:count] if text_logits else self._no_text.expand(count, -1)
        return Logits(text, self._audio[:count])


def make_programs(
    network: CudaNetwork,
    inputs: DeviceInputs,
    logits: LogitsBuffer,
    draws: Draws,
    batches: Sequence[int],
    shapes: Sequence[RowsShape],
) -> dict[Program, Callable[[], None]]:
    programs: dict[Program, Callable[[], None]] = {}
    for batch, text_logits, is_drawn in product(batches, (True, False), (False, True)):
        found = logits.first(batch, text_logits=text_logits)
        draw = partial(draws.run, found.text if text_logits else None, found.audio)
        for name, run, given in (
            ("decode", network.decode, inputs.decode(batch)),
            ("finish", network.finish, inputs.finish(batch)),
        ):
            step = partial(run, given, found, text_logits=text_logits)
            programs[Program(name, batch, text_logits, is_drawn)] = (
                _chain(step, draw) if is_drawn else step
            )
    for shape in shapes:
        programs[Program("fill", shape.rows)] = partial(network.fill, inputs.rows(shape))
    return programs


@torch.inference_mode()
def capture(programs: dict[Program, Callable[[], None]], device: torch.device) -> None:
    """Replace every program by its CUDA graph; they share one memory pool, as they never run at
    the same time."""
    memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    for key, program in programs.items():
        with torch.cuda.stream(stream):
            # compiles kernels and sets libraries up, which must not happen during capture
            program()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory, stream=stream):
            program()
        programs[key] = graph.replay


def batch_sizes(max_batch: int) -> list[int]:
    """Powers of two, up to the first that holds `max_batch`."""
    return [1 << i for i in range((max_batch - 1).bit_length() + 1)]


def rows_shapes(config: ModelConfig, limits: Limits) -> list[RowsShape]:
    """Shapes of the fill graphs: 16, 32, then every 64 rows up to 512, then every 256, until
    max_step_rows fit."""
    sizes = [16, 32]
    while sizes[-1] < limits.max_step_rows:
        sizes.append(sizes[-1] + (32 if sizes[-1] < 64 else 64 if sizes[-1] < 512 else 256))
    sizes = sizes[: next(i for i, size in enumerate(sizes) if size >= limits.max_step_rows) + 1]
    per_kv = next_power_of_2(config.num_attention_heads // config.num_key_value_heads)
    tile_rows = max(1, _TILE_QUERIES // per_kv)
    return [
        RowsShape(size, tile_rows, min(size, size // tile_rows + limits.max_batch))
        for size in sizes
    ]


def _chain(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        then()

    return run
