"""`Sampler` on the device: two kernels and one copy back, where plain PyTorch needs some forty operations."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.request import ChannelSampling, Sampling
from moss_engine.runtime.base import Logits
from moss_engine.runtime.kernels import sampling as kernels
from moss_engine.sampler import AUDIO, TEXT, Sampler, uniform
from moss_engine.tokens import Modality, Row, settle_row

_NOTHING = -1.0


class CudaSampler(Sampler):
    """Draws the same rows as `Sampler`, up to the rounding of probabilities.

    A batch in which a sequence ranks more than MAX_TOP_K ids (no top-k, or a large one) is sampled by `Sampler`.
    """

    def __init__(self, config: ModelConfig, device: torch.device, max_batch: int):
        super().__init__(config, device)
        text_size, audio_size = config.vocab_size, config.audio_vocab_size
        tiles = kernels.num_tiles(text_size, audio_size)
        pinned = device.type == "cuda"
        self._seen = torch.zeros(max_batch, text_size + audio_size, dtype=torch.int8, device=device)
        self._best = torch.empty(max_batch, tiles, kernels.CANDIDATES, dtype=torch.int64, device=device)
        self._bad = torch.empty(max_batch, tiles, dtype=torch.int32, device=device)
        self._host_values = torch.zeros(max_batch, 2, kernels.NUM_VALUES, dtype=torch.float64, pin_memory=pinned)
        self._values = torch.zeros_like(self._host_values, device=device)
        self._drawn = torch.zeros(max_batch, 3, dtype=torch.int32, device=device)
        if device.type == "cuda":  # compile the kernels before anybody waits for a sample
            text, audio = (torch.zeros(1, size, device=device) for size in (text_size, audio_size))
            kernels.draw(text, audio, self._values, self._seen, self._best, self._bad, self._drawn)
            self._seen.zero_()
        self._places: dict[Hashable, int] = {}
        self._free_places = list(range(max_batch))

    def add(self, sequence_id: Hashable, prompt_rows: Sequence[Row], sampling: Sampling) -> None:
        super().add(sequence_id, prompt_rows, sampling)
        assert self._free_places, "more sequences are sampled than the runtime runs"
        place = self._places[sequence_id] = self._free_places.pop()
        self._seen[place] = 0
        history = self._histories[sequence_id]
        text, audio = self._seen[place].view(torch.bool).split(self._vocab_sizes)
        history.seen = _moved(history.seen[TEXT], text), _moved(history.seen[AUDIO], audio)

    def remove(self, sequence_id: Hashable) -> None:
        super().remove(sequence_id)
        if sequence_id in self._places:
            self._free_places.append(self._places.pop(sequence_id))

    @torch.inference_mode()
    def sample(self, logits: Logits, sequence_ids: Sequence[Hashable],
               modalities: Sequence[Modality]) -> list[Row | None]:
        count = len(sequence_ids)
        assert count == len(modalities) == logits.text.shape[0] == logits.audio.shape[0]
        histories = [self._histories[sequence_id] for sequence_id in sequence_ids]
        if not all(_ranks_few(h.sampling.text) and _ranks_few(h.sampling.audio) for h in histories):
            return super().sample(logits, sequence_ids, modalities)
        self._host_values[:count] = torch.tensor(
            [self._values_of(sequence_id, modality) for sequence_id, modality in
             zip(sequence_ids, modalities, strict=True)], dtype=torch.float64)
        self._values[:count].copy_(self._host_values[:count], non_blocking=True)
        kernels.draw(logits.text, logits.audio, self._values, self._seen, self._best, self._bad, self._drawn)
        rows: list[Row | None] = []
        for history, modality, (text_id, audio_id, is_finite) in zip(
                histories, modalities, self._drawn[:count].tolist(), strict=True):
            history.num_rows += is_finite
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
    return values.temperature == 0 or 0 < values.top_k <= kernels.MAX_TOP_K
