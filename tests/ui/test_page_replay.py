"""A reply is kept as a file, and heard again from it: the same sound, without the network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from moss_engine.api.errors import InputError
from moss_engine.api.info import MadeBy
from moss_engine.ui.form import defaults
from moss_engine.ui.replay import read_replay, recipe
from tests.ui.page_support import INFO

FACTS = INFO
OTHER = replace(FACTS, made_by=MadeBy("f00d" * 10, "decade" * 10))
GOOD = {
    **(recipe(defaults(FACTS), FACTS, 7) or {}),
    "ids": [300, -4, -5, 301, -6],
    "parts": [[0, 0], [3, 1920]],
    "pauses": [[2, [7, 7]], [4, [7]]],
    "text": [[0, "One"], [1920, " two"]],
}


def test_a_file_is_taken_apart_into_rows_and_parts():
    first, second = read_replay(json.dumps(GOOD), FACTS).recorded
    assert [row.audio for row in first.rows[1:]] == [3, 4] and first.rows[0].text == 300
    assert first.pauses == ((2, (7, 7)),) and second.pauses == ((1, (7,)),)
    assert first.text == ((0, "One"),) and second.text == ((0, " two"),)
    assert read_replay(json.dumps(GOOD), FACTS).seed == 7


def test_another_checkpoint_is_refused_with_both_fingerprints():
    with pytest.raises(InputError, match="c0ffeec0ffee, and here runs f00df00df00d"):
        read_replay(json.dumps(GOOD), OTHER)
    other = replace(FACTS, made_by=MadeBy("c0ffee" * 10, "abba" * 15))
    with pytest.raises(InputError, match="codec decadedecade, and here runs abbaabbaabba"):
        read_replay(json.dumps(GOOD), other)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "else"}, {"version": 2}, {"version": None}, {"made_by": None},
        {"made_by": {"checkpoint": 1}}, {"settings": []}, {"settings": {"voice": "nobody"}},
        {"settings": {"voice": "default", "seed": True}}, {"ids": []}, {"ids": None},
        {"ids": [1.5]}, {"ids": ["1"]}, {"ids": [True]}, {"ids": [10**9]}, {"ids": [-(10**9)]},
        {"ids": [-4] * 30_001}, {"parts": []}, {"parts": [[0]]}, {"parts": [[1, 0]]},
        {"parts": [[0, 0], [9, 0]]}, {"parts": [[0, 0], [2, 5], [1, 9]]}, {"parts": [[0, "0"]]},
        {"pauses": None}, {"pauses": [[0]]}, {"pauses": [[9, [1]]]}, {"pauses": [[1, [9999]]]},
        {"pauses": [[2, [1]], [2, [1]]]}, {"pauses": [[0, [1] * 30_001]]}, {"text": None}, {"text": [[0]]}, {"text": [[-1, "a"]]}, {"text": [[5, "a"], [1, "b"]]},
        {"text": [[0, "\ud800"]]}, {"text": [[10**30, "x"]]}, {"parts": [[0, 0], [3, 10**30]]},
        {"settings": {"voice": "default", "seed": 1, "more": float("nan")}}, {"text": [[0, 1]]}, {"text": [[0, "a" * 40_001]]},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_a_sentence(changes):
    with pytest.raises(InputError, match=r"; (choose|save)"):
        read_replay(json.dumps({**GOOD, **changes}), FACTS)


@pytest.mark.parametrize("file", ["", "{", "[]", "null", "[" * 5000, 7, None, "x" * 300_000])
def test_what_is_no_replay_file_is_refused_with_a_sentence(file):
    with pytest.raises(InputError, match="; choose"):
        read_replay(file, FACTS)


def test_a_service_without_fingerprints_replays_nothing():
    facts = replace(FACTS, made_by=None)
    assert recipe(defaults(facts), facts, 1) is None
    with pytest.raises(InputError):
        read_replay(json.dumps(GOOD), facts)
