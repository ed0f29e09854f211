"""More turns than fit into a step: who is let in, who is left out, and whose turn it is to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.api.errors import BusyError
from moss_engine.api.request import Progress
from moss_engine.engine.scheduler import SPARE_S
from moss_engine.engine.sequence import RequestState
from tests.engine.test_scheduler import END, LIMITS, make_scheduler, make_turn, step

TWO = replace(LIMITS, max_batch=2)


def readings(scheduler, count: int = 2) -> list[RequestState]:
    turns = [make_turn(3, 60, first=10 + i) for i in range(count)]
    for turn in turns:
        scheduler.submit(turn)
    step(scheduler)
    assert scheduler.running == turns
    return turns


def run(scheduler, ahead_s: dict[RequestState, float]) -> list[RequestState]:
    """One step; the turns in it."""
    by_owner = {turn.owner: seconds for turn, seconds in ahead_s.items()}
    return [share.turn for share in step(scheduler, ahead_s=by_owner)]


def test_a_newcomer_is_let_in_beside_readings_that_are_far_ahead():
    scheduler = make_scheduler(TWO)
    near, far = readings(scheduler)
    newcomer = make_turn(first=20)
    scheduler.submit(newcomer)
    ahead_s = {near: SPARE_S + 1, far: SPARE_S + 5}
    assert run(scheduler, ahead_s) == [near, newcomer]
    table = scheduler.blocks.table(far.owner)
    assert set(run(scheduler, ahead_s)) == {near, newcomer}
    assert scheduler.blocks.table(far.owner) == table, "it keeps its blocks"
    assert set(run(scheduler, {near: 9.0, far: 0.5, newcomer: 3.0})) == {far, newcomer}


def test_a_newcomer_waits_while_everybody_is_short_of_sound():
    scheduler = make_scheduler(TWO)
    one, two = readings(scheduler)
    scheduler.submit(newcomer := make_turn(first=20))
    assert set(run(scheduler, {one: 0.0, two: SPARE_S - 0.1})) == {one, two}
    assert scheduler.waiting == (newcomer,)


def test_as_many_again_are_let_in_at_the_most():
    scheduler = make_scheduler(TWO)
    turns = readings(scheduler)
    for first in range(20, 26):
        turns.append(make_turn(first=first))
        scheduler.submit(turns[-1])
    for _ in range(10):
        assert len(run(scheduler, dict.fromkeys(turns, 60.0))) <= 2
        scheduler.blocks.check_integrity()
    assert (len(scheduler.running), len(scheduler.waiting)) == (4, 4)


def test_those_who_are_short_alike_take_turns():
    scheduler = make_scheduler(TWO)
    one, two = readings(scheduler)
    scheduler.submit(three := make_turn(3, 60, first=20))
    run(scheduler, {one: 9.0, two: 9.0})
    before = [turn.sequence.num_reply_rows for turn in (one, two, three)]
    for _ in range(30):
        run(scheduler, {})
    after = [turn.sequence.num_reply_rows for turn in (one, two, three)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [20, 20, 20]


def by(visitor: str, first: int) -> RequestState:
    turn = make_turn(first=first)
    turn.request = replace(turn.request, visitor=visitor)
    return turn


def test_the_visitor_with_the_fewest_running_goes_first():
    scheduler = make_scheduler(TWO)
    crowd = [by("crowd", 10 + i) for i in range(4)]
    for turn in crowd:
        scheduler.submit(turn)
    step(scheduler)
    scheduler.submit(other := by("other", 30))
    scheduler.remove(crowd[0])
    assert other in [share.turn for share in step(scheduler, END)]


def test_a_full_queue_makes_room_for_a_visitor_who_has_fewer_in_it():
    scheduler = make_scheduler(TWO, max_waiting=1)
    crowd = [by("crowd", 10 + i) for i in range(3)]
    for turn in crowd:
        scheduler.submit(turn)
    other, another = by("other", 30), by("crowd", 31)
    assert scheduler.crowded_out_by(another) is None
    with pytest.raises(BusyError):
        scheduler.submit(another)
    assert scheduler.crowded_out_by(other) is crowd[-1]
    scheduler.remove(crowd[-1])
    scheduler.submit(other)
    assert other in scheduler.waiting


def test_a_reply_that_is_half_spoken_leaves_the_queue_for_nobody():
    scheduler = make_scheduler(TWO, max_waiting=2)
    first, second, *spoken = (by("crowd", 10 + i) for i in range(4))
    for turn in spoken:
        turn.request = replace(turn.request, progress=Progress())
    for turn in (first, second, *spoken):
        scheduler.submit(turn)
    other = by("other", 30)
    assert scheduler.crowded_out_by(other) is second
    scheduler.remove(second)
    scheduler.submit(by("somebody", 31))
    assert scheduler.crowded_out_by(other) is None, "the crowd has one of its own in the queue"
