"""Turns in a microphone's blocks, at both rates, and what may interrupt an answer."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from moss_engine.audio.follower import LEVEL_FRAMES, SOFTER_DB, Follower
from moss_engine.audio.rate import FROM_HZ, Downsampler
from moss_engine.audio.turn_taking import FRAME_S, RATE_HZ, Change
from tests.ui.test_audio_in import silence, tone


class Voice:
    """A detector that takes everything but silence for speech."""

    def probability(self, pcm: np.ndarray) -> float:
        return float(np.abs(pcm).max() > 30)


def test_what_is_much_softer_than_the_visitor_is_the_pages_own_echo():
    follower = Follower(Voice(), 20.0)
    for level in (0.3, 0.0):
        follower.take(tone(2.0, level), answering=False)
    echo = 0.3 * 10 ** (-20 / 20)
    follower.take(tone(3.0, echo), answering=True)
    assert not follower.talking, "the answer interrupted itself"
    follower.take(silence(LEVEL_FRAMES * FRAME_S), answering=True)
    follower.take(tone(0.5, 0.3 * 10 ** (-(SOFTER_DB - 2) / 20)), answering=True)
    assert follower.talking and follower.interrupts


@pytest.mark.parametrize(("seconds", "counts"), [(0.3, True), (0.9, False)])
def test_behind_what_wanted_more_a_soft_word_counts_and_an_echo_that_lasts_does_not(
    seconds, counts
):
    follower = Follower(Voice(), 20.0)
    follower.take(np.concatenate([tone(2.0, 0.3), silence(1.0)]), answering=False)
    soft = np.concatenate([tone(seconds, 0.02), silence(0.5)])
    assert follower.take(soft, answering=True) == [], "nothing more was wanted"
    follower.wants_more()
    began = [h for h in follower.take(soft, answering=True) if h.change is Change.BEGAN]
    assert [(h.soft, h.interrupts) for h in began] == [(True, True)] * counts
    assert follower.talking is counts
    if counts:
        assert 0.3 <= follower.num_spoken / RATE_HZ <= 0.8 and follower.spoken_s >= 0.25
    follower.clear()
    follower.take(silence(1.5), answering=True)
    assert follower.take(soft, answering=True) == [], "that was long ago"


def test_what_is_no_louder_than_an_echo_was_is_an_echo():
    follower = Follower(Voice(), 20.0)
    follower.take(tone(0.5, 0.05), answering=True)
    assert follower.talking
    follower.was_echo()
    follower.take(silence(2.0), answering=True)
    follower.take(tone(0.5, 0.05), answering=True)
    assert not follower.talking
    follower.take(tone(0.5, 0.1), answering=True)
    assert follower.talking, "a louder voice is somebody else's"


@pytest.mark.parametrize("coupling", [None, 0.0, 0.5])
def test_a_voice_is_too_loud_for_an_echo_where_what_was_played_did_not_come_back(coupling):
    rng = np.random.default_rng(0)
    follower = Follower(Voice(), 20.0)
    voice = np.concatenate([silence(6.0), tone(1.0, 0.3), silence(0.5)])
    played = (3000 * rng.normal(size=len(voice))).astype(np.int16)
    played[round(6.2 * RATE_HZ) :] = 0  # the answer falls silent
    heard = voice if not coupling else voice + (coupling * played).astype(np.int16)
    size = round(0.02 * RATE_HZ)
    parts = np.split(np.stack([heard, played]), range(size, len(voice), size), axis=1)
    found = []
    for pcm, out in parts:
        found += follower.take(pcm, answering=True, played=None if coupling is None else out)
    (ended,) = [turn for turn in found if turn.change is Change.PAUSED]
    assert ended.loud is (coupling is not None)


def test_a_turn_during_which_an_answer_began_says_nothing_about_the_visitors_level():
    follower = Follower(Voice(), 20.0)
    for level, answering in ((0.3, False), (0, False), (0.02, False), (0.02, True), (0, True)):
        follower.take(tone(2.0, level), answering=answering)
    assert not follower.talking
    follower.take(tone(0.5, 0.05), answering=True)
    assert not follower.talking, "the level of the first turn counts"


def test_while_nothing_is_answered_a_soft_voice_counts():
    follower = Follower(Voice(), 20.0)
    follower.take(tone(0.5, 0.01), answering=False)
    assert follower.talking and not follower.interrupts


def test_silence_is_forgotten_and_the_start_of_a_turn_is_kept():
    follower = Follower(Voice(), 60.0, rate_hz=FROM_HZ)
    for _ in range(50):
        assert follower.take(np.zeros(2400, np.int16), answering=False) == []
    assert follower.held_s < 1.0
    loud = np.full(2400, 5000, np.int16)
    heard = [h for _ in range(10) for h in follower.take(loud, answering=False)]
    assert [h.change for h in heard] == [Change.BEGAN] and 4.5 < heard[0].at / FROM_HZ < 5.0
    quiet = [h for _ in range(10) for h in follower.take(loud * 0, answering=False)]
    assert [h.change for h in quiet] == [Change.PAUSED, Change.ENDED]
    assert FROM_HZ < len(quiet[0].pcm) < len(quiet[1].pcm)


@pytest.mark.parametrize("size", [0, 1])
def test_a_buffer_costs_what_its_sound_costs(size):
    follower, block = Follower(None, 60.0), np.ones(size, np.int16)
    tracemalloc.start()
    for _ in range(20_000):
        follower.take(block, answering=False)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
    assert follower.take_all().tolist() == [1] * 20_000 * size


def test_sound_at_another_rate_keeps_its_shape():
    times = np.arange(48_000) / FROM_HZ
    low = (8000 * np.sin(2 * np.pi * 440 * times)).astype(np.int16)
    pushed, whole = Downsampler(), Downsampler()
    got = np.concatenate([pushed.push(block) for block in np.array_split(low, 77)])
    assert np.array_equal(got, whole.push(low))
    wanted = 8000 * np.sin(2 * np.pi * 440 * np.arange(len(got)) / 16_000)
    assert abs(len(got) - 32_000) < 40 and np.abs(got[200:] - wanted[200:]).max() < 60
    high = (8000 * np.sin(2 * np.pi * 10_000 * times)).astype(np.int16)
    assert np.abs(Downsampler().push(high)[200:]).max() < 200
