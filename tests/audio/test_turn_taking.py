"""Where an utterance begins and ends, from the likelihood of speech, and what its words say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_engine.audio import turn_taking as rules
from moss_engine.audio.turn_taking import (
    FRAME_S,
    MEANT_S,
    RATE_HZ,
    Change,
    TurnState,
    follow,
    interrupts,
    is_echo,
    is_murmur,
)

SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "samples" / "good_morning.flac"


def run(probabilities, *, answering=False, max_s=60.0) -> list[tuple[int, Change]]:
    """(frame, change) of everything that happened."""
    turn, happened = TurnState(), []
    for index, probability in enumerate(probabilities):
        turn = follow(turn, probability, answering=answering, max_s=max_s)
        if turn.change is not Change.NONE:
            happened.append((index, turn.change))
    return happened


def frames(seconds: float) -> int:
    return round(seconds / FRAME_S)


def test_a_sentence_begins_and_ends_once():
    happened = run([0.0] * 20 + [0.9] * frames(2) + [0.05] * frames(2))
    assert [change for _, change in happened] == [Change.BEGAN, Change.ENDED]
    assert (happened[0][0] - 20) * FRAME_S < 0.1
    assert (
        rules.END_S <= (happened[1][0] + 1 - 20 - frames(2)) * FRAME_S < rules.END_S + 2 * FRAME_S
    )


def test_a_pause_inside_a_sentence_ends_nothing():
    words, pause = [0.9] * frames(0.6), [0.02] * frames(0.5)
    assert [change for _, change in run([*words, *pause, *words, *pause, *words])] == [Change.BEGAN]


def test_a_click_is_nothing_and_a_cough_is_dropped():
    assert run([0.0] * 5 + [0.9] * 2 + [0.0] * 50) == []
    assert [change for _, change in run([0.9] * 5 + [0.0] * 50)] == [Change.BEGAN, Change.DROPPED]


def test_an_echo_of_the_answer_does_not_interrupt_it_and_a_voice_does():
    echo = ([0.6] * 10 + [0.2] * 10) * 5
    assert run(echo, answering=True) == [] and run(echo) != []
    happened = run([0.95] * frames(1), answering=True)
    assert [change for _, change in happened] == [Change.BEGAN] and happened[0][0] * FRAME_S < 0.3


def test_nobody_talks_for_ever():
    happened = run([0.9] * frames(5), max_s=2.0)
    assert happened[1][1] is Change.ENDED and (happened[1][0] + 1) * FRAME_S <= 2.0


@given(st.lists(st.floats(0, 1), max_size=300), st.booleans())
def test_beginnings_and_ends_alternate(probabilities, answering):
    kinds = [change is Change.BEGAN for _, change in run(probabilities, answering=answering)]
    assert all(kind == (place % 2 == 0) for place, kind in enumerate(kinds))


def test_a_voice_is_told_from_noise_hum_and_music():
    pytest.importorskip("silero_vad")
    pytest.importorskip("onnxruntime")
    soundfile = pytest.importorskip("soundfile")
    from moss_engine.audio.voice_activity import has_voice, load_detector

    detector = load_detector()
    voice, rate_hz = soundfile.read(SAMPLE, dtype="float32")
    noise = np.random.default_rng(0).normal(0.0, 0.02, 3 * RATE_HZ)
    time_s = np.arange(4 * RATE_HZ) / RATE_HZ
    hum = 0.1 * np.sin(2 * np.pi * 100 * time_s)
    music = sum(0.1 * np.sin(2 * np.pi * pitch * time_s) for pitch in (262, 330, 392))
    assert load_detector() is detector, "one is enough for all who listen"
    assert has_voice(detector, voice, rate_hz)
    for sound in (noise, hum, music, np.zeros(RATE_HZ), np.zeros(10)):
        assert not has_voice(detector, np.asarray(sound, np.float32), RATE_HZ)


def test_without_the_packages_the_command_is_named(monkeypatch):
    from moss_engine.api.errors import MissingPackageError
    from moss_engine.audio import voice_activity

    monkeypatch.setattr(voice_activity.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install onnxruntime silero-vad"):
        voice_activity.load_detector()


def test_who_only_listens_says_nothing():
    assert all(map(is_murmur, ("", "Mm-hmm.", "Mhm, uh-huh.", "Hmm...", "Oh!")))
    assert not any(map(is_murmur, ("No.", "Mm, stop.", "Okay", "7")))


def test_an_answer_is_interrupted_by_words_that_mean_it():
    assert interrupts("Tell me a joke.", MEANT_S) and interrupts("Stop!", 0.3)
    assert not interrupts("No.", 0.4), "a murmur is often taken for it"
    assert not interrupts("Right.", 0.3) and not interrupts("Mm-hmm.", 2.0)


SAYING = " My train leaves at 7:45, so please wait for me. Doctor Sanders will see you"


def test_the_answers_own_words_are_its_echo():
    for heard in ("So please wait.", "please wait for me. Doctor", "Forty five. So please,"):
        assert is_echo(heard, SAYING), heard
    assert is_echo("and please wait", SAYING), "a scrap is often mistaken"
    assert not is_echo("and please wait", SAYING, loud=True)
    assert is_echo("So please wait.", SAYING, loud=True), "of a way that is not known yet"


@pytest.mark.parametrize(
    ("heard", "saying"),
    [
        ("Wait, stop.", SAYING),
        ("When does my train go back?", SAYING),
        ("Who is Doctor Miller?", SAYING),
        ("Tell me a joke.", "Ask me for a joke."),
        ("What time is it?", "You can ask me what time it is."),
        ("Can you spell words?", "I can tell you the time, work out sums, and spell words."),
    ],
)
def test_who_takes_up_an_answers_words_is_no_echo(heard, saying):
    assert not is_echo(heard, saying) and interrupts(heard, 2.0)


def test_no_words_are_no_echo():
    assert not is_echo("", SAYING) and not is_echo("Wait.", "")
