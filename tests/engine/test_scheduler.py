"""Who runs in the next step, who is let in and who is left out: decisions over values, without a
runtime."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from moss_engine.api.errors import BusyError, ContextError
from moss_engine.api.request import Progress
from moss_engine.api.tokens import Row, text_rows
from moss_engine.engine.block_manager import BlockManager
from moss_engine.engine.scheduler import SPARE_S, Scheduler, Share
from moss_engine.engine.sequence import RequestState, Segment
from moss_engine.runtime.base import Limits
from tests.fakes import IDS, LIMITS, FakeDecoder, make_request

LETTER = Row(ord("a"), 0)
END = Row(IDS.im_end, 0)


def make_scheduler(limits: Limits = LIMITS, max_waiting: int = 10) -> Scheduler:
    return Scheduler(BlockManager(limits.num_blocks, limits.block_size), limits, max_waiting)


def make_turn(
    prompt_rows: int = 5,
    max_rows: int = 10,
    session: str | None = None,
    first: int = 6,
    visitor: str = "",
    *,
    moved: bool = False,
) -> RequestState:
    """A turn whose prompt differs from others' by its first id; one that was `moved` began
    elsewhere."""
    rows = text_rows([first, *range(6, 5 + prompt_rows)], IDS)
    progress = Progress() if moved else None
    request = replace(make_request(session=session), visitor=visitor, progress=progress)
    return RequestState(request, (Segment(tuple(rows), max_rows),), IDS, FakeDecoder(), 0.0)


def submit(scheduler: Scheduler, *turns: RequestState) -> None:
    for turn in turns:
        scheduler.submit(turn)


def step(
    scheduler: Scheduler, row: Row = LETTER, ahead_s: dict[str, float] | None = None
) -> list[Share]:
    """One step of an engine whose network always samples `row`."""
    shares = scheduler.schedule((), ahead_s)
    for share in shares:
        scheduler.advance(share)
        if share.samples:
            share.turn.append(row)
            if share.turn.sequence.finish_reason:
                scheduler.remove(share.turn)
    return shares


def planned(shares: list[Share]) -> list[tuple[RequestState, int]]:
    return [(share.turn, share.num_rows) for share in shares]


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_decodes():
    scheduler = make_scheduler(replace(LIMITS, max_step_rows=8))
    voice, long = make_turn(3, first=10), make_turn(20, first=11)
    scheduler.submit(voice)
    step(scheduler)
    scheduler.submit(long)
    plans = [planned(step(scheduler)) for _ in range(4)]
    assert plans == [[(voice, 1), (long, 4)]] * 4


def test_a_turn_starts_only_when_its_worst_case_is_reserved_and_then_never_waits():
    limits = replace(LIMITS, num_blocks=8, block_size=4)  # 32 rows
    scheduler = make_scheduler(limits)
    first, second = make_turn(4, 16, first=10), make_turn(4, 12, first=11)
    submit(scheduler, first, second)
    assert planned(step(scheduler)) == [(first, 4)], (
        "20 and 16 rows do not fit together, though 8 would for now"
    )
    for _ in range(14):
        assert planned(step(scheduler)) == [(first, 1)]
    step(scheduler)
    assert planned(step(scheduler)) == [(second, 4)]


def test_a_small_turn_does_not_overtake_a_large_one():
    limits = replace(LIMITS, num_blocks=8, block_size=4)
    scheduler = make_scheduler(limits)
    turns = [make_turn(4, 12, first=10), make_turn(4, 24, first=11), make_turn(4, 2, first=12)]
    submit(scheduler, *turns)
    started = []
    while len(started) < 3:
        started += [share.turn for share in step(scheduler) if share.turn not in started]
    assert started == turns


def test_what_can_never_run_is_refused_with_the_numbers():
    scheduler = make_scheduler()
    with pytest.raises(ContextError, match=r"190 rows.*11.*200"):
        scheduler.submit(make_turn(190, 11))
    small = make_scheduler(replace(LIMITS, num_blocks=4))
    with pytest.raises(ContextError, match="16 fit"):
        small.submit(make_turn(10, 7))
    small.submit(make_turn(10, 6))
    assert scheduler.waiting == () and len(small.waiting) == 1


def test_a_session_has_one_running_and_one_waiting_turn():
    scheduler = make_scheduler()
    turns = [make_turn(session="mine", first=10 + i) for i in range(4)]
    scheduler.submit(turns[0])
    step(scheduler)
    assert [scheduler.submit(turn) for turn in turns[1:]] == [None, turns[1], turns[2]]
    step(scheduler)
    assert scheduler.running == [turns[0]], "there is room, but the session is being served"
    step(scheduler, END)
    assert planned(step(scheduler)) == [(turns[3], 5)]


@pytest.mark.parametrize("seed", range(2))
def test_random_load_keeps_the_rules(seed: int):
    """Whatever comes and goes: limits hold, decodes are never left out, everybody is served in the
    end."""
    chance = random.Random(seed)
    limits = replace(LIMITS, max_batch=3, max_step_rows=9, num_blocks=20)
    scheduler = make_scheduler(limits, max_waiting=6)
    accepted: list[RequestState] = []
    for _ in range(300):
        if chance.random() < 0.3:
            turn = make_turn(
                chance.randint(1, 25),
                chance.randint(1, 20),
                f"s{chance.randint(0, 5)}",
                first=chance.randint(6, 9),
            )
            try:
                superseded = scheduler.submit(turn)
            except BusyError:
                assert len(scheduler.waiting) >= 6
            else:
                accepted.append(turn)
                if superseded:
                    accepted.remove(superseded)
        if chance.random() < 0.05 and accepted:
            gone = accepted.pop(chance.randrange(len(accepted)))
            scheduler.remove(gone)
        decoding = [turn for turn in scheduler.running if turn.sequence.num_pending == 1]
        shares = step(scheduler)
        assert sum(share.num_rows for share in shares) <= limits.max_step_rows
        assert len(scheduler.running) <= limits.max_batch
        assert [share.turn for share in shares[: len(decoding)]] == decoding
        sessions = [turn.request.session_id for turn in scheduler.running]
        assert len(set(sessions)) == len(sessions)
        scheduler.blocks.check_integrity()
        accepted = [
            turn for turn in accepted if turn in scheduler.running or turn in scheduler.waiting
        ]
    for _ in range(400):
        step(scheduler)
    assert not scheduler.running and not scheduler.waiting
    assert scheduler.blocks.num_used == scheduler.blocks.num_reserved == 0


def test_replies_that_began_elsewhere_go_first_and_of_those_the_one_with_the_least_sound_left():
    scheduler = make_scheduler(replace(LIMITS, max_batch=1))
    running, newcomer = make_turn(first=10), make_turn(first=11)
    patient, urgent = make_turn(first=12, moved=True), make_turn(first=13, moved=True)
    scheduler.submit(running)
    step(scheduler)
    submit(scheduler, newcomer, patient, urgent)
    ahead_s = {patient.owner: 4.0, urgent.owner: 0.5}
    order = []
    for turn in (running, urgent, patient, newcomer):
        while not scheduler.running:
            step(scheduler, ahead_s=ahead_s)
        order.append(scheduler.running[0])
        scheduler.remove(turn)
    assert order == [running, urgent, patient, newcomer]


TWO = replace(LIMITS, max_batch=2)


def readings(scheduler: Scheduler) -> list[RequestState]:
    turns = [make_turn(3, 60, first=10 + i) for i in range(2)]
    submit(scheduler, *turns)
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
    newcomers = [make_turn(first=first) for first in range(20, 26)]
    turns = [*readings(scheduler), *newcomers]
    submit(scheduler, *newcomers)
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


def crowd(count: int) -> list[RequestState]:
    """Turns of one visitor."""
    return [make_turn(first=10 + i, visitor="crowd") for i in range(count)]


def test_the_visitor_with_the_fewest_running_goes_first():
    scheduler = make_scheduler(TWO)
    many = crowd(4)
    submit(scheduler, *many)
    step(scheduler)
    scheduler.submit(other := make_turn(first=30, visitor="other"))
    scheduler.remove(many[0])
    assert other in [share.turn for share in step(scheduler, END)]


def test_a_full_queue_makes_room_for_a_visitor_who_has_fewer_in_it():
    scheduler = make_scheduler(TWO, max_waiting=1)
    *many, another = crowd(4)
    submit(scheduler, *many)
    other = make_turn(first=30, visitor="other")
    with pytest.raises(BusyError):
        scheduler.submit(another)
    assert scheduler.submit(other) is many[-1]
    assert scheduler.waiting == (*many[:-1], other)


def test_a_reply_that_is_half_spoken_leaves_the_queue_for_nobody():
    scheduler = make_scheduler(TWO, max_waiting=2)
    spoken = [make_turn(first=20 + i, visitor="crowd", moved=True) for i in range(2)]
    first, second = crowd(2)
    submit(scheduler, first, second, *spoken)
    assert scheduler.submit(make_turn(first=30, visitor="other")) is second
    with pytest.raises(BusyError):  # the crowd has one of its own in the queue
        scheduler.submit(make_turn(first=31, visitor="somebody"))


def test_a_reply_that_began_elsewhere_waits_for_nobody_who_runs():
    """All share the steps from then on; a new reply waits for somebody to be far ahead."""
    scheduler = make_scheduler(TWO)
    running = crowd(2)
    new, moved = make_turn(first=30, visitor="new"), make_turn(first=31, moved=True)
    submit(scheduler, *running)
    ahead_s = dict.fromkeys((turn.owner for turn in (*running, moved)), 0.5)
    step(scheduler, ahead_s=ahead_s)
    submit(scheduler, new, moved)
    served = Counter(
        share.turn.owner for _ in range(6) for share in step(scheduler, ahead_s=ahead_s)
    )
    assert scheduler.running == [*running, moved] and scheduler.waiting == (new,)
    assert min(served[turn.owner] for turn in (*running, moved)) >= 3


def test_a_full_queue_takes_a_reply_that_began_elsewhere_and_nobody_leaves_for_it():
    scheduler = make_scheduler(TWO, max_waiting=2)
    *many, another = crowd(5)
    submit(scheduler, *many)
    moved = make_turn(first=30, visitor="other", moved=True)
    assert scheduler.submit(moved) is None and moved in scheduler.waiting
    with pytest.raises(BusyError):
        scheduler.submit(another)
