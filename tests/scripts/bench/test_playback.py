"""The player without a browser: what a listener hears of sound that arrives at these times."""

from __future__ import annotations

import re

import pytest

from moss_engine.config import REPO_ROOT
from scripts.bench.stress import playback
from scripts.bench.stress.playback import Playback

COMPONENTS = REPO_ROOT / "moss_engine" / "ui" / "components"


def played(*arrivals: tuple[float, float], player: Playback | None = None):
    player = player or Playback()
    for at_s, seconds in arrivals:
        player.push(at_s, seconds)
    player.end(arrivals[-1][0])
    return player.leave(arrivals[-1][0] + 60.0)


def test_sound_in_time_has_no_gap():
    heard = played((1.0, 0.2), (1.1, 0.3), (1.3, 0.4))
    assert heard.began_s == 1.0 and heard.gaps == 0 and heard.gaps_s == 0
    assert heard.heard_s == pytest.approx(0.9) and heard.least_left_s == pytest.approx(0.1)


def test_a_late_chunk_is_a_gap_of_as_much_silence():
    heard = played((1.0, 0.2), (1.5, 0.4))
    assert heard.gaps == 1 and heard.least_left_s == 0
    assert heard.gaps_s == pytest.approx(0.3 + playback.FADE_S)
    assert heard.heard_s == pytest.approx(0.6)


def test_too_little_sound_is_waited_for():
    assert played((1.0, 0.02), (1.3, 0.1)).began_s == pytest.approx(1.3)


def test_behind_a_reply_with_gaps_the_next_one_begins_later():
    player = Playback()
    assert played((1.0, 0.2), (1.5, 0.4), player=player).gaps == 1
    heard = played((90.0, 0.2), (90.5, 0.4), player=player)
    assert heard.gaps == 0 and heard.began_s == pytest.approx(90.0 + 1.25 * 0.34)


def test_behind_a_reply_that_had_hardly_enough_the_next_one_begins_a_little_later():
    player = Playback()
    assert played((1.0, 0.2), (1.19, 0.4), player=player).gaps == 0
    assert played((90.0, 0.2), (90.1, 0.4), player=player).began_s == pytest.approx(90.0375)


def test_while_it_is_held_nothing_sounds_and_nothing_is_late():
    player = Playback()
    player.push(1.0, 0.2)
    player.hold(1.1)
    assert player.held and player.now(5.0).heard_s == pytest.approx(0.1)
    player.push(6.0, 0.3)
    player.go_on(7.0)
    assert player.sounds(7.1) and not player.over(7.1)
    player.end(7.2)
    assert player.over(8.0) and player.leave(8.0).gaps == 0


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("live_audio_player.js", "FADE_MS", 1000 * playback.FADE_S),
        ("live_audio_player.js", "MAX_PREBUFFER_MS", 1000 * playback.MAX_PREBUFFER_S),
        ("live_audio_player.js", "MAX_WAIT_MS", 1000 * playback.MAX_WAIT_S),
        ("live_audio_worklet.js", "MARGIN", playback.MARGIN),
        ("live_audio_worklet.js", "SPARE_S", playback.SPARE_S),
        ("live_audio.py", "prebuffer_ms: int", 1000 * playback.PREBUFFER_S),
    ],
)
def test_its_rules_are_those_of_the_page(file: str, name: str, value: float):
    found = re.search(rf"\b{name} = ([\d.]+)", (COMPONENTS / file).read_text(encoding="utf-8"))
    assert found is not None and float(found[1]) == value
