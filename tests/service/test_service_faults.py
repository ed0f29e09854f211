"""The service when something ends it: errors of the network and the codec, drain, a stall, and
stops at any moment."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from contextlib import aclosing

import numpy as np
import pytest
import torch

from moss_engine.api.errors import EngineFaultError, ShuttingDownError
from moss_engine.api.events import Accepted, Event, Failed, Finished, FinishReason
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import FAULT, Engine
from moss_engine.service.core import ServiceCore
from tests.fakes import SPOKEN, WARM, FakeCodec, FakeProcessor, FakeRuntime, noisy, scripted
from tests.service.service_support import (
    PATIENCE_S,
    ask,
    assert_well_formed,
    at_rest,
    broken,
    heard,
    hold_at,
    listen,
    listen_to,
    reached,
    served,
    sound_of,
    take,
    talking,
    wait_until,
)


def test_a_runtime_error_ends_every_stream_and_turns_the_service_unready(
    caplog: pytest.LogCaptureFixture,
):
    runtime = talking()
    go_on = hold_at(runtime, 10)

    async def main(service: ServiceCore) -> list[list[Event]]:
        tasks = [asyncio.ensure_future(listen(service, ask())) for _ in range(6)]
        await reached(runtime, 10)
        runtime.before_forward = broken(RuntimeError("device lost"))
        go_on.set()
        return await asyncio.gather(*tasks)

    with served(runtime) as service, caplog.at_level(logging.CRITICAL):
        assert service.stats().ready
        for events in asyncio.run(main(service)):
            assert_well_formed(events)
            assert isinstance(events[-1], Failed) and "restart" in events[-1].message
        assert not service.stats().ready
        with pytest.raises(EngineFaultError):
            service.submit(ask())


def test_an_error_in_the_services_own_thread_leaves_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
):
    with served() as service, caplog.at_level(logging.CRITICAL):
        submit = service.engine.submit

        def submit_and_break(*asked: object) -> Accepted:
            accepted = submit(*asked)
            service.engine.step = broken(RuntimeError("bug"))
            return accepted

        service.engine.submit = submit_and_break
        handle = service.submit(ask())
        assert isinstance(listen_to(handle)[-1], Failed)
        assert not service.stats().ready
        service.engine.fault = "over"


def test_drain_lets_replies_end_and_refuses_new_ones():
    runtime = talking()
    runtime.before_forward = lambda: time.sleep(0.001)

    async def main(service: ServiceCore) -> list[list[Event]]:
        tasks = [asyncio.ensure_future(listen(service, ask())) for _ in range(6)]
        await asyncio.sleep(0.02)
        drained = asyncio.ensure_future(asyncio.to_thread(service.drain, PATIENCE_S))
        await asyncio.to_thread(wait_until, lambda: not service.stats().ready)
        with pytest.raises(ShuttingDownError):
            service.submit(ask())
        await drained
        return await asyncio.gather(*tasks)

    with served(runtime) as service:
        for events in asyncio.run(main(service)):
            assert events[-1].reason is FinishReason.STOP


def test_drain_stops_what_does_not_end_in_time():
    hold = threading.Event()
    runtime = talking()
    runtime.before_forward = lambda: hold.wait(PATIENCE_S)

    async def main(service: ServiceCore) -> list[list[Event]]:
        tasks = [asyncio.ensure_future(listen(service, ask())) for _ in range(6)]
        await asyncio.sleep(0.02)
        await asyncio.to_thread(
            service.drain, 0.05
        )  # the runtime hangs: the streams end all the same
        hold.set()
        return await asyncio.gather(*tasks)

    with served(runtime) as service:
        for events in asyncio.run(main(service)):
            assert_well_formed(events)
            assert events[-1].reason is FinishReason.CANCELLED


def test_a_stalled_runtime_turns_the_service_unready():
    now_s = [0.0]
    hold = threading.Event()
    runtime = FakeRuntime(scripted(SPOKEN))
    runtime.before_forward = lambda: hold.wait(PATIENCE_S)
    config = EngineConfig()
    values = {"samples_per_code": 960, "clock": lambda: now_s[0]}
    engine = Engine(runtime, FakeProcessor(), config, **values)
    service = ServiceCore(engine, FakeCodec(), config, clock=lambda: now_s[0])
    service.start()
    service.submit(ask())
    wait_until(lambda: len(runtime.batches) == 1)
    assert service.stats().ready
    now_s[0] += 11.0
    assert not service.stats().ready and service.stats().progress_age_s == 11.0
    hold.set()
    wait_until(lambda: service.stats().ready)
    service.close()


def test_cancel_fuzz_leaves_nothing_behind():
    """150 requests, a third stopped at random by five routes, some twice: one terminal event each,
    nothing left."""
    chance = random.Random(3)
    runtime = FakeRuntime(noisy)
    runtime.before_forward = lambda: time.sleep(0.0005)
    ends: list[type] = []

    async def visitor(service: ServiceCore, number: int) -> None:
        route = chance.choice(["stay"] * 10 + ["break", "task", "cancel", "session", "double"])
        request = ask(
            f"{number}",
            session=f"s{number}",
            channel=WARM,
            max_rows=chance.randint(1, 60),
            seed=number,
        )
        task = asyncio.ensure_future(listen(service, request))
        await asyncio.sleep(0)
        if route != "stay":
            await asyncio.sleep(chance.random() * 0.05)
        if route == "task":
            task.cancel()
        elif route == "break":
            task.cancel()
            async with aclosing(
                service.stream(ask(session=f"again{number}", channel=WARM))
            ) as events:
                await take(events, Accepted)
        elif route == "session":
            service.cancel_session(f"s{number}")
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

    async def main(service: ServiceCore) -> None:
        await asyncio.gather(*(visitor(service, n) for n in range(150)))

    with served(runtime, max_waiting=400) as service:
        asyncio.run(main(service))
        wait_until(lambda: at_rest(service))
        assert len(ends) > 100 and set(ends) == {Finished}


@pytest.mark.parametrize("max_together", [1, 16])
def test_every_reply_ends_and_no_other_begins(max_together: int):
    codec, calls = FakeCodec(max_together=max_together), []

    def fails_later() -> None:
        calls.append(1)
        if len(calls) > 4:
            raise torch.AcceleratorError("device-side assert")

    codec.before_push = fails_later
    with served(talking(), codec=codec, run_ahead_s=600.0) as service:

        async def crowd():
            return await asyncio.gather(
                *(listen(service, ask(max_rows=150, session=f"{i}")) for i in range(3))
            )

        for events in asyncio.run(asyncio.wait_for(crowd(), 30)):
            assert isinstance(events[-1], Failed) and events[-1].message == FAULT
            assert sum(isinstance(event, Failed) for event in events) == 1
        assert not service.stats().ready
        with pytest.raises(EngineFaultError, match="restart"):
            service.submit(ask())
