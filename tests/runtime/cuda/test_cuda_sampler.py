"""The sampler on the device draws what the plain sampler draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")

from moss_engine.api.request import ChannelSampling, Sampling  # noqa: E402
from moss_engine.api.tokens import Modality  # noqa: E402
from moss_engine.runtime.base import Logits, ScheduledBatch, ScheduledSequence  # noqa: E402
from moss_engine.runtime.cuda.sampler import KernelSampler, uniforms  # noqa: E402
from moss_engine.runtime.sampler import AUDIO, TEXT, TorchSampler, uniform  # noqa: E402
from tests.runtime.cuda.cuda_support import DEVICE, SMALL, make_runtime, make_weights, random_rows  # noqa: E402
from tests.runtime.sampling_support import Replies  # noqa: E402

CHOICES = [
    ChannelSampling(0.0, 0, 1.0, 1.0),
    ChannelSampling(0.0, 5, 0.5, 1.3),
    ChannelSampling(0.7, 20, 0.95, 1.1),
    ChannelSampling(1.5, 56, 1.0, 0.8),
    ChannelSampling(1.0, 1, 0.3, 1.0),
    ChannelSampling(2.0, 40, 0.2, 2.0),
]


def random_logits(count: int, seed: int) -> Logits:
    generator = torch.Generator().manual_seed(seed)
    return Logits(
        *(
            4 * torch.randn(count, size, generator=generator).to(DEVICE)
            for size in (SMALL.vocab_size, SMALL.audio_vocab_size)
        )
    )


def both(count: int) -> tuple[Replies, Replies]:
    return (
        Replies(TorchSampler(), SMALL.special),
        Replies(KernelSampler(SMALL, count, DEVICE), SMALL.special),
    )


def test_numbers_to_draw_by_are_those_of_the_plain_sampler():
    seeds, steps = [0, 1, 2**63, 2**64 - 1, 12345], [0, 1, 7, 4000, 2**20]
    wanted = [
        [uniform(seed, step, channel) for channel in (TEXT, AUDIO)]
        for seed, step in zip(seeds, steps, strict=True)
    ]
    assert uniforms(np.array(seeds, np.uint64), np.array(steps)).tolist() == wanted


def test_same_rows_over_many_steps():
    samplers = both(len(CHOICES))
    names = [f"sequence {i}" for i in range(len(CHOICES))]
    for i, name in enumerate(names):
        sampling = Sampling(CHOICES[i], CHOICES[-1 - i], max_rows=100, min_rows=3 * i, seed=i)
        for sampler in samplers:
            sampler.add(name, random_rows(20, i), sampling)
    for step in range(6):
        modalities = [
            Modality.AUDIO if (i + step) % 3 else Modality.TEXT for i in range(len(names))
        ]
        logits = random_logits(len(names), step)
        plain, drawn = (sampler.sample(logits, names, modalities) for sampler in samplers)
        assert plain == drawn


@pytest.mark.parametrize("text_logits", [True, False])
def test_drawing_inside_a_step_is_sampling_from_its_logits(text_logits):
    """Two sequences of which one is not sampled yet, then both; a speaking one's text logits may be
    missing."""
    runtime = make_runtime(make_weights())
    plain, inside = Replies(TorchSampler(), SMALL.special), Replies(runtime.sampler, SMALL.special)
    for index, name in enumerate("ab"):
        for sampler in (plain, inside):
            sampler.add(
                name, random_rows(9, index), Sampling(CHOICES[2], CHOICES[3], 100, 0, index)
            )
    rows, tables = [random_rows(20, 1), random_rows(20, 2)], [(0, 1, 2, 3), (7, 6, 5, 4)]
    modality = Modality.TEXT if text_logits else Modality.AUDIO
    for step, (end, second_end) in enumerate([(9, 3), (10, 9), (11, 10)]):
        starts = (0, 9, 10)[step], (0, 3, 9)[step]
        batch = ScheduledBatch(
            tuple(
                ScheduledSequence(
                    tuple(rows[i][start:stop]), start, tables[i], i == 0 or step > 0, text_logits
                )
                for i, (start, stop) in enumerate(zip(starts, (end, second_end), strict=True))
            )
        )
        names = ["a", "b"] if step else ["a"]
        modalities = [modality] * len(names)
        drawn = runtime.step(batch, inside.sampling(names, modalities))
        inside.append(names, drawn)
        assert drawn == plain.sample(runtime.forward(batch), names, modalities)


def test_a_row_that_is_not_finite_gives_none_and_keeps_its_history():
    samplers = both(2)
    sampling = Sampling(CHOICES[2], CHOICES[2], max_rows=100, min_rows=0, seed=3)
    for sampler in samplers:
        sampler.add("a", random_rows(5, 1), sampling)
        sampler.add("b", random_rows(5, 2), sampling)
    modalities = [Modality.AUDIO, Modality.TEXT]
    for value, where in ((torch.nan, 149), (torch.inf, 3), (-torch.inf, 70)):
        logits = random_logits(2, 5)
        logits.text[1, where] = value
        plain, drawn = (sampler.sample(logits, ["a", "b"], modalities) for sampler in samplers)
        assert plain == drawn
        assert drawn[0] is not None and drawn[1] is None
    logits = random_logits(2, 6)
    plain, drawn = (sampler.sample(logits, ["a", "b"], modalities) for sampler in samplers)
    assert plain == drawn


def test_equal_scores_give_the_lowest_id_and_ties_are_all_kept():
    samplers = both(1)
    scores = torch.zeros(1, SMALL.vocab_size, device=DEVICE)
    scores[0, [30, 40, 20]] = 5.0
    logits = Logits(scores, torch.zeros(1, SMALL.audio_vocab_size, device=DEVICE))
    for seed in range(4):
        sampling = Sampling(
            ChannelSampling(1.0, 2, 1.0, 1.0), CHOICES[0], max_rows=9, min_rows=0, seed=seed
        )
        plain, drawn = [], []
        for sampler, rows in zip(samplers, (plain, drawn), strict=True):
            sampler.add("a", [], sampling)
            rows += [sampler.sample(logits, ["a"], [Modality.TEXT])[0] for _ in range(6)]
            sampler.remove("a")
        assert plain == drawn
        assert {row.text for row in drawn} <= {20, 30, 40} and {row.audio for row in drawn} == {0}


def test_only_allowed_text_is_drawn():
    """In those rows that have such; two ids, one, and an id that the plain rules would rank out."""
    samplers, names = both(len(CHOICES)), [f"sequence {i}" for i in range(len(CHOICES))]
    for i, name in enumerate(names):
        for sampler in samplers:
            sampler.add(name, random_rows(9, i), Sampling(CHOICES[i], CHOICES[i], 100, 0, i))
    for step in range(3):
        allowed = {name: (7 + i, 140) for i, name in enumerate(names) if (i + step) % 3}
        allowed[names[step]] = (33,)
        logits = random_logits(len(names), step)
        plain, drawn = (
            sampler.sample(logits, names, [Modality.TEXT] * len(names), allowed)
            for sampler in samplers
        )
        assert plain == drawn
        for name, row in zip(names, drawn, strict=True):
            assert row is not None and row.text in allowed.get(name, range(SMALL.vocab_size))
