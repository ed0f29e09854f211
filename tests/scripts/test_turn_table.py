"""The rule by which the judge of a turn's end is tuned."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.turns.data import HESITATES, ORDINARY, SOFTEST, WHOLE
from scripts.turns.tune import LATEST_S, Judged, best, outlasted, scaled, upper_bound

WAITS = [(0.2, 0.5, 0.9), (0.2, 0.6, 0.9), (0.2, 0.7, 0.9)]


def judged(whole: list[float], hesitates: list[float]) -> Judged:
    """With one ordinary turn, which is judged as the first whole one is."""
    kinds = [WHOLE] * len(whole) + [HESITATES] * len(hesitates) + [SOFTEST, ORDINARY]
    odds = np.array([*whole, *hesitates, 0.0, whole[0]])
    return Judged([{"kind": kind} for kind in kinds], odds)


def test_who_is_judged_well_is_not_spoken_over():
    table = best(judged([5.0] * 80 + [2.0] * 20, [-5.0] * 50), WAITS)
    assert table is not None
    figures = judged([5.0] * 100, [-5.0] * 50).figures(*table)
    assert figures[HESITATES] == 0.0 and figures["p50"] < LATEST_S[0.45]


def test_ordinary_turns_may_not_wait_where_that_is_asked_for():
    unsure = judged([2.0] * 50 + [5.0] * 950, [-5.0] * 50)
    assert best(unsure, WAITS) is not None
    assert best(unsure, WAITS, most=0.45) is None


def test_turns_that_cannot_be_told_apart_have_no_table():
    assert best(judged([0.0] * 100, [0.0] * 100), WAITS) is None


def test_a_judge_alone_reaches_the_levels_of_all_where_it_reaches_its_own():
    weights, given = np.array([2.0, -1.0]), np.array([[1.5, 1.0], [0.25, 1.0]])
    assert given @ weights == pytest.approx([2.0, -0.5])
    assert given @ scaled(weights, (2.0, -0.5), (3.0, -2.0)) == pytest.approx([3.0, -2.0])


def test_few_late_turns_of_few_may_be_more():
    """Three of a hundred, or a hundred, of which one in twenty may be late."""
    assert upper_bound(0.0, 100) < 0.05 < upper_bound(0.03, 100)
    assert upper_bound(0.03, 1000) < 0.05


def test_a_pause_counts_as_often_as_one_of_its_kind_outlasts_the_wait():
    assert outlasted(np.array([0.25, 0.575, 0.9, 1.2])) == pytest.approx([1.0, 0.5, 0.0, 0.0])
