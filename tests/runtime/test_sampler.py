"""The sampler against the published rules, written down once more slowly in plain Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_engine.api.request import ChannelSampling, Sampling
from moss_engine.api.tokens import Modality, Row
from moss_engine.runtime.base import Logits
from moss_engine.runtime.sampler import AUDIO, TEXT, TorchSampler, draw, thresholds, uniform
from tests.fixtures.make_tiny_checkpoint import make_config
from tests.runtime.sampling_support import Replies

CONFIG = dataclasses.replace(
    make_config(300), audio_vocab_size=40, eosp_token_id=32, audio_pad_token_id=33
)
IDS = CONFIG.special
GREEDY = ChannelSampling(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
WARM = ChannelSampling(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
OFFICIAL = ChannelSampling(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.1)
PROMPT = (Row(9, IDS.audio_pad), Row(IDS.modality_pad, 5), Row(10, IDS.audio_pad))


def sampling(
    text: ChannelSampling = WARM, audio: ChannelSampling = WARM, min_rows: int = 0, seed: int = 0
) -> Sampling:
    return Sampling(text=text, audio=audio, max_rows=1000, min_rows=min_rows, seed=seed)


def random_logits(num_rows: int, seed: int = 0) -> Logits:
    generator = torch.Generator().manual_seed(seed)
    return Logits(
        torch.randn(num_rows, CONFIG.vocab_size, generator=generator) * 3,
        torch.randn(num_rows, CONFIG.audio_vocab_size, generator=generator) * 3,
    )


def sampler_of(*samplings: Sampling) -> Replies:
    sampler = Replies(TorchSampler(), IDS)
    for i, values in enumerate(samplings):
        sampler.add(i, PROMPT, values)
    return sampler


def slow_kept(scores: Sequence[float], top_k: int, top_p: float) -> set[int]:
    """Ids left over by top-k, then top-p, ties with the last one included."""
    ranked = sorted(scores, reverse=True)[: top_k or len(scores)]
    weights = [math.exp(score - ranked[0]) for score in ranked]
    before, lowest = 0.0, ranked[0]
    for score, weight in zip(ranked, weights, strict=True):
        if before / sum(weights) >= top_p and top_p < 1:
            break
        lowest, before = score, before + weight
    return {i for i, score in enumerate(scores) if score >= lowest}


def slow_bounds(scores: Sequence[float], kept: set[int], chosen: int) -> tuple[float, float]:
    """Between which two numbers a uniform must lie for `chosen` to be drawn from the kept ids in id
    order."""
    top = max(scores)
    weights = [math.exp(score - top) if i in kept else 0.0 for i, score in enumerate(scores)]
    total = sum(weights)
    return sum(weights[:chosen]) / total, sum(weights[: chosen + 1]) / total


def slow_scores(
    logits: Sequence[float], values: ChannelSampling, history: set[int], forbidden: set[int]
) -> list[float]:
    scores = []
    for i, score in enumerate(logits):
        if i in forbidden:
            score = -math.inf
        elif i in history:
            score = (
                score * values.repetition_penalty
                if score < 0
                else score / values.repetition_penalty
            )
        scores.append(score / (values.temperature or 1.0))
    return scores


@pytest.mark.parametrize(
    "values",
    [
        WARM,
        OFFICIAL,
        GREEDY,
        ChannelSampling(0.7, 0, 0.9, 1.0),
        ChannelSampling(1.3, 5, 1.0, 1.5),
        ChannelSampling(2.0, 100_000, 0.5, 0.8),
        ChannelSampling(0.3, 1, 0.01, 1.0),
        ChannelSampling(1.0, 30, 0.95, 2.0),
    ],
)
def test_rows_obey_the_published_order(values: ChannelSampling) -> None:
    """Forbidden ids, penalty over the history, temperature, top-k, top-p, draw; step by step, in
    both channels."""
    sampler = sampler_of(sampling(values, values, min_rows=4, seed=11))
    history = [{row.text for row in PROMPT}, {row.audio for row in PROMPT}]
    for step in range(12):
        logits = random_logits(1, seed=step)
        modality = Modality.AUDIO if step % 3 else Modality.TEXT
        row = sampler.sample(logits, [0], [modality])[0]
        assert row is not None
        forbidden = set(range(IDS.eosp + 1, CONFIG.audio_vocab_size)) | (
            {IDS.eosp} if step + 1 < 4 else set()
        )
        for channel, banned in ((TEXT, set()), (AUDIO, forbidden)):
            if channel == TEXT and modality is Modality.AUDIO:
                assert row.text == IDS.modality_pad
                continue
            scores = slow_scores(logits[channel][0].tolist(), values, history[channel], banned)
            if values.temperature == 0:
                assert row[channel] == scores.index(max(scores))
                continue
            kept = slow_kept(scores, values.top_k, values.top_p)
            low, high = slow_bounds(scores, kept, row[channel])
            assert row[channel] in kept
            assert low - 1e-5 <= uniform(11, step, channel) <= high + 1e-5
        history[TEXT].add(row.text)
        history[AUDIO].add(row.audio)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-8, 8), min_size=1, max_size=30),
    st.integers(0, 40),
    st.floats(0.01, 1.0).filter(lambda p: abs(p * 1e4 - round(p * 1e4)) > 0.01),
)
def test_kept_ids_are_those_of_the_slow_rule(scores: list[int], top_k: int, top_p: float) -> None:
    """Integers, for ties are common in 16-bit logits; odd values of top-p, for rounding decides at
    the others."""
    values = torch.tensor([scores], dtype=torch.float32)
    lowest = thresholds(values, min(top_k or len(scores), len(scores)), torch.tensor([[top_p]]))
    assert set(torch.nonzero(values[0] >= lowest[0]).flatten().tolist()) == slow_kept(
        scores, top_k, top_p
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([-math.inf, -30.0, -1.0, 0.0, 2.0]), min_size=2, max_size=20).filter(
        lambda scores: max(scores) > -math.inf
    ),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_forbidden_id_is_never_drawn(scores: list[float], number: float) -> None:
    number = min(number, 1 - 2**-32)  # the largest that `uniform` gives
    chosen = draw(torch.tensor([scores]), torch.tensor([[number]], dtype=torch.float64)).item()
    assert 0 <= chosen < len(scores) and scores[int(chosen)] > -math.inf


def test_uniform_depends_on_each_argument_and_never_changes() -> None:
    assert uniform(0, 0, 0) == uniform(0, 0, 0)
    numbers = [
        uniform(seed, step, channel)
        for seed in (0, 1, -1, 2**63, 2**64 - 2)
        for step in range(20)
        for channel in (0, 1)
    ]
    assert len(set(numbers)) == len(numbers) and all(0 <= number < 1 for number in numbers)
    assert [round(uniform(7, step, 1), 6) for step in range(3)] == [0.649704, 0.751263, 0.960416]


def test_the_same_seed_gives_the_same_rows_in_any_company() -> None:
    values = [
        sampling(OFFICIAL, WARM, seed=1),
        sampling(WARM, GREEDY, seed=2),
        sampling(GREEDY, OFFICIAL, seed=3),
        sampling(dataclasses.replace(OFFICIAL, top_k=5, top_p=1.0), OFFICIAL, seed=1),
    ]
    together, alone = sampler_of(*values), [sampler_of(*values) for _ in values]
    for step in range(25):
        logits = random_logits(4, seed=step)
        order = [0, 1, 2, 3] if step % 2 else [3, 1, 0, 2]
        if step % 5 == 4:
            order = order[:2]
        rows = together.sample(
            Logits(logits.text[order], logits.audio[order]), order, [Modality.TEXT] * len(order)
        )
        for i, row in zip(order, rows, strict=True):
            own = Logits(logits.text[i : i + 1], logits.audio[i : i + 1])
            assert alone[i].sample(own, [i], [Modality.TEXT]) == [row]


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = Logits(torch.zeros(2, CONFIG.vocab_size), torch.zeros(2, CONFIG.audio_vocab_size))
    logits.text[:, [17, 40, 200]] = 5.0
    logits.audio[:, [3, 8, 39]] = 5.0
    rows = sampler_of(sampling(GREEDY, GREEDY), sampling(GREEDY, GREEDY)).sample(
        logits, [0, 1], [Modality.TEXT] * 2
    )
    assert rows == [Row(17, 3)] * 2


def test_penalty_counts_what_the_grid_holds() -> None:
    """The prompt, the pads, the audio samples of text rows, and the modality pad in place of
    ignored text samples."""
    harsh = ChannelSampling(0.0, 0, 1.0, 1000.0)
    logits = Logits(torch.ones(1, CONFIG.vocab_size), torch.ones(1, CONFIG.audio_vocab_size))
    sampler = sampler_of(sampling(harsh, harsh))
    logits.text[0, [9, 10, IDS.modality_pad]] = 50.0  # all in the prompt
    logits.audio[0, 5] = 50.0
    assert sampler.sample(logits, [0], [Modality.TEXT]) == [Row(0, 0)]
    # audio 0 was in a text row
    assert sampler.sample(logits, [0], [Modality.AUDIO]) == [Row(IDS.modality_pad, 1)]
    # text 1 was sampled but never in the grid
    assert sampler.sample(logits, [0], [Modality.TEXT]) == [Row(1, 2)]


@pytest.mark.parametrize("channel", [TEXT, AUDIO])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("values", [OFFICIAL, GREEDY])
def test_a_sequence_without_numbers_fails_alone(
    channel: int, value: float, values: ChannelSampling
) -> None:
    samplings = [sampling(values, values, seed=seed) for seed in range(3)]
    healthy, sampler = sampler_of(*samplings), sampler_of(*samplings)
    logits = random_logits(3)
    expected = healthy.sample(logits, [0, 1, 2], [Modality.TEXT] * 3)
    broken = Logits(logits.text.clone(), logits.audio.clone())
    broken[channel][1, 6] = value
    assert sampler.sample(broken, [0, 1, 2], [Modality.TEXT] * 3) == [
        expected[0],
        None,
        expected[2],
    ]
    one = Logits(logits.text[1:2], logits.audio[1:2])
    assert sampler.sample(one, [1], [Modality.TEXT]) == [expected[1]]  # as if nothing had been
