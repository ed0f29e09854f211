"""Rows drawn on the device: two kernels, inside the captured step where the runtime can, and one
read of the result."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.request import ChannelSampling
from moss_engine.api.tokens import Modality, Row, settle_row
from moss_engine.kernels.lm import sampling as kernels
from moss_engine.kernels.lm.sampling import MAX_TOP_K, NO_ID, Column
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import BatchSampling, Logits, SequenceSampling
from moss_engine.runtime.sampler import AUDIO, TEXT, History, draw_rows, new_history

PARAMETERS = [field.name for field in fields(ChannelSampling) if field.name in Column.__members__]
GREEDY = ChannelSampling(temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0)


def record(place: int, values: ChannelSampling, first_forbidden: int) -> list[float]:
    """A packed row of `Column`s, by which a channel of the sequence at `place` is drawn: those that
    stay the same in all its steps are set, the others hold NO_ID and 0. Ids from `first_forbidden`
    on are never drawn."""
    columns = dict.fromkeys(Column, float(kernels.NO_ID))
    columns[Column.place] = place
    columns |= {Column[name]: getattr(values, name) for name in PARAMETERS}
    if values.top_p >= 1:
        columns[Column.top_p] = 2.0  # keep all: rounding lets the sum before the last id reach 1
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
        self._nobody[:, Column.noted] = 0.0  # nothing is drawn
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


@dataclass
class _Placed:
    """A sequence's history, at its place in the memory that the kernels read and write."""

    history: History
    place: int
    by_kernels: bool


class KernelSampler:
    """Draws the same rows as `TorchSampler`, up to the rounding of probabilities.

    A batch in which a sequence ranks more than MAX_TOP_K ids (no top-k, or a large one), or has a
    parameter that no kernel knows, is sampled by the plain rules, from the same histories. `draws`
    is what a captured step draws by, between `put` and `read`.
    """

    def __init__(self, config: ModelConfig, max_batch: int, device: torch.device):
        self.draws = Draws(config, max_batch, device)
        if device.type == "cuda":  # compile the kernels before anybody waits for a sample
            self.draws.run(
                torch.zeros(1, config.vocab_size, device=device),
                torch.zeros(1, config.audio_vocab_size, device=device),
            )
        self._text_size = config.vocab_size
        self._eosp = config.special.eosp
        self._placed: dict[str, _Placed] = {}
        self._free_places = list(range(max_batch))
        # of the sequence at each place: its records, of which a step changes three columns
        self._records = np.zeros((max_batch, 2, len(Column)))
        self._seeds = np.zeros(max_batch, np.uint64)
        self._min_rows = np.zeros(max_batch, np.int64)

    @torch.inference_mode()
    def sample(self, logits: Logits, sampling: BatchSampling) -> list[Row | None]:
        """See `TorchSampler`."""
        if self.put(sampling):
            self.draws.run(*logits)
            return self.read(sampling)
        return draw_rows(logits, sampling, [self._find(s).history for s in sampling.sequences])

    def put(self, sampling: BatchSampling) -> bool:
        """Send what the rows are drawn by; False where the kernels cannot draw this batch."""
        self._let_go(sampling.finished)
        placed = [self._find(sequence) for sequence in sampling.sequences]
        if not placed or not all(p.by_kernels for p in placed):
            return False
        ids = sampling.special_ids
        places = np.array([p.place for p in placed])
        num_rows = np.array([sequence.num_reply_rows for sequence in sampling.sequences])
        speaks = np.array([s.modality is Modality.AUDIO for s in sampling.sequences])
        records = self._records[places]
        records[:, :, Column.uniform] = uniforms(self._seeds[places], num_rows)
        records[:, AUDIO, Column.forbidden] = np.where(
            num_rows + 1 < self._min_rows[places], ids.eosp, NO_ID
        )
        records[:, TEXT, Column.noted] = np.where(speaks, ids.modality_pad, NO_ID)
        for i, sequence in enumerate(sampling.sequences):
            if sequence.allowed_text is not None:
                first, *others = sequence.allowed_text
                records[i, TEXT, Column.allowed] = first
                records[i, TEXT, Column.also_allowed] = others[0] if others else NO_ID
        self.draws.put(records)
        return True

    def read(self, sampling: BatchSampling) -> list[Row | None]:
        """The rows that were drawn for what was `put`."""
        rows: list[Row | None] = []
        for sequence, (text_id, audio_id, is_finite) in zip(
            sampling.sequences, self.draws.read(len(sampling.sequences)), strict=True
        ):
            if not is_finite:
                rows.append(None)
                continue
            # the kernels noted what they drew
            self._placed[sequence.sequence_id].history.num_rows += 1
            row = Row(text_id, audio_id)
            rows.append(settle_row(sequence.modality, row, sampling.special_ids))
        return rows

    def _find(self, sequence: SequenceSampling) -> _Placed:
        placed = self._placed.get(sequence.sequence_id)
        if placed is None:
            placed = self._placed[sequence.sequence_id] = self._begin(sequence)
        placed.history.catch_up(sequence.rows)
        return placed

    def _begin(self, sequence: SequenceSampling) -> _Placed:
        assert self._free_places, "more sequences are sampled than the runtime runs"
        place, sampling = self._free_places.pop(), sequence.sampling
        history = new_history(*self.draws.clear_history(place), sampling)
        self._records[place] = (
            record(place, sampling.text, self._text_size),
            record(place, sampling.audio, self._eosp + 1),
        )
        self._seeds[place] = sampling.seed % 2**64
        self._min_rows[place] = sampling.min_rows
        return _Placed(history, place, _by_kernels(sampling.text) and _by_kernels(sampling.audio))

    def _let_go(self, finished: tuple[str, ...]) -> None:
        for sequence_id in finished:
            placed = self._placed.pop(sequence_id, None)
            if placed is not None:
                self._free_places.append(placed.place)


def uniforms(seeds: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """`moss_engine.runtime.sampler.uniform` for both channels: seeds uint64 [n], steps [n] ->
    float64 [n, 2]."""
    x = np.repeat(seeds[:, None], 2, axis=1)
    for counter in (steps[:, None] + 1, np.array([[TEXT + 1, AUDIO + 1]])):
        x = x + counter.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(32)) / 2**32


def _by_kernels(values: ChannelSampling) -> bool:
    """Whether the kernels know how to draw by these values."""
    unknown = any(
        getattr(values, field.name) != field.default
        for field in fields(values)
        if field.name not in Column.__members__
    )
    return not unknown and (values.temperature == 0 or 0 < values.top_k <= MAX_TOP_K)
