"""The programs of a `CudaRuntime`: one for every batch size and every number of rows, each a CUDA
graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from moss_engine.kernels.launch import next_power_of_2
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, Logits
from moss_engine.runtime.cuda.draws import Draws
from moss_engine.runtime.cuda.inputs import DeviceInputs, RowsShape
from moss_engine.runtime.cuda.network import CudaNetwork

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
