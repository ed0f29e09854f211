"""A slow link's messages: what they leave out, and that nothing is lost by it."""

from __future__ import annotations

import json

import pytest

from moss_engine.ui.stream import SoundWay


def message(seq: int, **changed):
    return {
        "run": "one",
        "seq": seq,
        "state": "speaking",
        "note": "",
        "end": False,
        "now_s": 0.123456789 + seq,
        "figures": {"rtf": 0.1 + seq / 3, "audio_s": 1.0, "ttfa_ms": None},
        "stages": {"accepted": 0.0, "started": 1 / 3},
        "pool": {"used": 12},
        "rate": 24_000,
        "pcm": b"",
        "text": [],
        "ids": [],
        "parts": [[0, 0]],
        **changed,
    }


def briefs(*messages) -> list[dict]:
    way = SoundWay("opus")
    return [json.loads(way.wire(one)["brief"]) for one in messages]


def test_a_slow_link_is_told_what_changed():
    _, second = briefs(message(0), message(1, ids=[7], state="done", end=True))
    assert second == {
        "state": "done",
        "end": True,
        "now_s": 1.12346,
        "figures": {"rtf": 0.43333},
        "ids": [7],
    }


def test_a_slow_link_is_told_everything_once():
    first, *_ = briefs(message(0, now_s=None, text=[[0, "Hello"]]))
    assert first["now_s"] is None and first["note"] == "" and first["sound"] == "opus"
    assert first["figures"] == {"rtf": 0.1, "audio_s": 1.0}, "what is not known need not be said"
    assert first["stages"] == {"accepted": 0.0, "started": 0.33333}
    assert first["text"] == [[0, "Hello"]] and first["parts"] == [[0, 0]]


def test_a_number_that_falls_back_is_said_again():
    _, _, third = briefs(message(0), message(1, pool={"used": 24}), message(2, pool={"used": 12}))
    assert third["pool"] == {"used": 12}


@pytest.mark.parametrize(("way", "brief"), [("pcm", False), ("opus", True)])
def test_only_a_compressed_reply_is_brief(way, brief):
    wired = SoundWay(way).wire(message(3))
    assert ("brief" in wired) is brief and (wired["run"], wired["seq"]) == ("one", 3)
