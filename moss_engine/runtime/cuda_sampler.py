"""`Sampler` on the device: two kernels, inside the captured step where the runtime can, and one read of the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.request import ChannelSampling, Sampling
from moss_engine.runtime.base import Logits, Runtime, ScheduledBatch
from moss_engine.runtime.cuda import CudaRuntime
from moss_engine.runtime.cuda_draws import Draws
from moss_engine.runtime.kernels.sampling import MAX_TOP_K
from moss_engine.sampler import AUDIO, TEXT, Sampler, uniform
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

    def add(self, sequence_id: Hashable, prompt_rows: Sequence[Row], sampling: Sampling) -> None:
        super().add(sequence_id, prompt_rows, sampling)
        assert self._free_places, "more sequences are sampled than the runtime runs"
        place = self._places[sequence_id] = self._free_places.pop()
        self._draws.seen[place] = 0
        history = self._histories[sequence_id]
        text, audio = self._draws.seen_of(place, self._vocab_sizes[TEXT])
        history.seen = _moved(history.seen[TEXT], text), _moved(history.seen[AUDIO], audio)

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
        self._draws.put([self._values_of(sequence_id, modality)
                         for sequence_id, modality in zip(sequence_ids, modalities, strict=True)])

    def _read(self, sequence_ids: Sequence[Hashable], modalities: Sequence[Modality]) -> list[Row | None]:
        rows: list[Row | None] = []
        for sequence_id, modality, (text_id, audio_id, is_finite) in zip(
                sequence_ids, modalities, self._draws.read(len(sequence_ids)), strict=True):
            self._histories[sequence_id].num_rows += is_finite
            rows.append(settle_row(modality, Row(text_id, audio_id), self._ids) if is_finite else None)
        return rows

    def _values_of(self, sequence_id: Hashable, modality: Modality) -> list[list[float]]:
        """One sequence's columns of `kernels.draw`, for both channels."""
        history, place = self._histories[sequence_id], float(self._places[sequence_id])
        ids, sampling = self._ids, history.sampling
        settled = float(ids.modality_pad) if modality is Modality.AUDIO else _NOTHING
        unripe = float(ids.eosp) if history.num_rows + 1 < sampling.min_rows else _NOTHING
        limits = ((TEXT, sampling.text, float(self._vocab_sizes[TEXT]), _NOTHING, settled),
                  (AUDIO, sampling.audio, float(ids.eosp + 1), unripe, _NOTHING))
        # rounding lets the sum before the last id reach 1, hence 2 for "keep all"
        return [[place, values.temperature, values.top_k, values.top_p if values.top_p < 1 else 2.0,
                 values.repetition_penalty, uniform(sampling.seed, history.num_rows, channel), *rest]
                for channel, values, *rest in limits]


def _moved(seen: Tensor | None, place: Tensor) -> Tensor | None:
    return None if seen is None else place.copy_(seen)


def _ranks_few(values: ChannelSampling) -> bool:
    return values.temperature == 0 or 0 < values.top_k <= MAX_TOP_K
