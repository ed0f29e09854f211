"""Second voice, rates, homographs and spelled letters of the training; no speech package needed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from moss_engine.config import NANO_CHECKPOINT
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.lm.ranks import Ranks
from scripts.nano.prompts import Judged, draw_speed, draw_takes
from scripts.nano.speech.derived_voice import FRAME_SAMPLES, TRACT, convert, lower_hz, teacher_speed
from scripts.nano.speech.pronunciations import said_otherwise
from scripts.nano.speech.voices import (
    MAX_RATE,
    MIN_RATE,
    RATE_TOKENS,
    RATES,
    VOICE_TOKENS,
    rate_token,
)
from scripts.nano.text.hard_sentences import HARD, HOMOGRAPHS
from scripts.nano.text.homographs import Homographs
from scripts.nano.text.letters import Letters
from scripts.nano.tokenizer import load_tokenizer, with_voice_tokens


def plain(text: str) -> str:
    """Slots stay as a word."""
    return text.replace("{", "").replace("}", "")


def tone(f0_hz: float, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten harmonics and their F0 a frame."""
    time_s = np.arange(frames * FRAME_SAMPLES) / 24_000
    wave = sum(np.cos(2 * np.pi * f0_hz * h * time_s) for h in range(1, 11)) / 20
    return wave, np.full(frames, f0_hz)


def strongest_hz(wave: np.ndarray) -> float:
    """The period with the highest autocorrelation between 60 and 300 Hz, in Hz."""
    part = wave[4000:12_000]
    spectrum = np.abs(np.fft.rfft(part, 2 * len(part))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(part)]
    lags = np.arange(80, 400)
    return 24_000 / lags[correlation[lags].argmax()]


def test_the_second_voice_is_lower_and_as_long_as_asked_for():
    wave, f0 = tone(200.0, 80)
    converted = convert(wave[None], f0)
    assert len(converted.waves[0]) == pytest.approx(len(wave) / TRACT, rel=0.01)
    assert strongest_hz(converted.waves[0]) == pytest.approx(float(lower_hz(f0)[0]), rel=0.03)
    middle = converted.f0_hz[5000:20_000]
    assert middle == pytest.approx(lower_hz(f0)[0], rel=1e-6)
    assert np.diff(converted.pulses)[3:-3] == pytest.approx(24_000 / middle[0], rel=0.01)
    assert teacher_speed(1.0) > 1.0


def test_parts_converted_alone_are_the_whole_converted():
    wave, f0 = tone(180.0, 40)
    noise = np.random.default_rng(0).normal(size=len(wave)) * 0.01
    whole = convert((wave + noise)[None], f0).waves[0]
    assert np.allclose(convert(np.stack([wave, noise]), f0).waves.sum(0), whole, atol=1e-5)


def test_what_is_not_voiced_stays():
    noise = np.random.default_rng(0).normal(size=40 * FRAME_SAMPLES) * 0.1
    converted = convert(noise[None], np.zeros(40))
    assert (converted.f0_hz == 0).all() and len(converted.pulses) == 0
    assert converted.waves[0].std() == pytest.approx(0.1 * 1.2, rel=0.1)


def test_a_speed_has_the_token_of_the_nearest_rate():
    assert [rate_token(rate) for rate in RATES] == list(RATE_TOKENS)
    assert rate_token(1.03) == "<rate:1.00>" and rate_token(1.05) == "<rate:1.08>"
    assert rate_token(0.1) == RATE_TOKENS[0] and rate_token(9.0) == RATE_TOKENS[-1]
    rng = random.Random(0)
    speeds = [draw_speed(rng) for _ in range(2000)]
    assert MIN_RATE - 0.001 <= min(speeds) < 0.7 and 1.5 < max(speeds) <= MAX_RATE + 0.001
    assert {voice for voice, _ in draw_takes("chat", rng)} == {"ada", "ben"}


def test_tokens_of_voices_take_the_places_of_the_last_pieces():
    tokenizer = with_voice_tokens(load_tokenizer(NANO_CHECKPOINT / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 1024
    ids = [tokenizer.token_to_id(name) for name in (*VOICE_TOKENS.values(), *RATE_TOKENS)]
    assert ids == list(range(1010, 1024))
    typed = tokenizer.encode("Hello <voice:ada>, which one?").ids
    assert not set(typed) & set(ids) and tokenizer.decode(typed) == "Hello <voice:ada>, which one?"


def test_forced_phonemes_stand_at_the_homograph():
    homographs = Homographs(plain, random.Random(0))
    words = {sense[0].lower() for sense in homographs.senses}
    for _ in range(500):
        text, forced = homographs.sentence()
        items = text.split()
        assert forced and "~" not in text
        assert {items[place].strip('.,?!;:"').lower() for place in forced} <= words


def test_letters_are_sentences_with_no_slot_left():
    letters = Letters(plain, random.Random(0), ["Anna", "Siobhan"])
    texts = [letters.sentence() for _ in range(300)]
    assert "Anna is spelled A N N A." in texts
    assert not any("{" in text for text in texts)


def test_hard_sentences_are_kept_out_of_the_training_text():
    judged = Judged()
    assert all(judged.touches(spoken_text(text)) for text in HARD)
    assert all(judged.touches(spoken_text(text)) for text, *_ in HOMOGRAPHS)
    assert all(right != wrong for *_, right, wrong in HOMOGRAPHS)


def test_a_word_that_the_teacher_says_wrongly_is_told():
    assert said_otherwise("Siobhan") == said_otherwise("siobhan") == "ʃəvˈɔn"
    assert said_otherwise("table") is None


def test_one_process_averages_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    ranks = Ranks(torch.device("cpu"))
    gradient = torch.ones(3)
    ranks.average([gradient])
    assert ranks.leads and gradient.tolist() == [1, 1, 1]
    assert ranks.agree(0.5, True) == (0.5, True)
