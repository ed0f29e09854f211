"""The programs of a `CudaRuntime`, one for every batch size and every number of rows, each a CUDA
graph; and what they read: a scheduled batch as integers on the device, put into pinned memory and
sent with one copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product, repeat
from typing import NamedTuple

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
        host = self._host.numpy().data
        self._views: dict[str, tuple[memoryview, Tensor]] = {}
        start = 0
        for name, size in sizes.items():
            end = start + size
            self._views[name] = host[start:end], self._device[start:end]
            start = end
        self._host_tables, self._table_blocks = host[start:], table_blocks
        self._device_tables = self._device[start:].view(-1, table_blocks)
        self._tables: list[tuple[int, ...]] = [()] * len(self._device_tables)
        self._host[start:] = self._spare_block
        self._device_tables.fill_(self._spare_block)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None
        # what is copied, by tables: after rest torch takes as long for a slice as for the copy
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}

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
        self._put("ids", chain.from_iterable(s.rows[0] for s in sequences), 2 * batch)
        self._put("positions", (s.num_cached for s in sequences), batch)
        places = (self._pool_rows(s, s.num_cached, s.num_cached + 1)[0] for s in sequences)
        self._put("pool_rows", places, batch, self._spare_block * self._block_size)
        unused = [()] * (batch - len(sequences))
        self._send(self._put_tables([s.block_table for s in sequences] + unused))

    def put_rows(
        self, sequences: Sequence[ScheduledSequence], shape: RowsShape, num_sampled: int, batch: int
    ) -> None:
        """Send all rows of all sequences, those that are sampled first, and select the last rows of
        those.

        The tables of the others come after all `batch` places of a finish, so that none of its
        padding rows has one.
        """
        self._wait()
        ids, positions, pool_rows = array("i"), array("i"), array("i")
        tiles: list[tuple[int, int, int, int]] = []
        last_rows: list[int] = []
        for index, sequence in enumerate(sequences):
            start, count = len(positions), len(sequence.rows)
            end = sequence.num_cached + count
            ids.extend(chain.from_iterable(sequence.rows))
            positions.extend(range(sequence.num_cached, end))
            pool_rows.extend(self._pool_rows(sequence, sequence.num_cached, end))
            place = index if index < num_sampled else index + batch - num_sampled
            tiles += [
                (start + i, min(shape.tile_rows, count - i), sequence.num_cached + i, place)
                for i in range(0, count, shape.tile_rows)
            ]
            last_rows.append(start + count - 1)
        assert len(positions) <= shape.rows and len(tiles) <= shape.max_tiles, (
            "the shape is too small for the batch"
        )
        self._put("ids", ids, 2 * shape.rows)
        self._put("positions", positions, shape.rows)
        self._put("pool_rows", pool_rows, shape.rows, self._spare_block * self._block_size)
        unused_tiles = [(0, 0, 0, 0)] * (shape.max_tiles - len(tiles))
        by_kind = zip(*tiles, *unused_tiles, strict=True)
        self._put("tiles", chain.from_iterable(by_kind), 4 * shape.max_tiles)
        last_rows = last_rows[:num_sampled]
        unused = [0] * (batch - num_sampled)
        of_audio = [shape.rows + row for row in last_rows]
        self._put("select", last_rows + unused + of_audio, 2 * batch)
        self._put("select_positions", [positions[row] for row in last_rows], batch)
        tables = [sequence.block_table for sequence in sequences]
        tables[num_sampled:num_sampled] = [()] * len(unused)
        self._send(self._put_tables(tables))

    def _put(self, name: str, values: Iterable[int], count: int, unused: int = 0) -> None:
        """Write values to the first of `count` places of a buffer, and `unused` to the others.

        Arrays of Python rather than numpy: after rest their few instructions are there sooner.
        """
        given = array("i", values)
        given.extend(repeat(unused, count - len(given)))
        self._views[name][0][:count] = given

    def _pool_rows(self, sequence: ScheduledSequence, start: int, end: int) -> array[int]:
        """Places in the pool (block * block_size + offset) of a sequence's rows start to end."""
        size, found = self._block_size, array("i")
        for index in range(start // size, -(-end // size)):
            first = index * size
            shift = sequence.block_table[index] * size - first
            found.extend(range(max(start, first) + shift, min(end, first + size) + shift))
        return found

    def _put_tables(self, tables: Sequence[tuple[int, ...]]) -> int:
        """Write the tables that changed; returns up to which row they have to be sent."""
        width, changed = self._table_blocks, 0
        for index, whole in enumerate(tables):
            table = whole[:width]
            if table != self._tables[index]:
                self._tables[index] = table
                padded = array("i", table)
                padded.extend(repeat(self._spare_block, width - len(table)))
                self._host_tables[index * width : (index + 1) * width] = padded
                changed = index + 1
        return changed

    def _wait(self) -> None:
        """Until the copy of the last step has read the pinned memory."""
        if self._sent is not None:
            self._sent.synchronize()

    def _send(self, num_tables: int) -> None:
        sent = self._parts.get(num_tables)
        if sent is None:
            size = self._num_small + num_tables * self._table_blocks
            sent = self._parts[num_tables] = self._device[:size], self._host[:size]
        sent[0].copy_(sent[1], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def _batch_places(limits: Limits) -> int:
    """Places for sequences: the largest captured batch, which is max_batch rounded up to a power of
    two."""
    return 1 << (limits.max_batch - 1).bit_length()


_TILE_QUERIES = 64


class Program(NamedTuple):
    """What a program runs: `fill` for a number of rows; for a batch size, with text logits or
    without, `decode` and `finish`, and `draw`, the rows behind either."""

    name: str
    size: int
    text_logits: bool = False


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
    for batch, text_logits in product(batches, (True, False)):
        found = logits.first(batch, text_logits=text_logits)
        for name, run in (
            ("decode", partial(network.decode, inputs.decode(batch), found)),
            ("finish", partial(network.finish, inputs.finish(batch), found)),
        ):
            programs[Program(name, batch, text_logits)] = partial(run, text_logits=text_logits)
        text = found.text if text_logits else None
        programs[Program("draw", batch, text_logits)] = partial(draws.run, text, found.audio)
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
