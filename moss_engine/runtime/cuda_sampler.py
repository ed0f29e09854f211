"""`Sampler` on the device: two kernels, inside the captured step where the runtime can, and one read of the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.request import ChannelSampling, Sampling
from moss_engine.runtime.base import Logits, Runtime, ScheduledBatch
from moss_engine.runtime.cuda import CudaRuntime
from moss_engine.runtime.cuda_draws import Draws
from moss_engine.runtime.kernels.sampling import FORBIDDEN, MAX_TOP_K, NUM_VALUES, SETTLED, UNIFORM
from moss_engine.sampler import AUDIO, TEXT, Sampler
from moss_engine.tokens import Modality, Row, settle_row

_NOTHING = -1.0


class CudaSampler(Sampler):
    """Draws the same rows as `Sampler`, up to the rounding of probabilities.

    Steps of a `CudaRuntime` draw inside the graphs that compute the logits, so the host waits for the device once a
    step, for what was drawn. A batch in which a sequence ranks more than MAX_TOP_K ids (no top-k, or a large one) is
    sampled by `Sampler`.
    """

    def __init__(self, config: ModelConfig, device: torch.device, max_batch: int, runtime: CudaRuntime | None = None):
        super().__init__(config, device)
        self._runtime = runtime
        self._draws = Draws(config, max_batch, device) if runtime is None else runtime.draws
        if runtime is None and device.type == "cuda":  # compile the kernels before anybody waits for a sample
            self._draws.run(*(torch.zeros(1, size, device=device) for size in self._vocab_sizes))
        self._places: dict[Hashable, int] = {}
        self._free_places = list(range(max_batch))
        # of the sequence at each place: columns of `kernels.draw`, of which a step changes three
        self._columns = np.zeros((max_batch, 2, NUM_VALUES))
        self._seeds = np.zeros(max_batch, np.uint64)
        self._min_rows = np.zeros(max_batch, np.int64)

    def add(self, sequence_id: Hashable, prompt_rows: Sequence[Row], sampling: Sampling) -> None:
        super().add(sequence_id, prompt_rows, sampling)
        assert self._free_places, "more sequences are sampled than the runtime runs"
        place = self._places[sequence_id] = self._free_places.pop()
        self._draws.seen[place] = 0
        history = self._histories[sequence_id]
        text, audio = self._draws.seen_of(place, self._vocab_sizes[TEXT])
        history.seen = _moved(history.seen[TEXT], text), _moved(history.seen[AUDIO], audio)
        self._columns[place] = self._columns_of(place, sampling)
        self._seeds[place] = sampling.seed % 2**64
        self._min_rows[place] = sampling.min_rows

    def remove(self, sequence_id: Hashable) -> None:
        super().remove(sequence_id)
        if sequence_id in self._places:
            self._free_places.append(self._places.pop(sequence_id))

    def next_rows(self, runtime: Runtime, batch: ScheduledBatch, sequence_ids: Sequence[Hashable],
                  modalities: Sequence[Modality]) -> list[Row | None]:
        own = self._runtime
        if own is None or runtime is not own or not sequence_ids or not self._draw_here(sequence_ids):
            return super().next_rows(runtime, batch, sequence_ids, modalities)
        self._put(sequence_ids, modalities)
        own.forward_and_draw(batch)
        return self._read(sequence_ids, modalities)

    @torch.inference_mode()
    def sample(self, logits: Logits, sequence_ids: Sequence[Hashable],
               modalities: Sequence[Modality]) -> list[Row | None]:
        assert len(sequence_ids) == len(modalities) == logits.text.shape[0] == logits.audio.shape[0]
        if not self._draw_here(sequence_ids):
            return super().sample(logits, sequence_ids, modalities)
        self._put(sequence_ids, modalities)
        self._draws.run(*logits)
        return self._read(sequence_ids, modalities)

    def _draw_here(self, sequence_ids: Sequence[Hashable]) -> bool:
        samplings = [self._histories[sequence_id].sampling for sequence_id in sequence_ids]
        return all(_ranks_few(sampling.text) and _ranks_few(sampling.audio) for sampling in samplings)

    def _put(self, sequence_ids: Sequence[Hashable], modalities: Sequence[Modality]) -> None:
        places = np.array([self._places[sequence_id] for sequence_id in sequence_ids])
        num_rows = np.array([self._histories[sequence_id].num_rows for sequence_id in sequence_ids])
        speaks = np.array([modality is Modality.AUDIO for modality in modalities])
        columns = self._columns[places]
        columns[:, :, UNIFORM] = uniforms(self._seeds[places], num_rows)
        columns[:, AUDIO, FORBIDDEN] = np.where(num_rows + 1 < self._min_rows[places], self._ids.eosp, _NOTHING)
        columns[:, TEXT, SETTLED] = np.where(speaks, self._ids.modality_pad, _NOTHING)
        self._draws.put(columns)

    def _read(self, sequence_ids: Sequence[Hashable], modalities: Sequence[Modality]) -> list[Row | None]:
        rows: list[Row | None] = []
        for sequence_id, modality, (text_id, audio_id, is_finite) in zip(
                sequence_ids, modalities, self._draws.read(len(sequence_ids)), strict=True):
            self._histories[sequence_id].num_rows += is_finite
            rows.append(settle_row(modality, Row(text_id, audio_id), self._ids) if is_finite else None)
        return rows

    def _columns_of(self, place: int, sampling: Sampling) -> list[list[float]]:
        """A sequence's columns of `kernels.draw` for both channels, as far as they stay the same."""
        channels = ((sampling.text, self._vocab_sizes[TEXT]), (sampling.audio, self._ids.eosp + 1))
        # rounding lets the sum before the last id reach 1, hence 2 for "keep all"
        return [[place, values.temperature, values.top_k, values.top_p if values.top_p < 1 else 2.0,
                 values.repetition_penalty, 0.0, first_forbidden, _NOTHING, _NOTHING]
                for values, first_forbidden in channels]


def uniforms(seeds: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """`moss_engine.sampler.uniform` of both channels: seeds uint64 [n], steps [n] -> float64 [n, 2]."""
    x = np.repeat(seeds[:, None], 2, axis=1)
    for counter in (steps[:, None] + 1, np.array([[TEXT + 1, AUDIO + 1]])):
        x = x + counter.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(32)) / 2**32


def _moved(seen: Tensor | None, place: Tensor) -> Tensor | None:
    return None if seen is None else place.copy_(seen)


def _ranks_few(values: ChannelSampling) -> bool:
    return values.temperature == 0 or 0 < values.top_k <= MAX_TOP_K
