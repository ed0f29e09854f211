"""Drawing rows on the device: the buffers of `kernels.sampling`, put to use inside a captured step
or after it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.request import ChannelSampling
from moss_engine.kernels.lm import sampling as kernels
from moss_engine.kernels.lm.sampling import Column
from moss_engine.models.config import ModelConfig

GREEDY = ChannelSampling(temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0)


def record(place: int, values: ChannelSampling, first_forbidden: int) -> list[float]:
    """A packed row of `Column`s, by which a channel of the sequence at `place` is drawn: those that
    stay the same in all its steps are set, the others hold NO_ID and 0. Ids from `first_forbidden`
    on are never drawn."""
    columns = dict.fromkeys(Column, float(kernels.NO_ID))
    columns[Column.place] = place
    columns[Column.temperature] = values.temperature
    columns[Column.top_k] = values.top_k
    # rounding lets the sum before the last id reach 1, hence 2 for "keep all"
    columns[Column.top_p] = values.top_p if values.top_p < 1 else 2.0
    columns[Column.penalty] = values.repetition_penalty
    columns[Column.uniform] = 0.0
    columns[Column.first_forbidden] = first_forbidden
    return list(columns.values())


class Draws:
    """What the rows of up to `max_rows` logits are drawn by, and what was drawn.

    `seen` int8 [max_rows + 1, vocab_size + audio_vocab_size] are the histories of as many sequences
    and a spare place, to which rows beyond those that were `put` are drawn. `run` only starts
    kernels on fixed buffers, hence can be captured.
    """

    def __init__(self, config: ModelConfig, max_rows: int, device: torch.device):
        vocab_sizes = (config.vocab_size, config.audio_vocab_size)
        tiles = kernels.num_tiles(*vocab_sizes)
        is_gpu = device.type == "cuda"
        self.seen = torch.zeros(max_rows + 1, sum(vocab_sizes), dtype=torch.int8, device=device)
        self._best = torch.empty(
            max_rows, tiles, kernels.CANDIDATES, dtype=torch.int64, device=device
        )
        self._bad = torch.empty(max_rows, tiles, dtype=torch.int32, device=device)
        self._host_values = torch.zeros(
            max_rows, 2, len(kernels.Column), dtype=torch.float64, pin_memory=is_gpu
        )
        self._nobody = torch.tensor(
            [record(max_rows, GREEDY, size) for size in vocab_sizes], dtype=torch.float64
        )
        self._host_values[:] = self._nobody
        self._values = self._host_values.to(device)
        self._num_put = 0
        self._text_size = config.vocab_size
        drawn_shape = max_rows, len(kernels.Drawn)
        self._drawn = torch.zeros(drawn_shape, dtype=torch.int32, device=device)
        self._host_drawn = torch.zeros(drawn_shape, dtype=torch.int32, pin_memory=is_gpu)
        self._read = torch.cuda.Event() if is_gpu else None

    def put(self, values: np.ndarray) -> None:
        """Send the rows' records, float64 [rows, 2, len(Column)]; only after the last draw was
        read."""
        count = len(values)
        self._host_values[:count] = torch.from_numpy(values)
        self._host_values[count : self._num_put] = self._nobody
        self._num_put = count
        self._values.copy_(self._host_values, non_blocking=True)

    def run(self, text: Tensor | None, audio: Tensor) -> None:
        """Draw for every row of the logits, float32 [rows, vocab_size] and [rows,
        audio_vocab_size]; text is None where every sequence that was `put` is speaking."""
        kernels.draw(
            text,
            audio,
            self._values,
            self.seen,
            self._best,
            self._bad,
            self._drawn,
            self._text_size,
        )

    def read(self, count: int) -> list[tuple[int, int, bool]]:
        """Text id, audio id and whether all logits were finite, for each row; waits for the
        device."""
        self._host_drawn[:count].copy_(self._drawn[:count], non_blocking=True)
        if self._read is not None:
            self._read.record()
            self._read.synchronize()
        return [
            (text, audio, bool(finite)) for text, audio, finite in self._host_drawn[:count].tolist()
        ]

    def clear_history(self, place: int) -> tuple[Tensor, Tensor]:
        """An empty history at a place: bool [vocab_size], bool [audio_vocab_size]."""
        row = self.seen[place].zero_().view(torch.bool)
        return row[: self._text_size], row[self._text_size :]
