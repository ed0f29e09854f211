"""How replies end before their time, and that nothing is left behind then."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import BusyError, ContextError, EngineFaultError, ParameterError
from moss_engine.api.events import Accepted, Event, Failed, Finished, FinishReason, Sampled
from moss_engine.api.tokens import Row
from tests.engine.engine_support import Clock, assert_at_rest, make_engine, only, run, serve
from tests.fakes import LIMITS, SPOKEN, WARM, FakeRuntime, make_request, noisy, scripted


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_fail_one_request_only(value: float):
    def network(ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        text, audio = scripted(SPOKEN)(ids)
        if ids[0] == ord("!") and len(ids) > 6:
            audio[3] = value
        return text, audio

    engine = make_engine(FakeRuntime(network))
    good, bad, other = serve(engine, *(make_request(text) for text in ("good", "!bad", "other")))
    assert (
        isinstance(bad[-1], Failed)
        and bad[-1].code == "E_REPLY"
        and bad[-1].message.endswith("again.")
    )
    assert len(only(bad, Sampled)) == 2
    assert good[-1].rows == other[-1].rows == tuple(SPOKEN)
    assert_at_rest(engine)


def test_a_runtime_error_ends_every_open_request_and_the_engine(caplog: pytest.LogCaptureFixture):
    runtime = FakeRuntime(scripted(SPOKEN))
    engine = make_engine(runtime)
    requests = [make_request(str(i)) for i in range(6)]
    for request in requests:
        engine.submit(request)
    engine.step()

    def broken() -> None:
        raise RuntimeError("device lost: secret detail")

    runtime.before_forward = broken
    with caplog.at_level(logging.CRITICAL):
        events = run(engine)
    last = [events[request.request_id][-1] for request in requests]
    assert all(
        isinstance(event, Failed) and event.code == "E_ENGINE" and "restart" in event.message
        for event in last
    )
    assert not any("secret" in event.message for event in last)
    with pytest.raises(EngineFaultError, match="restart"):
        engine.submit(make_request())
    assert engine.stats().running == engine.stats().waiting == 0


def test_waiting_too_long_fails_with_a_sentence():
    clock = Clock()
    runtime = FakeRuntime(scripted([Row(ord("x"), 0)]), replace(LIMITS, max_batch=1))
    engine = make_engine(runtime, clock, wait_limit_s=5.0)
    first, second = make_request(max_rows=100), make_request()
    engine.submit(first), engine.submit(second)
    engine.step()
    clock.now_s += 5.1
    (failed,) = only(list(engine.step().events), Failed)
    assert (failed.request_id, failed.code) == (second.request_id, BusyError.code)
    assert engine.stats().running == 1


def test_refusals_leave_nothing_behind():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)), max_waiting=0)
    engine.submit(make_request(request_id="mine"))
    with pytest.raises(ParameterError, match="request_id"):
        engine.submit(make_request(request_id="mine"))
    with pytest.raises(ContextError):
        engine.submit(make_request("x" * 200))
    assert all(
        isinstance(engine.submit(make_request()), Accepted) for _ in range(LIMITS.max_batch - 1)
    )
    with pytest.raises(BusyError):
        engine.submit(make_request())
    assert len(run(engine)) == LIMITS.max_batch
    assert_at_rest(engine)


def test_a_superseded_turn_ends_as_cancelled():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)))
    turns = [make_request(session="mine") for _ in range(3)]
    engine.submit(turns[0])
    engine.step()
    engine.submit(turns[1]), engine.submit(turns[2])
    events = run(engine)
    assert [events[turn.request_id][-1].reason for turn in turns] == [
        FinishReason.STOP,
        FinishReason.CANCELLED,
        FinishReason.STOP,
    ]


CANCEL_AT = [
    "queued",
    "held",
    "mid-prefill",
    "first row",
    "decode",
    "segment seam",
    "finished",
    "paused",
]


@pytest.mark.parametrize("phase", CANCEL_AT)
def test_cancel_in_every_phase_gives_one_last_event_and_all_blocks_back(phase: str):
    engine = make_engine(FakeRuntime(noisy, replace(LIMITS, max_step_rows=8, max_batch=2)))
    request = make_request(
        "x" * 30 + "\nyy", mode="lines", channel=WARM, max_rows=12, session="mine"
    )
    if phase == "queued":
        for i in range(2):
            engine.submit(make_request(channel=WARM, max_rows=50, seed=i))
    if phase == "held":
        engine.submit(make_request(session="mine", channel=WARM, max_rows=50))
    engine.step()
    engine.submit(request)
    steps = {
        "queued": 2,
        "held": 2,
        "mid-prefill": 2,
        "first row": 4,
        "decode": 8,
        "segment seam": 16,
        "finished": 60,
        "paused": 6,
    }[phase]
    events = [event for _ in range(steps) for event in engine.step().events]
    if phase == "paused":
        engine.step({request.request_id})
    for _ in range(3):
        engine.cancel(request.request_id)
    events += engine.step({request.request_id} if phase == "paused" else ()).events
    mine = [event for event in events if event.request_id == request.request_id]
    assert len(only(mine, Finished)) == 1 and isinstance(mine[-1], Finished)
    assert (mine[-1].reason is FinishReason.CANCELLED) == (phase != "finished")
    assert len(mine[-1].rows) == len(only(mine, Sampled))
    engine.check_integrity()
    run(engine)
    assert_at_rest(engine)
    engine.submit(request)  # the same id can be used again
    assert run(engine)[request.request_id][-1].rows[: len(mine[-1].rows)] == mine[-1].rows


def test_cancel_while_the_runtime_runs_stops_at_the_step():
    runtime = FakeRuntime(noisy)
    engine = make_engine(runtime)
    request = make_request(channel=WARM)
    engine.submit(request)
    engine.step()
    runtime.before_forward = lambda: engine.cancel(request.request_id)
    assert engine.step().events == ()
    (event,) = engine.step().events
    assert event.reason is FinishReason.CANCELLED and event.num_rows == 1
    assert_at_rest(engine)


def test_cancelling_the_unknown_is_no_error():
    engine = make_engine(FakeRuntime(noisy))
    engine.cancel("nobody")
    assert engine.step().events == ()


@pytest.mark.parametrize("seed", range(6))
def test_random_cancels_leave_no_block_and_disturb_nobody(seed: int):
    """100 requests a seed, every third cancelled at a random moment, some of them twice: survivors
    get the very rows they get alone, everybody gets one terminal event, and no block is left."""
    chance = random.Random(seed)
    limits = replace(LIMITS, max_step_rows=chance.choice((4, 9, 32)), num_blocks=40)
    engine = make_engine(FakeRuntime(noisy, limits), max_waiting=100)
    requests = [
        make_request(
            f"{i % 7} asks" + "\nmore" * chance.randint(0, 2),
            session=f"s{i % 40}" if i % 5 else None,
            mode="lines",
            channel=WARM,
            max_rows=chance.randint(1, 20),
            seed=i,
        )
        for i in range(100)
    ]
    victims = set(chance.sample([r.request_id for r in requests], 33))
    events: dict[str, list[Event]] = {r.request_id: [] for r in requests}
    waiting = list(requests)
    while waiting or engine.stats().running:
        if waiting and chance.random() < 0.5:
            accepted = engine.submit(waiting.pop())
            events[accepted.request_id].append(accepted)
        if chance.random() < 0.3:
            victim = chance.choice(sorted(victims))
            for _ in range(chance.choice((1, 1, 1, 1, 2))):
                engine.cancel(victim)
        for event in engine.step().events:
            events[event.request_id].append(event)
        engine.check_integrity()
    assert_at_rest(engine)
    for request in requests:
        mine = events[request.request_id]
        assert (
            isinstance(mine[0], Accepted)
            and len(only(mine, Finished)) == 1
            and mine[-1] is only(mine, Finished)[0]
        )
    survivors = [
        r for r in requests if events[r.request_id][-1].reason is not FinishReason.CANCELLED
    ]
    assert len(survivors) > 20
    for request in chance.sample(survivors, 8):
        (alone,) = serve(make_engine(FakeRuntime(noisy)), request)
        assert events[request.request_id][-1].rows == alone[-1].rows


def test_left_over_blocks_are_counted_and_taken_back(caplog: pytest.LogCaptureFixture):
    engine = make_engine(FakeRuntime(noisy))
    engine._blocks.reserve("ghost", 10)
    engine._blocks.allocate("ghost", [1, 2, 3, 4, 5])
    with caplog.at_level(logging.CRITICAL):
        engine.step()
    assert engine.stats().leaked_blocks == 2
    assert engine.stats().blocks_used == 0


def test_a_request_that_can_never_run_crowds_nobody_out():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)), max_waiting=0)
    crowd = [replace(make_request(), visitor="crowd") for _ in range(LIMITS.max_batch)]
    for request in crowd:
        engine.submit(request)
    with pytest.raises(ContextError):
        engine.submit(replace(make_request(max_rows=LIMITS.max_seq_len), visitor="other"))
    events = run(engine)
    assert all(isinstance(events[request.request_id][-1], Finished) for request in crowd)
