"""The judge of a turn's end: words, melody, and the silence that follows from them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from moss_engine.audio import turn_judge
from moss_engine.audio.smart_turn import INSTALL, features, load_melody
from moss_engine.audio.turn_judge import WAITS_S, Judge, load_words, log_odds, wait_s
from moss_engine.audio.turn_taking import END_S, FRAME_S, LOOK_S, RATE_HZ
from tests.audio.test_turn_taking import SAMPLE

REPORT = Path(__file__).resolve().parents[2] / "assets" / "bench" / "turn_judge.json"


def test_the_judge_is_what_was_tuned():
    """By `python -m scripts.turns tune`, on turns that do not test it."""
    tuned = json.loads(REPORT.read_text())
    weights = {name: tuple(found) for name, found in tuned["weights"].items()}
    assert weights == {
        "both": turn_judge.BOTH,
        "words": turn_judge.WORDS,
        "melody": turn_judge.MELODY,
    }
    assert tuple(tuned["levels"]) == turn_judge.LEVELS
    assert tuple(tuned["waits_s"]) == turn_judge.WAITS_S


@pytest.mark.parametrize(
    "text",
    ["What time is it?", "Tell me a joke.", "How are you today?", "Can you tell me a story?"],
)
def test_whole_sentences_wait_least(text):
    assert wait_s(log_odds(text, 4.0)) == WAITS_S[0]


@pytest.mark.parametrize(
    "text", ["What is the", "I would like to", "Can you tell me how far it is to", "Um, and"]
)
def test_open_words_wait_longer_whatever_their_melody(text):
    assert wait_s(log_odds(text, 4.0)) > WAITS_S[0]
    assert wait_s(log_odds(text, -4.0)) == WAITS_S[-1]
    assert wait_s(log_odds(text, None)) > WAITS_S[0]


def test_punctuation_and_case_say_nothing():
    words = load_words()
    assert words.log_odds("What is the?") == words.log_odds("what is the")


def test_nothing_known_waits_as_ever():
    assert wait_s(log_odds(None, None)) == END_S
    assert wait_s(log_odds("", None)) == WAITS_S[-1]
    assert wait_s(log_odds("Yes.", 4.0)) == wait_s(log_odds("Stop.", 4.0)) == WAITS_S[0]


def test_eagerness_stretches_the_wait():
    waits = [wait_s(-9.0, eagerness) for eagerness in ("high", "medium", "low")]
    assert waits == sorted(set(waits)) and wait_s(9.0, "high") >= LOOK_S
    assert wait_s(-9.0) == wait_s(-9.0, "auto") == waits[1]


def test_what_is_heard_later_is_judged_over_earlier():
    judge, page = Judge(), Judge(later_s=FRAME_S)
    for melody in (4.0, 0.0, -4.0):
        assert page.wait_s(None, melody) == judge.wait_s(None, melody) - FRAME_S
    assert page.longest_s == page.wait_s(None, -4.0)
    assert Judge(later_s=1.0).wait_s(None, 4.0) == LOOK_S


def test_features_are_those_of_whisper():
    found = features(np.zeros(9 * RATE_HZ, np.int16))
    assert found.shape == (80, 800) and found.dtype == np.float32
    times = np.arange(RATE_HZ) / RATE_HZ
    loud = features((8000 * np.sin(2 * np.pi * 1000 * times)).astype(np.int16))
    assert loud[:, -50].argmax() == 26, "the band that holds 1 kHz, at the end of the eight seconds"
    assert loud[:, :600].max() < loud[:, -50].max() - 1


def test_features_keep_no_other_core_busy():
    """A process of its own, as other tests leave threads that work."""
    measured = """
import time
import numpy as np
from moss_engine.audio.smart_turn import features
pcm = np.random.default_rng(0).integers(-9999, 9999, 64_000).astype(np.int16)
features(pcm)
time.sleep(0.5)
whole_s, own_s = time.process_time(), time.thread_time()
for _ in range(20):
    features(pcm)
own_s = time.thread_time() - own_s
time.sleep(0.5)
print((time.process_time() - whole_s) / own_s)
"""
    found = subprocess.run(
        [sys.executable, "-c", measured], capture_output=True, text=True, check=True
    )
    assert float(found.stdout) < 1.3


def test_melody_hears_whether_a_sentence_is_cut():
    pytest.importorskip("onnxruntime")
    melody = load_melody()
    if melody is None:
        pytest.skip(INSTALL)
    wave, rate_hz = soundfile.read(SAMPLE, dtype="int16")
    assert rate_hz == 24_000
    pause, judge = np.zeros(4800, np.int16), Judge()
    whole = asyncio.run(judge.melody(np.concatenate([wave, pause]), rate_hz))
    cut = asyncio.run(judge.melody(np.concatenate([wave[: len(wave) * 2 // 5], pause]), rate_hz))
    assert whole is not None and cut is not None and whole > cut


def test_without_the_package_words_are_judged(monkeypatch):
    monkeypatch.setattr(turn_judge, "load_melody", lambda: None)
    assert asyncio.run(Judge().melody(np.zeros(24_000, np.int16), 24_000)) is None
    assert wait_s(log_odds("Tell me a joke.", None)) < wait_s(log_odds("Tell me a", None))
