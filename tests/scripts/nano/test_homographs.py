"""The judge of words with two pronunciations: warping, and which of two waves is nearer."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.nano.judges.homographs import Said, is_right, warped

WORD = slice(20, 40)


def mel(seed: int, word_seed: int) -> np.ndarray:
    """A sentence of 60 frames of which the frames of one word may differ"""
    frames = np.random.default_rng(seed).normal(size=(60, 80))
    frames[WORD] = np.random.default_rng(word_seed).normal(size=(20, 80))
    return frames


def test_frames_that_are_held_longer_cost_nothing():
    once = np.arange(6.0)
    slow = once.repeat(3)
    assert warped(np.abs(once[:, None] - slow[None])).tolist() == [0.0] * 6
    assert warped(np.abs(slow[:, None] - once[None])).tolist() == [0.0] * 18


def test_what_differs_costs_where_it_stands():
    costs = warped(np.abs(np.array([1.0, 5.0, 9.0])[:, None] - np.array([1.0, 7.0, 9.0])[None]))
    assert costs.tolist() == [0.0, 2.0, 0.0]


@pytest.mark.parametrize("right", [True, False])
def test_the_sense_is_the_nearer_one_however_slowly_it_is_said(right):
    both = [Said(mel(1, sense), WORD) for sense in (2, 3)]
    heard = mel(1, 2 if right else 3).repeat(2, 0)
    assert is_right(both, heard) is right
