"""Logits -> next rows, for a batch of sequences, by the published rules; and `LogitsRuntime`, a
step out of a forward pass and sampling.

Both channels are sampled at every step, each with its own values, in this order: forbidden ids,
repetition penalty over the channel's whole history, temperature, top-k, top-p, draw. A draw is the
inverse of the cumulative distribution at a number that depends only on (seed, step, channel), and
every operation works row by row, so who else is in the batch changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import ChannelSampling, Sampling
from moss_engine.api.tokens import Modality, Row, SpecialIds, settle_row
from moss_engine.runtime.base import BatchSampling, Limits, Logits, ScheduledBatch, SequenceSampling

TEXT, AUDIO = 0, 1


@dataclass
class History:
    """Which ids each channel of a sequence holds ([vocab] bool), as far as `num_rows` of its rows;
    None where the channel has no repetition penalty."""

    text: Tensor | None
    audio: Tensor | None
    num_rows: int = 0

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Note the rows that were not noted yet."""
        if self.num_rows < len(rows) and (self.text is not None or self.audio is not None):
            texts, audios = zip(*rows[self.num_rows :], strict=True)
            self.num_rows = len(rows)
            _note(self.text, texts)
            _note(self.audio, audios)


class TorchSampler:
    """Draws in plain PyTorch, wherever the logits are."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}

    @torch.inference_mode()
    def sample(self, logits: Logits, sampling: BatchSampling) -> list[Row | None]:
        """The rows to append, one for each row of the logits, which are not changed; None for a
        sequence whose logits hold NaN or infinity, by which the others are not affected."""
        for sequence_id in sampling.finished:
            self._histories.pop(sequence_id, None)
        histories = [self._history(sequence, logits) for sequence in sampling.sequences]
        return draw_rows(logits, sampling, histories)

    def _history(self, sequence: SequenceSampling, logits: Logits) -> History:
        history = self._histories.get(sequence.sequence_id)
        if history is None:
            text, audio = (
                channel.new_zeros(channel.shape[-1], dtype=torch.bool) for channel in logits
            )
            history = self._histories[sequence.sequence_id] = new_history(
                text, audio, sequence.sampling
            )
        history.catch_up(sequence.rows)
        return history


def new_history(text: Tensor, audio: Tensor, sampling: Sampling) -> History:
    """A history that writes into two cleared tensors, as far as the channels need one."""
    for values in (sampling.text, sampling.audio):
        assert values.temperature == 0 or values.temperature > 1e-6, "the request was not validated"
    return History(
        None if sampling.text.repetition_penalty == 1 else text,
        None if sampling.audio.repetition_penalty == 1 else audio,
    )


def draw_rows(
    logits: Logits, sampling: BatchSampling, histories: Sequence[History]
) -> list[Row | None]:
    """See `TorchSampler.sample`; the histories are those of the sequences."""
    sequences = sampling.sequences
    if not sequences:
        return []
    assert len(sequences) == logits.text.shape[0] == logits.audio.shape[0]
    finite = (logits.text.sum(-1) + logits.audio.sum(-1)).isfinite()
    if all(s.modality is Modality.AUDIO for s in sequences):
        text = finite.long()  # replaced by the modality pad, whatever it is
    else:
        text = _draw(
            _mask_text(logits.text, sequences),
            [s.sampling.text for s in sequences],
            [history.text for history in histories],
            [uniform(s.sampling.seed, s.num_reply_rows, TEXT) for s in sequences],
        )
    audio = _draw(
        _mask_audio(logits.audio, sequences, sampling.special_ids),
        [s.sampling.audio for s in sequences],
        [history.audio for history in histories],
        [uniform(s.sampling.seed, s.num_reply_rows, AUDIO) for s in sequences],
    )
    sampled = torch.stack([text, audio, finite]).T.tolist()
    return [
        settle_row(s.modality, Row(text_id, audio_id), sampling.special_ids) if is_finite else None
        for s, (text_id, audio_id, is_finite) in zip(sequences, sampled, strict=True)
    ]


def _mask_text(scores: Tensor, sequences: Sequence[SequenceSampling]) -> Tensor:
    """Only allowed ids, for the sequences that have such."""
    bound = {i: list(s.allowed_text) for i, s in enumerate(sequences) if s.allowed_text is not None}
    if not bound:
        return scores
    masked = scores.clone()
    for i, allowed in bound.items():
        masked[i] = -torch.inf
        masked[i, allowed] = scores[i, allowed]
    return masked


def _mask_audio(scores: Tensor, sequences: Sequence[SequenceSampling], ids: SpecialIds) -> Tensor:
    """No ids above `eosp`, and not `eosp` itself before `min_rows`."""
    legal = scores[:, : ids.eosp + 1]
    early = [i for i, s in enumerate(sequences) if s.num_reply_rows + 1 < s.sampling.min_rows]
    if early:
        legal = legal.clone()
        legal[early, ids.eosp] = -torch.inf
    return legal


def uniform(seed: int, step: int, channel: int) -> float:
    """A number in [0, 1) with 32 random bits that depends on its three arguments only (SplitMix64's
    finaliser)."""
    x = seed & _MASK
    for counter in (step + 1, channel + 1):
        x = (x + counter * 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 32) / 2**32


_MASK = 2**64 - 1


def penalise(scores: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty: seen ids' scores are divided by it when positive, multiplied when
    negative.

    scores: [rows, vocab]; seen: [rows, vocab] bool; penalty: [rows, 1].
    """
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def thresholds(scores: Tensor, top_k: int, top_p: Tensor) -> Tensor:
    """The lowest score that top-k, then top-p, leave over: [rows, vocab] -> [rows, 1].

    top_p: [rows, 1]. An id is kept by top-p when the probability, among the top-k, of those before
    it is below top_p. Ids that tie with the last one kept are kept too, so the order among equals
    does not matter.
    """
    ranked = scores.topk(top_k).values
    probabilities = ranked.softmax(-1)
    kept = probabilities.cumsum(-1) - probabilities < top_p
    kept[:, 0] = True
    return ranked.gather(-1, kept.sum(-1, keepdim=True) - 1)


def draw(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF draw in id order: scores [rows, vocab], uniforms float64 [rows, 1] -> ids
    [rows]."""
    cumulative = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True).squeeze(1)


def _draw(
    scores: Tensor,
    values: Sequence[ChannelSampling],
    seen: Sequence[Tensor | None],
    uniforms: Sequence[float],
) -> Tensor:
    """One channel: scores [rows, vocab] with forbidden ids already at -infinity -> ids [rows]."""
    penalised = [i for i, s in enumerate(seen) if s is not None]
    if penalised:
        penalty = _column([values[i].repetition_penalty for i in penalised], scores)
        ids = torch.stack([s for s in seen if s is not None])[:, : scores.shape[1]]
        changed = penalise(scores[penalised], ids, penalty)
        scores = scores.index_copy(0, torch.tensor(penalised, device=scores.device), changed)
    groups: dict[int | None, list[int]] = {}
    for i, v in enumerate(values):
        groups.setdefault(_num_ranked(v, scores.shape[-1]), []).append(i)
    if len(groups) == 1:
        return _draw_group(scores, values, uniforms, *groups)
    ids = torch.empty(len(values), dtype=torch.long, device=scores.device)
    for num_ranked, members in groups.items():
        ids[members] = _draw_group(
            scores[members],
            [values[i] for i in members],
            [uniforms[i] for i in members],
            num_ranked,
        )
    return ids


def _num_ranked(values: ChannelSampling, vocab_size: int) -> int | None:
    """How many ids must be ranked to filter by these values: None is greedy, 0 no filter."""
    if values.temperature == 0:
        return None
    if values.top_k > 0:
        return min(values.top_k, vocab_size)
    return vocab_size if values.top_p < 1 else 0


def _draw_group(
    scores: Tensor,
    values: Sequence[ChannelSampling],
    uniforms: Sequence[float],
    num_ranked: int | None,
) -> Tensor:
    """Rows of one `num_ranked` (grouped by it, as rounding depends on it): scores [rows, vocab] ->
    ids [rows]."""
    if num_ranked is None:
        return scores.argmax(-1)  # the lowest id among equals
    scores = scores / _column([v.temperature for v in values], scores)
    if num_ranked:
        scores.masked_fill_(scores < _lowest_kept(scores, values, num_ranked), -torch.inf)
    return draw(scores, _column(uniforms, scores, torch.float64))


def _lowest_kept(scores: Tensor, values: Sequence[ChannelSampling], num_ranked: int) -> Tensor:
    """`thresholds` of rows with these values; without a top-p the sums before an id are not
    needed."""
    if all(v.top_p >= 1 for v in values):
        return scores.topk(num_ranked).values[:, -1:]
    # rounding lets the sum before the last id reach 1, hence 2 for "keep all"
    top_p = _column([v.top_p if v.top_p < 1 else 2.0 for v in values], scores)
    return thresholds(scores, num_ranked, top_p)


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([[value] for value in values], device=like.device, dtype=dtype)


def _note(seen: Tensor | None, ids: tuple[int, ...]) -> None:
    if seen is not None:
        seen[ids[0] if len(ids) == 1 else list(ids)] = True


class Sampler(Protocol):
    """Logits of a step -> its rows, as of `Runtime.step`."""

    def sample(self, logits: Logits, sampling: BatchSampling) -> list[Row | None]: ...


class LogitsRuntime(ABC):
    """`Runtime` out of `forward`; its `sampler` may be replaced."""

    limits: Limits
    info: RuntimeInfo
    few_rows = 1

    @abstractmethod
    def forward(self, batch: ScheduledBatch) -> Logits:
        """Run the batch's rows; a batch without a sampled sequence gives empty logits."""

    @abstractmethod
    def close(self) -> None:
        """See `Runtime`."""

    @cached_property
    def sampler(self) -> Sampler:
        return TorchSampler()

    def step(self, batch: ScheduledBatch, sampling: BatchSampling) -> list[Row | None]:
        """See `Runtime`."""
        return self.sampler.sample(self.forward(batch), sampling)
