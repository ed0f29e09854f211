"""What a loudspeaker plays is taken out of what the microphone beside it hears; what somebody says
meanwhile stays."""

from __future__ import annotations

import numpy as np

from moss_engine.audio.echo import EchoCanceller

RATE_HZ = 16_000


def voice(seconds: float, seed: int) -> np.ndarray:
    """float32 [n]: syllables of coloured noise."""
    rng = np.random.default_rng(seed)
    count = round(seconds * RATE_HZ)
    loud = np.abs(np.sin(np.pi * np.arange(count) / (0.2 * RATE_HZ))) ** 2
    return (0.1 * np.convolve(rng.normal(size=count), [1, 1, 1], "same") * loud).astype(np.float32)


def room(played: np.ndarray, db: float, delay_s: float) -> np.ndarray:
    """What a microphone hears of it."""
    rng = np.random.default_rng(5)
    size = round(0.25 * RATE_HZ)
    response = rng.normal(size=size) * 10 ** (-3 * np.arange(size) / size)
    response *= 10 ** (db / 20) / np.sqrt(np.sum(response**2))
    length = len(played) + size
    echo = np.fft.irfft(np.fft.rfft(played, length) * np.fft.rfft(response, length), length)
    late = round(delay_s * RATE_HZ)
    heard = np.concatenate([np.zeros(late), echo])[: len(played)]
    return (heard + 1e-3 * rng.normal(size=len(played))).astype(np.float32)


def run(heard: np.ndarray, played: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frame by frame: the power that is left, and what of it may be echo; float [frames]."""
    canceller, size = EchoCanceller(), 512
    found = [
        canceller.push(heard[at : at + size], played[at : at + size])
        for at in range(0, len(heard) - size + 1, size)
    ]
    return np.array([np.mean(cleaned**2) for cleaned, _ in found]), np.array(
        [left for _, left in found]
    )


def test_an_echo_is_taken_out_and_never_exceeds_what_may_be_left():
    played = voice(8.0, 0)
    heard = room(played, -6.0, 0.15)
    cleaned, left = run(heard, played)
    late = slice(len(cleaned) // 2, None)
    assert 10 * np.log10(np.mean(heard[len(heard) // 2 :] ** 2) / np.mean(cleaned[late])) > 12.0
    loud = cleaned > 4e-6
    assert np.mean(cleaned[loud] > 8 * left[loud]) < 0.01


def test_who_talks_meanwhile_stays():
    played, visitor = voice(8.0, 0), voice(8.0, 1)
    visitor[: 5 * RATE_HZ] = 0.0
    cleaned, left = run(room(played, -6.0, 0.05) + visitor, played)
    talking = slice(round(5.1 * RATE_HZ / 512), None)
    frames = visitor[: len(cleaned) * 512].reshape(-1, 512)[talking]
    loud = np.mean(frames**2, axis=1) > np.mean(frames**2)
    assert np.mean(cleaned[talking][loud] > 8 * left[talking][loud]) > 0.8


def test_where_nothing_comes_back_next_to_nothing_is_taken_for_an_echo():
    played = voice(8.0, 0)
    noise = 2e-4 * np.random.default_rng(2).normal(size=len(played)).astype(np.float32)
    _, left = run(noise, played)
    assert np.percentile(10 * np.log10(left[len(left) // 4 :] + 1e-12), 90) < -45.0


def test_a_way_that_changes_is_learned_anew():
    played = voice(12.0, 0)
    heard = room(played, -6.0, 0.05)
    moved = np.concatenate([heard[: 6 * RATE_HZ], heard[6 * RATE_HZ - 160 : -160]])
    cleaned, left = run(moved, played)
    behind = slice(round(6.2 * RATE_HZ / 512), None)
    assert np.mean(cleaned[behind] > 8 * left[behind]) < 0.05
    assert np.mean(cleaned[-60:]) < 0.1 * np.mean(moved[-60 * 512 :] ** 2)


def test_where_nothing_is_played_nothing_changes():
    heard = voice(1.0, 2)[: 30 * 512]
    canceller = EchoCanceller()
    cleaned, left = canceller.push(heard, np.zeros_like(heard))
    assert np.array_equal(cleaned, heard) and left == 0.0
