"""The service's listeners: what they hear, how a reply ends that nobody takes, what is refused, and
what happens when something ends the service."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest
import torch

from moss_engine.api.errors import BusyError, EngineFaultError, ParameterError, ShuttingDownError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Failed,
    Finished,
    FinishReason,
    Sampled,
    Started,
)
from moss_engine.api.tokens import Row
from moss_engine.engine.engine import FAULT
from moss_engine.service.local import LocalService
from tests.fakes import LIMITS, SPOKEN, WARM, Clock, FakeCodec, FakeRuntime, noisy, scripted
from tests.service.service_support import (
    PATIENCE_S,
    TALK,
    ask,
    assert_well_formed,
    at_once,
    at_rest,
    broken,
    hear,
    heard,
    hold_at,
    listen,
    listen_to,
    rest,
    served,
    sound_of,
    take,
    talking,
    wait_until,
)
from tests.ui.page_support import soon


def test_a_written_reply_opens_no_codec_stream():
    codec = FakeCodec()
    codec.open_stream = None
    with served(codec=codec) as service:
        events = hear(service, ask(mode="text"))
        assert events[-1].reason is FinishReason.STOP and len(heard(events)) == 0


def test_many_listeners_on_several_event_loops():
    results: list[list[list[Event]]] = []
    with served(FakeRuntime(noisy), max_waiting=100) as service:

        async def crowd(seeds: range) -> list[list[Event]]:
            return await asyncio.gather(
                *(listen(service, ask(channel=WARM, max_rows=40, seed=s)) for s in seeds)
            )

        loops = [
            threading.Thread(target=lambda n=n: results.append(asyncio.run(crowd(range(n, n + 8)))))
            for n in (0, 10, 20)
        ]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join(PATIENCE_S)
    streams = [events for result in results for events in result]
    assert len(streams) == 24
    for events in streams:
        assert_well_formed(events)
        assert len({event.request_id for event in events}) == 1
        np.testing.assert_array_equal(heard(events), sound_of(events[-1].rows))


def test_an_id_in_use_and_a_full_queue_are_refused_at_once():
    runtime = FakeRuntime(scripted(SPOKEN), replace(LIMITS, max_batch=1))
    hold = hold_at(runtime, 1)
    with served(runtime, max_waiting=1) as service:
        first = ask()
        handles = [service.accept(first)]
        wait_until(lambda: at_once(service.stats()).engine.running == 1)
        handles.append(service.accept(ask()))
        with pytest.raises(BusyError):
            service.accept(ask())
        with pytest.raises(ParameterError, match="request_id"):
            service.accept(first)
        hold.set()
        assert [listen_to(handle)[-1].reason for handle in handles] == [FinishReason.STOP] * 2


async def test_who_leaves_before_their_text_is_read_costs_nothing():
    hold = threading.Event()
    with served() as service:
        service.accept_thread.submit(hold.wait, PATIENCE_S)  # the text of another one
        asking = [asyncio.ensure_future(service.submit(ask())) for _ in range(8)]
        await asyncio.sleep(0)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        hold.set()
        service.accept_thread.submit(int).result()  # behind all of them
        assert service.engine.runtime.batches == []


@pytest.mark.parametrize("kind", [Accepted, Started, Sampled, AudioChunk])
async def test_leaving_a_stream_stops_the_reply(kind: type):
    with served(talking(), run_ahead_s=1.0, lease_s=600) as service:
        async with aclosing(service.accept(ask()).events()) as events:
            await take(events, kind)
        wait_until(lambda: at_rest(service))
        assert len(service.engine.runtime.batches) < len(TALK), "it was made to its end"


def test_cancel_and_cancel_session_end_the_stream_with_its_rows():
    runtime = talking()
    go_on = hold_at(runtime, 10)
    with served(runtime) as service:
        replies = [service.accept(ask(session=name)) for name in ("mine", "other", "other")]
        wait_until(lambda: len(runtime.batches) >= 10)
        service.cancel(replies[0].request_id)
        for _ in range(2):
            at_once(service.cancel_session("other"))
        service.cancel("unknown")
        go_on.set()
        for events in map(listen_to, replies):
            assert_well_formed(events)
            assert events[-1].reason is FinishReason.CANCELLED
            assert len(events[-1].rows) == sum(isinstance(event, Sampled) for event in events)


def test_a_session_that_is_stopped_while_its_request_is_being_accepted_stays_silent():
    with served(talking()) as service:
        submit = service.engine.submit

        def submit_and_stop(*asked: object) -> Accepted:
            at_once(service.cancel_session("mine"))
            return submit(*asked)

        service.engine.submit = submit_and_stop
        events = hear(service, ask(session="mine"))
        assert_well_formed(events)
        assert events[-1].reason is FinishReason.CANCELLED and events[-1].num_rows < len(TALK)


def test_a_listener_who_does_not_take_bounds_what_is_made():
    run_ahead_s = 2.0
    with served(talking(), run_ahead_s=run_ahead_s, lease_s=600) as service:
        handle, batches = service.accept(ask()), service.engine.runtime.batches
        most = round(run_ahead_s / 0.04)  # rows of 40 ms
        wait_until(lambda: len(batches) > most)
        time.sleep(0.3)
        assert len(batches) <= most + 4
        assert at_once(service.stats()).engine.running == 1, (
            "the paused reply keeps its place and its blocks"
        )
        events = listen_to(handle)
        np.testing.assert_array_equal(heard(events), sound_of(tuple(TALK)))
        assert events[-1].reason is FinishReason.STOP
        assert max(getattr(event, "held_s", 0.0) for event in events) > 0.05, (
            "the pause counts as work"
        )


def test_a_written_reply_is_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moss_engine.service.replies.MAX_UNTAKEN_EVENTS", 20)
    with served(FakeRuntime(scripted([Row(ord("x"), 0)])), lease_s=600) as service:
        handle = service.accept(ask(mode="text"))
        wait_until(lambda: handle.num_untaken > 20)
        time.sleep(0.05)
        assert handle.num_untaken <= 20 + 2 * 2
        assert listen_to(handle)[-1].num_rows == 190


async def test_a_listener_who_vanished_while_the_reply_was_held_back_loses_it():
    """It had taken everything, so that nothing waits for it."""
    with served(talking(), run_ahead_s=1.0, lease_s=1.0) as service:
        reply = service.accept(ask())
        async with aclosing(reply.events()) as events:
            await take(events, AudioChunk, 13)  # 1.04 s
            while reply.num_untaken:
                await anext(events)
            wait_until(lambda: at_rest(service))
            assert len(service.engine.runtime.batches) < len(TALK), "it was made to its end"


async def test_waiting_in_the_queue_is_not_absence():
    runtime = FakeRuntime(scripted(SPOKEN), replace(LIMITS, max_batch=1))
    hold = hold_at(runtime, 1)
    with served(runtime, lease_s=1.0) as service:
        first = service.accept(ask())
        wait_until(lambda: at_once(service.stats()).engine.running == 1)
        second = asyncio.ensure_future(listen(service, ask()))
        await asyncio.sleep(1.6)
        hold.set()
        assert (await second)[-1].reason is FinishReason.STOP
        first.cancel()


class CodecOnALostGpu(FakeCodec):
    """The GPU fails in its fifth run."""

    def push_together(self, work):
        if len(self.calls) > 4:
            raise torch.AcceleratorError("device-side assert")
        return super().push_together(work)


@pytest.mark.parametrize(
    "fault", ["in the runtime", "in the engine's thread", "on the GPU alone", "on the GPU together"]
)
async def test_every_reply_ends_and_no_other_begins(fault: str, caplog: pytest.LogCaptureFixture):
    runtime, codec = talking(), FakeCodec()
    if "GPU" in fault:
        codec = CodecOnALostGpu(max_together=16 if "together" in fault else 1)
    go_on = hold_at(runtime, 10)
    with served(runtime, codec, run_ahead_s=600.0) as service, caplog.at_level(logging.CRITICAL):
        assert at_once(service.stats()).ready
        crowd = asyncio.gather(*(listen(service, ask(session=f"{i}")) for i in range(6)))
        assert await soon(lambda: len(runtime.batches) >= 10 or service.engine.fault)
        if fault == "in the runtime":
            runtime.before_forward = broken(RuntimeError("device lost"))
        elif fault == "in the engine's thread":
            service.engine.step = broken(RuntimeError("bug"))
        go_on.set()
        for events in await asyncio.wait_for(crowd, PATIENCE_S):
            assert_well_formed(events)
            assert isinstance(events[-1], Failed) and events[-1].message == FAULT
        assert not at_once(service.stats()).ready
        with pytest.raises(EngineFaultError, match="restart"):
            service.accept(ask())


@pytest.mark.parametrize(
    ("timeout_s", "end"), [(PATIENCE_S, FinishReason.STOP), (0.05, FinishReason.CANCELLED)]
)
async def test_drain_lets_replies_end_in_time_stops_the_rest_and_refuses_new_ones(timeout_s, end):
    runtime = talking()
    go_on = hold_at(runtime, 10)
    with served(runtime) as service:
        hearing = [asyncio.ensure_future(rest(service.accept(ask()))) for _ in range(6)]
        assert await soon(lambda: len(runtime.batches) >= 10)
        drained = asyncio.ensure_future(service.drain(timeout_s))
        assert await soon(lambda: not at_once(service.stats()).ready)
        with pytest.raises(ShuttingDownError):
            service.accept(ask())
        if end is FinishReason.STOP:
            go_on.set()
        await drained  # where the runtime hangs, too
        go_on.set()
        for events in await asyncio.gather(*hearing):
            assert_well_formed(events)
            assert events[-1].reason is end


def test_a_stalled_runtime_turns_the_service_unready():
    clock, runtime = Clock(), FakeRuntime(scripted(SPOKEN))
    hold = hold_at(runtime, 1)
    with served(runtime, clock=clock) as service:
        service.accept(ask())
        wait_until(lambda: len(runtime.batches) == 1)
        assert at_once(service.stats()).ready
        clock.now_s += 11.0
        stats = at_once(service.stats())
        assert not stats.ready and stats.progress_age_s == 11.0
        hold.set()
        wait_until(lambda: at_once(service.stats()).ready)


async def test_cancel_fuzz_leaves_nothing_behind():
    """150 requests, a third stopped at random by five routes, some twice: one terminal event each,
    nothing left."""
    chance = random.Random(3)
    runtime = FakeRuntime(noisy)
    runtime.before_forward = lambda: time.sleep(0.0005)
    ends: list[type] = []

    async def visitor(service: LocalService, number: int) -> None:
        route = chance.choice(["stay"] * 10 + ["break", "task", "cancel", "session", "double"])
        rows, session = chance.randint(1, 60), f"s{number}"
        request = ask(f"{number}", session=session, channel=WARM, max_rows=rows, seed=number)
        task = asyncio.ensure_future(listen(service, request))
        await asyncio.sleep(0)
        if route != "stay":
            await asyncio.sleep(chance.random() * 0.05)
        if route == "task":
            task.cancel()
        elif route == "break":
            task.cancel()
            again = service.accept(ask(session=f"again{number}", channel=WARM))
            async with aclosing(again.events()) as events:
                await take(events, Accepted)
        elif route == "session":
            await service.cancel_session(session)
        elif route in ("cancel", "double"):
            for _ in range(1 + (route == "double")):
                service.cancel(request.request_id)
        try:
            events = await task
        except asyncio.CancelledError:
            return
        assert_well_formed(events)
        ends.append(type(events[-1]))
        if events[-1].reason is not FinishReason.CANCELLED:
            np.testing.assert_array_equal(heard(events), sound_of(events[-1].rows))

    with served(runtime, max_waiting=400) as service:
        await asyncio.gather(*(visitor(service, n) for n in range(150)))
        wait_until(lambda: at_rest(service))
        assert len(ends) > 100 and set(ends) == {Finished}
