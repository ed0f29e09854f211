"""How sentences that were read aloud are judged: silences, clicks at joins, times and words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scripts.nano.judges.aloud import (
    CLICK,
    TEXTS,
    Heard,
    counted,
    longest_silence,
    sharpest,
    texts_of,
)

RATE_HZ = 24_000
TONE = np.sin(np.arange(2 * RATE_HZ) * 0.05).astype(np.float32) * 0.3


def test_the_longest_silence_is_found():
    wave = np.concatenate([TONE, np.zeros(RATE_HZ // 2, np.float32), TONE, np.zeros(2400)])
    assert abs(longest_silence(wave, RATE_HZ) - 0.5) < 0.03
    assert longest_silence(TONE, RATE_HZ) == 0


def test_a_join_that_jumps_is_a_click_and_a_smooth_one_is_not():
    join = RATE_HZ
    assert sharpest(TONE, [join], RATE_HZ) < CLICK
    broken = TONE.copy()
    broken[join:] += 0.05
    assert sharpest(broken, [join], RATE_HZ) > CLICK
    assert sharpest(broken, [join // 2], RATE_HZ) < CLICK
    assert sharpest(broken, [], RATE_HZ) == 0


def test_what_takes_too_long_or_ends_too_early_is_counted():
    fine = [Heard("news", "x", 0, "stop", 5.0, 80, 0.3, 1.0)] * 8
    slow = Heard("news", "x", 1, "length", 12.0, 80, 1.2, 2.0)
    fast = Heard("dialogue", "x", 0, "stop", 2.0, 80, 0.1, 0.5)
    figures = counted([*fine, slow, fast])
    assert (figures["sentences"], figures["news_sentences"]) == (10, 9)
    assert (figures["longer_than_twice"], figures["shorter_than_half"]) == (1, 1)
    assert (figures["altered_sentences"], figures["ended_by_themselves"]) == (1, 9)
    assert (figures["silences_over_1_s"], figures["clicks_at_joins"]) == (1, 1)


def test_there_are_a_hundred_sentences_of_each_kind():
    texts = texts_of(TEXTS)
    assert Counter(kind for kind, _ in texts) == dict.fromkeys(
        ("documentation", "news", "dialogue"), 100
    )
    assert len({text for _, text in texts}) == 300
