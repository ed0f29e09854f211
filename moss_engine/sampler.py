"""Logits -> next rows, for a batch of sequences, by the published rules.

Both channels are sampled at every step, each with its own values, in this order: forbidden ids, repetition penalty
over the channel's whole history, temperature, top-k, top-p, draw. A draw is the inverse of the cumulative distribution
at a number that depends only on (seed, step, channel), and every operation works row by row, so who else is in the
batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moss_engine.models.config import ModelConfig
from moss_engine.request import ChannelSampling, Sampling
from moss_engine.tokens import Modality, Row, settle_row

if TYPE_CHECKING:
    from moss_engine.runtime.base import Logits, Runtime, ScheduledBatch

TEXT, AUDIO = 0, 1


@dataclass
class _History:
    """What the sampler keeps of one sequence: reply rows so far, and the ids each channel has held ([vocab] bool).

    `seen` is None where the channel has no repetition penalty.
    """

    sampling: Sampling
    num_rows: int
    seen: tuple[Tensor | None, Tensor | None]


class Sampler:
    """Samples for the sequences it was told of; a sequence is named by any hashable id of the caller."""

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu"):
        self._ids = config.special
        self._vocab_sizes = (config.vocab_size, config.audio_vocab_size)
        self._device = torch.device(device)
        self._histories: dict[Hashable, _History] = {}
        forbidden = torch.zeros(config.audio_vocab_size, device=self._device)
        forbidden[self._ids.eosp + 1 :] = -torch.inf
        self._audio_mask = forbidden

    def add(self, sequence_id: Hashable, prompt_rows: Sequence[Row], sampling: Sampling) -> None:
        """Begin a reply to `prompt_rows`, which are the repetition penalty's history so far."""
        assert sequence_id not in self._histories, "the sequence is already being sampled"
        channels = ([row.text for row in prompt_rows], [row.audio for row in prompt_rows])
        seen: list[Tensor | None] = [None, None]
        for channel, values in enumerate((sampling.text, sampling.audio)):
            assert values.temperature == 0 or values.temperature > 1e-6, "the request was not validated"
            if values.repetition_penalty != 1:
                held = torch.zeros(self._vocab_sizes[channel], dtype=torch.bool, device=self._device)
                held[channels[channel]] = True
                seen[channel] = held
        self._histories[sequence_id] = _History(sampling, 0, (seen[TEXT], seen[AUDIO]))

    def remove(self, sequence_id: Hashable) -> None:
        """Forget a sequence; one that is not known (any more) is no error, so that every way out may call this."""
        self._histories.pop(sequence_id, None)

    def next_rows(self, runtime: Runtime, batch: ScheduledBatch, sequence_ids: Sequence[Hashable],
                  modalities: Sequence[Modality]) -> list[Row | None]:
        """Run a step and `sample` from its logits; ids and modalities are those of the sequences with `sample`."""
        logits = runtime.forward(batch)
        return self.sample(logits, sequence_ids, modalities) if sequence_ids else []

    @torch.inference_mode()
    def sample(self, logits: Logits, sequence_ids: Sequence[Hashable],
               modalities: Sequence[Modality]) -> list[Row | None]:
        """The rows to append, one for each sequence, in the order of the logits' rows.

        `modalities[i]` is the mode in which sequence i is sampled. None stands for a sequence whose logits hold NaN or
        infinity; its history stays as it was and the others are not affected. The logits are not changed.
        """
        assert len(sequence_ids) == len(modalities) == logits.text.shape[0] == logits.audio.shape[0]
        histories = [self._histories[sequence_id] for sequence_id in sequence_ids]
        finite = (logits.text.sum(-1) + logits.audio.sum(-1)).isfinite()
        text = _draw(logits.text, [h.sampling.text for h in histories], [h.seen[TEXT] for h in histories],
                     [uniform(h.sampling.seed, h.num_rows, TEXT) for h in histories])
        audio = _draw(self._mask_audio(logits.audio, histories), [h.sampling.audio for h in histories],
                      [h.seen[AUDIO] for h in histories],
                      [uniform(h.sampling.seed, h.num_rows, AUDIO) for h in histories])
        sampled = torch.stack([text, audio, finite]).T.tolist()
        return [
            _append(history, settle_row(modality, Row(text_id, audio_id), self._ids)) if is_finite else None
            for history, modality, (text_id, audio_id, is_finite) in zip(histories, modalities, sampled, strict=True)
        ]

    def _mask_audio(self, scores: Tensor, histories: Sequence[_History]) -> Tensor:
        scores = scores + self._audio_mask
        for i, history in enumerate(histories):
            if history.num_rows + 1 < history.sampling.min_rows:
                scores[i, self._ids.eosp] = -torch.inf
        return scores


def uniform(seed: int, step: int, channel: int) -> float:
    """A number in [0, 1) with 32 random bits that depends on its three arguments only (SplitMix64's finaliser)."""
    x = seed & _MASK
    for counter in (step + 1, channel + 1):
        x = (x + counter * 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 32) / 2**32


_MASK = 2**64 - 1


def penalise(scores: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty: seen ids' scores are divided by it when positive, multiplied when negative.

    scores: [rows, vocab]; seen: [rows, vocab] bool; penalty: [rows, 1].
    """
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def thresholds(scores: Tensor, top_k: int, top_p: Tensor) -> Tensor:
    """The lowest score that top-k, then top-p, leave over: [rows, vocab] -> [rows, 1].

    top_p: [rows, 1]. An id is kept by top-p when the probability, among the top-k, of those before it is below top_p.
    Ids that tie with the last one kept are kept too, so the order among equals does not matter.
    """
    ranked = scores.topk(top_k).values
    probabilities = ranked.softmax(-1)
    kept = probabilities.cumsum(-1) - probabilities < top_p
    kept[:, 0] = True
    return ranked.gather(-1, kept.sum(-1, keepdim=True) - 1)


def draw(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF draw in id order: scores [rows, vocab], uniforms float64 [rows, 1] -> ids [rows]."""
    cumulative = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    return (cumulative <= uniforms * cumulative[:, -1:]).sum(-1)


def _draw(scores: Tensor, values: Sequence[ChannelSampling], seen: Sequence[Tensor | None],
          uniforms: Sequence[float]) -> Tensor:
    """One channel: scores [rows, vocab] with forbidden ids already at -infinity -> ids [rows]."""
    penalised = [i for i, s in enumerate(seen) if s is not None]
    if penalised:
        penalty = _column([values[i].repetition_penalty for i in penalised], scores)
        changed = penalise(scores[penalised], torch.stack([s for s in seen if s is not None]), penalty)
        scores = scores.index_copy(0, torch.tensor(penalised, device=scores.device), changed)
    groups: dict[int | None, list[int]] = {}
    for i, v in enumerate(values):
        groups.setdefault(_num_ranked(v, scores.shape[-1]), []).append(i)
    if len(groups) == 1:
        return _draw_group(scores, values, uniforms, *groups)
    ids = torch.empty(len(values), dtype=torch.long, device=scores.device)
    for num_ranked, members in groups.items():
        ids[members] = _draw_group(scores[members], [values[i] for i in members], [uniforms[i] for i in members],
                                   num_ranked)
    return ids


def _num_ranked(values: ChannelSampling, vocab_size: int) -> int | None:
    """How many ids must be ranked to filter by these values: None is greedy, 0 no filter."""
    if values.temperature == 0:
        return None
    if values.top_k > 0:
        return min(values.top_k, vocab_size)
    return vocab_size if values.top_p < 1 else 0


def _draw_group(scores: Tensor, values: Sequence[ChannelSampling], uniforms: Sequence[float],
                num_ranked: int | None) -> Tensor:
    """Rows of one `num_ranked` (grouped by it, as rounding depends on it): scores [rows, vocab] -> ids [rows]."""
    if num_ranked is None:
        return scores.argmax(-1)  # the lowest id among equals
    scores = scores / _column([v.temperature for v in values], scores)
    if num_ranked:
        # rounding lets the sum before the last id reach 1, hence 2 for "keep all"
        top_p = _column([v.top_p if v.top_p < 1 else 2.0 for v in values], scores)
        scores = scores.masked_fill(scores < thresholds(scores, num_ranked, top_p), -torch.inf)
    return draw(scores, _column(uniforms, scores, torch.float64))


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=dtype).unsqueeze(1)


def _append(history: _History, row: Row) -> Row:
    history.num_rows += 1
    for seen, value in zip(history.seen, row, strict=True):
        if seen is not None:
            seen[value] = True
    return row
