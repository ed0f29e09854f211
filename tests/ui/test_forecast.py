"""What a reply would be like if it were asked for now."""

from __future__ import annotations

import pytest

from moss_engine.api.metrics import Timeline, measure
from moss_engine.ui.asking.forecast import Seen, forecast

ALONE = Seen(others=0, first_s=0.1, rtf=0.3, audio_s=4.0, chars=50, reads=True)
NOW = {"others": 0, "waiting": 0, "places": 4, "chars": 100, "reads": True}


def test_alone_it_is_like_the_replies_before():
    told = forecast([ALONE], **NOW)
    assert told is not None and not told.gaps
    assert told.first_s == pytest.approx(0.1) and told.length_s == pytest.approx(8.0)


def test_every_other_voice_takes_its_share():
    told = forecast([ALONE], **{**NOW, "others": 3})
    assert told is not None and told.gaps
    assert told.first_s == pytest.approx(0.4) and told.others == 3


def test_what_was_seen_under_this_load_counts_more():
    crowded = Seen(others=3, first_s=0.2, rtf=0.5, audio_s=4.0, chars=50, reads=True)
    told = forecast([ALONE, crowded], **{**NOW, "others": 3})
    assert told is not None and not told.gaps and told.first_s == pytest.approx(0.2)


def test_who_must_wait_for_a_place_hears_later():
    late = forecast([ALONE], **{**NOW, "others": 4, "waiting": 2})
    soon = forecast([ALONE], **{**NOW, "others": 4})
    assert late is not None and soon is not None and late.first_s > soon.first_s > 1.0


def test_only_what_is_read_has_a_length_before_it_is_made():
    told = forecast([ALONE], **{**NOW, "reads": False})
    assert told is not None and told.length_s is None


def test_nothing_is_foretold_before_anything_was_seen():
    assert forecast([], **NOW) is None
    assert Seen.of(measure(Timeline()), 0, "text", True) is None
