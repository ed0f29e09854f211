"""A turn: its events folded, its messages and what of them travels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Failed,
    Finished,
    FinishReason,
    Placed,
    Sampled,
    Started,
    TextDelta,
    Waiting,
)
from moss_engine.api.tokens import Modality, Row
from moss_engine.audio.pcm import to_pcm16
from moss_engine.ui.stream import Wire
from moss_engine.ui.turn import Turn
from tests.ui.page_support import MODES

RATE_HZ = 1000


def chunk(time_s: float, start: int, samples: np.ndarray) -> AudioChunk:
    return AudioChunk("r", time_s, 1, samples.astype(np.float32), start, RATE_HZ)


def row(time_s: float, modality: Modality, text: int, audio: int) -> Sampled:
    return Sampled("r", time_s, 1, Row(text, audio), modality)


def finished(time_s: float, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished("r", time_s, 2, reason, (Row(5, 6),))


REPLY: list[Event] = [
    Accepted("r", 0.0, 0, 7),
    Started("r", 0.2, 0, 4),
    row(0.3, Modality.TEXT, 65, 1),
    TextDelta("r", 0.3, 1, "Good", 0),
    row(0.4, Modality.AUDIO, 2, 9),
    chunk(0.5, 0, np.linspace(-1, 1, 300)),
    TextDelta("r", 0.6, 3, " day", 300),
    chunk(0.7, 300, np.linspace(1, -1, 200)),
    finished(0.8),
]


def folded(events: list[Event], **known) -> Turn:
    turn = Turn(mode=MODES[1], run="run", seed=3, clock=lambda: 100.0, **known)
    for event in events:
        turn.fold(event)
    return turn


@given(st.lists(st.booleans(), min_size=len(REPLY), max_size=len(REPLY)))
def test_messages_joined_are_the_reply_however_often_one_is_taken(sends):
    turn, messages = folded([]), []
    for event, send in zip(REPLY, sends, strict=True):
        turn.fold(event)
        if send:
            messages.append(turn.message())
    messages.append(turn.message())
    chunks = [event.samples for event in REPLY if isinstance(event, AudioChunk)]
    pcm = to_pcm16(np.concatenate(chunks))
    assert b"".join(m["pcm"] for m in messages) == pcm.astype("<i2").tobytes()
    assert [tuple(delta) for m in messages for delta in m["text"]] == [(0, "Good"), (300, " day")]
    assert [shown for m in messages for shown in m["ids"]] == [65, ~9]
    assert [m["seq"] for m in messages] == list(range(len(messages)))
    assert [m["end"] for m in messages[:-1]].count(True) == sends[-1] and messages[-1]["end"]
    assert turn.rows == (Row(65, 1), Row(2, 9)) and turn.transcript == "Good day"
    assert np.array_equal(turn.sound(), pcm)


def test_state_follows_the_events():
    states = [folded(REPLY[: i + 1]).state for i in range(len(REPLY))]
    assert states == ["waiting", *["thinking"] * 4, *["speaking"] * 3, "done"]


@pytest.mark.parametrize(
    ("end", "state", "note"),
    [
        (finished(10.8), "done", ""),
        (finished(10.8, FinishReason.LENGTH), "length", "cut at its length limit"),
        (finished(10.8, FinishReason.CANCELLED), "stopped", "Stopped."),
        (Failed("r", 10.9, 1, "E_ENGINE", "The engine stopped."), "failed", "The engine stopped."),
    ],
)
def test_the_way_it_ended_is_said(end, state, note):
    message = folded([*REPLY[:-1], end, *REPLY[:3]]).message()
    assert (message["state"], message["end"]) == (state, True)
    assert note in message["note"] and bool(message["note"]) is bool(note)


def test_stages_are_seconds_since_the_request_was_accepted():
    now = [99.6]
    turn = Turn(mode=MODES[1], clock=lambda: now[0])
    for now[0], event in zip([100.0] * len(REPLY), REPLY, strict=True):
        turn.fold(event)
    now[0] = 101.5
    message = turn.message()
    assert message["stages"] == pytest.approx(
        {"received": -0.4, "accepted": 0.0, "started": 0.2, "first_row": 0.3, "first_chunk": 0.5,
         "finished": 0.8}
    )  # fmt: skip
    assert message["now_s"] == pytest.approx(1.5)
    assert message["figures"]["ttfa_ms"] == pytest.approx(500)


def test_news_that_cannot_wait():
    turn = folded([])
    waits = [type(event).__name__ for event in REPLY if not turn.fold(event)]
    assert waits == ["TextDelta", "Sampled", "TextDelta"]


def test_the_replica_that_makes_a_reply_is_told_with_every_message():
    turn = folded([REPLY[0], Placed("r", 0.1, 0, "a1", False, 2), *REPLY[1:4]])
    placed = turn.message()["placed"]
    assert (placed["replica"], placed["is_preferred"], placed["num_resumes"]) == ("a1", False, 2)
    assert folded(REPLY[:3]).message()["placed"] is None


def test_a_reply_that_waits_for_another_replica_says_so_until_it_goes_on():
    for place in range(3, len(REPLY) - 1):
        turn = folded(REPLY[:place])
        turn.fold(Waiting("r", 9.0, turn.timeline.num_rows))
        assert turn.state == "waiting" and not turn.over
        turn.fold(REPLY[place])
        assert turn.state == folded(REPLY[: place + 1]).state


def test_sound_goes_beside_the_words_as_it_is_or_compressed():
    pcm = np.arange(4800, dtype="<i2").tobytes()
    message = {**folded(REPLY[:3]).message(), "rate": 24_000, "pcm": pcm}
    told, sound = Wire("pcm").pack(message)
    assert sound == pcm and {**told, "pcm": sound} == {**message, "sound": "pcm"}
    told, sound = Wire("opus").pack({**message, "end": True})
    assert told["sound"] == "opus" and told["head"] and 0 < len(sound) < len(pcm)
    told, sound = Wire("opus").pack({**message, "rate": 22_050})
    assert told["sound"] == "pcm" and sound == pcm, "Opus does not know this rate"
