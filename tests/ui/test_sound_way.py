"""What travels of a reply's messages, and that nothing is lost by what is left out."""

from __future__ import annotations

import numpy as np

from moss_engine.ui.stream import Wire


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


def news(*messages) -> list[dict]:
    wire = Wire("pcm")
    return [wire.pack(one)[0] for one in messages]


def test_only_what_changed_is_told():
    _, second = news(message(0), message(1, ids=[7], state="done", end=True))
    assert second == {
        "run": "one",
        "seq": 1,
        "state": "done",
        "end": True,
        "now_s": 1.12346,
        "figures": {"rtf": 0.43333},
        "ids": [7],
    }


def test_everything_is_told_once():
    first, *_ = news(message(0, now_s=None, text=[[0, "Hello"]]))
    assert first["now_s"] is None and first["note"] == "" and first["sound"] == "pcm"
    assert first["figures"] == {"rtf": 0.1, "audio_s": 1.0}, "what is not known need not be said"
    assert first["stages"] == {"accepted": 0.0, "started": 0.33333}
    assert first["text"] == [[0, "Hello"]] and first["parts"] == [[0, 0]]


def test_a_number_that_falls_back_is_said_again():
    _, _, third = news(message(0), message(1, pool={"used": 24}), message(2, pool={"used": 12}))
    assert third["pool"] == {"used": 12}


def test_sound_goes_beside_the_words_as_it_is_or_compressed():
    pcm = np.arange(4800, dtype="<i2").tobytes()
    told, sound = Wire("pcm").pack(message(0, pcm=pcm))
    assert sound == pcm and "pcm" not in told and told["sound"] == "pcm"
    told, sound = Wire("opus").pack(message(0, pcm=pcm, end=True))
    assert told["sound"] == "opus" and told["head"] and 0 < len(sound) < len(pcm)
    told, sound = Wire("opus").pack(message(0, pcm=pcm, rate=22_050))
    assert told["sound"] == "pcm" and sound == pcm, "Opus does not know this rate"
