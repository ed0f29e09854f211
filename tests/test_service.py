"""The service's two threads and its listeners, over a scripted runtime and a codec that can be slowed and broken."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from fakes import (
    CONFIG,
    IDS,
    LIMITS,
    PAD,
    SPOKEN,
    WARM,
    FakeCodec,
    FakeProcessor,
    FakeRuntime,
    make_request,
    noisy,
    scripted,
)

from moss_engine.config import EngineConfig
from moss_engine.engine import Engine
from moss_engine.errors import BusyError, ContextError, EngineFaultError, MossError, ParameterError, ShuttingDownError
from moss_engine.events import Accepted, AudioChunk, Event, Failed, Finished, FinishReason, Sampled, Started
from moss_engine.handle import Handle
from moss_engine.request import Request
from moss_engine.sampler import Sampler
from moss_engine.service import Service
from moss_engine.speaker import Speaker
from moss_engine.tokens import Row, spoken_codes

PATIENCE_S = 30.0  # how long a test waits for what must happen
TALK = [SPOKEN[2], *(Row(PAD, code % 30) for code in range(180)), Row(PAD, IDS.eosp), SPOKEN[-1]]
"""A reply of 180 codes, 7.2 s."""


@contextmanager
def served(runtime: FakeRuntime | None = None, codec: FakeCodec | None = None, **options: float) -> Iterator[Service]:
    """A running service; when the test is over every block must be back and both threads gone."""
    before = threading.active_count()
    config = EngineConfig(**options)
    engine = Engine(runtime or FakeRuntime(scripted(SPOKEN)), Sampler(CONFIG), FakeProcessor(), config,
                    samples_per_code=960)
    service = Service(engine, codec or FakeCodec(), config)
    service.start()
    try:
        yield service
        if not engine.fault:
            wait_until(lambda: service.stats().engine.running == 0)
            engine.check_integrity()
            stats = service.stats().engine
            assert (stats.blocks_used, stats.blocks_reserved, stats.leaked_blocks) == (0, 0, 0)
    finally:
        service.close()
    assert threading.active_count() == before
    assert engine.runtime.closed


def wait_until(condition) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what had to happen did not"
        time.sleep(0.002)


def talking(**limits: int) -> FakeRuntime:
    return FakeRuntime(scripted(TALK), replace(LIMITS, num_blocks=256, **limits))


def ask(text: str = "hello", **values) -> Request:
    return make_request(text, **{"max_rows": 190, **values})


async def listen(service: Service, request: Request) -> list[Event]:
    return [event async for event in service.stream(request)]


def listen_to(handle: Handle) -> list[Event]:
    async def rest() -> list[Event]:
        return [event async for event in handle.events()]
    return asyncio.run(rest())


def heard(events: list[Event]) -> np.ndarray:
    """All samples of a stream, which must follow each other without a gap."""
    chunks = [event for event in events if isinstance(event, AudioChunk)]
    position = 0
    for chunk in chunks:
        assert chunk.start_sample == position and len(chunk.samples) > 0
        position += len(chunk.samples)
    return np.concatenate([chunk.samples for chunk in chunks]) if chunks else np.zeros(0, np.float32)


def sound_of(rows: tuple[Row, ...]) -> np.ndarray:
    return np.repeat(np.array(spoken_codes(rows, IDS), np.float32) / 100, 960)


def assert_well_formed(events: list[Event]) -> None:
    assert isinstance(events[0], Accepted)
    assert [isinstance(event, Finished | Failed) for event in events] == [False] * (len(events) - 1) + [True]
    for chunks in (True, False):  # the two threads' events each in their own order
        times_s = [event.time_s for event in events if isinstance(event, AudioChunk) == chunks]
        assert times_s == sorted(times_s)


def test_what_is_heard_is_what_was_sampled():
    with served() as service:
        events = asyncio.run(listen(service, ask()))
        assert_well_formed(events)
        assert events[-1].rows == tuple(SPOKEN)
        np.testing.assert_array_equal(heard(events), sound_of(events[-1].rows))
        assert service.stats().outcomes == {"stop": 1}


def test_a_codec_stream_goes_on_over_segments_and_is_flushed_once():
    with served(codec=FakeCodec(chunk_codes=5)) as service:
        events = asyncio.run(listen(service, ask("a\nb\nc", mode="lines")))
        assert events[-1].rows == tuple(SPOKEN * 3)
        np.testing.assert_array_equal(heard(events), sound_of(events[-1].rows))
        assert [len(e.samples) // 960 for e in events if isinstance(e, AudioChunk)] == [5, 4]


def test_a_written_reply_opens_no_codec_stream():
    codec = FakeCodec()
    codec.open_stream = None
    with served(codec=codec) as service:
        events = asyncio.run(listen(service, ask(mode="text")))
        assert events[-1].reason is FinishReason.STOP and len(heard(events)) == 0


def test_many_listeners_on_several_event_loops():
    results: list[list[list[Event]]] = []
    with served(FakeRuntime(noisy), max_waiting=100) as service:
        async def crowd(seeds: range) -> list[list[Event]]:
            return await asyncio.gather(*(listen(service, ask(channel=WARM, max_rows=40, seed=s)) for s in seeds))

        loops = [threading.Thread(target=lambda n=n: results.append(asyncio.run(crowd(range(n, n + 8)))))
                 for n in (0, 10, 20)]
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


def test_the_same_seed_sounds_the_same_alone_and_in_a_crowd():
    with served(FakeRuntime(noisy), max_waiting=100) as service:
        alone = asyncio.run(listen(service, ask(channel=WARM, max_rows=60, seed=5)))

        async def crowd() -> list[list[Event]]:
            requests = [ask(f"{s}", channel=WARM, max_rows=30, seed=s) for s in range(9)]
            return await asyncio.gather(*(listen(service, r) for r in requests),
                                        listen(service, ask(channel=WARM, max_rows=60, seed=5)))
        *_, together = asyncio.run(crowd())
    np.testing.assert_array_equal(heard(alone), heard(together))


@pytest.mark.parametrize(("request_", "error"), [
    (ask("x" * 300), ContextError), (replace(ask(), voice="nobody"), ParameterError)])
def test_a_refused_request_raises_and_starts_nothing(request_: Request, error: type[MossError]):
    with served() as service:
        with pytest.raises(error):
            asyncio.run(listen(service, request_))
        assert service.engine.runtime.batches == []
        assert service.stats().outcomes == {"refused": 1}


def test_an_id_in_use_and_a_full_queue_are_refused_at_once():
    hold = threading.Event()
    runtime = FakeRuntime(scripted(SPOKEN), replace(LIMITS, max_batch=1))
    runtime.before_forward = lambda: hold.wait(PATIENCE_S)
    with served(runtime, max_waiting=1) as service:
        first = ask()
        handles = [service.submit(first)]
        wait_until(lambda: service.stats().engine.running == 1)
        handles.append(service.submit(ask()))
        with pytest.raises(BusyError):
            service.submit(ask())
        with pytest.raises(ParameterError, match="request_id"):
            service.submit(first)
        hold.set()
        assert [listen_to(handle)[-1].reason for handle in handles] == [FinishReason.STOP] * 2
        assert service.stats().outcomes == {"refused": 2, "stop": 2}


async def take(events, kind: type, count: int = 1) -> None:
    """Take events until `count` of a kind have come."""
    while count:
        count -= isinstance(await anext(events), kind)


@pytest.mark.parametrize("kind", [Accepted, Started, Sampled, AudioChunk])
def test_leaving_a_stream_stops_the_reply(kind: type):
    async def leave(service: Service) -> None:
        async with aclosing(service.stream(ask())) as events:
            await take(events, kind)

    with served(talking()) as service:
        asyncio.run(leave(service))
        wait_until(lambda: service.stats().outcomes == {"cancelled": 1})


def test_cancelling_the_task_that_listens_stops_the_reply():
    async def main(service: Service) -> None:
        task = asyncio.ensure_future(listen(service, ask()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    runtime = talking()
    runtime.before_forward = lambda: time.sleep(0.002)
    with served(runtime) as service:
        asyncio.run(main(service))
        wait_until(lambda: service.stats().outcomes == {"cancelled": 1})


def test_cancel_and_cancel_session_end_the_stream_with_its_rows():
    async def main(service: Service) -> list[list[Event]]:
        requests = [ask(session="mine"), ask(session="other"), ask(session="other")]
        tasks = [asyncio.ensure_future(listen(service, request)) for request in requests]
        await asyncio.sleep(0.05)
        service.cancel(requests[0].request_id)
        service.cancel_session("other")
        service.cancel_session("other")
        service.cancel("unknown")
        return await asyncio.gather(*tasks)

    runtime = talking()
    runtime.before_forward = lambda: time.sleep(0.005)
    with served(runtime) as service:
        for events in asyncio.run(main(service)):
            assert_well_formed(events)
            assert events[-1].reason is FinishReason.CANCELLED
            assert len(events[-1].rows) == sum(isinstance(event, Sampled) for event in events)
        assert service.stats().outcomes == {"cancelled": 3}


def test_a_session_that_is_stopped_while_its_request_is_being_accepted_stays_silent():
    with served(talking()) as service:
        submit = service.engine.submit
        service.engine.submit = lambda request: (service.cancel_session("mine"), submit(request))[1]
        events = listen_to(service.submit(ask(session="mine")))
        assert_well_formed(events)
        assert events[-1].reason is FinishReason.CANCELLED and events[-1].num_rows < len(TALK)


def test_stop_drops_sound_that_was_not_made_yet():
    codec = FakeCodec()
    slow = threading.Event()
    codec.before_push = lambda: slow.wait(PATIENCE_S)
    with served(talking(), codec) as service:
        handle = service.submit(ask())
        wait_until(lambda: service.stats().engine.running == 0)  # the engine is done, the codec has everything to do
        service.cancel(handle.request_id)
        slow.set()
        events = listen_to(handle)
        assert events[-1].reason is FinishReason.CANCELLED
        assert len(heard(events)) == 0


def test_a_slow_codec_never_holds_up_the_engine():
    codec = FakeCodec()
    go = threading.Event()
    codec.before_push = lambda: go.wait(PATIENCE_S)
    with served(codec=codec) as service:
        handles = [service.submit(ask()) for _ in range(4)]
        wait_until(lambda: service.stats().engine.blocks_cached > 0 and service.stats().engine.running == 0)
        go.set()
        assert [listen_to(handle)[-1].reason for handle in handles] == [FinishReason.STOP] * 4


def test_a_listener_who_does_not_take_bounds_what_is_made():
    run_ahead_s = 2.0
    with served(talking(), run_ahead_s=run_ahead_s, lease_s=600) as service:
        handle = service.submit(ask())
        wait_until(lambda: handle.ahead_s > run_ahead_s)
        batches = len(service.engine.runtime.batches)
        time.sleep(0.1)
        assert len(service.engine.runtime.batches) <= batches + 2
        assert handle.ahead_s <= run_ahead_s + 0.04 * 2
        assert service.stats().engine.running == 1, "the paused reply keeps its place and its blocks"
        events = listen_to(handle)
        np.testing.assert_array_equal(heard(events), sound_of(tuple(TALK)))
        assert events[-1].reason is FinishReason.STOP


def test_a_written_reply_is_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("moss_engine.service.MAX_UNTAKEN_EVENTS", 20)
    with served(FakeRuntime(scripted([Row(ord("x"), 0)])), lease_s=600) as service:
        handle = service.submit(ask(mode="text"))
        wait_until(lambda: handle.num_untaken > 20)
        time.sleep(0.05)
        assert handle.num_untaken <= 20 + 2 * 2
        assert listen_to(handle)[-1].num_rows == 190


def test_others_run_while_one_listener_sleeps():
    with served(talking(), run_ahead_s=1.0, lease_s=600) as service:
        sleeper = service.submit(ask())
        wait_until(lambda: sleeper.ahead_s > 1.0)
        events = asyncio.run(listen(service, ask()))
        assert events[-1].rows == tuple(TALK)
        sleeper.cancel()
        wait_until(lambda: service.stats().outcomes == {"stop": 1, "cancelled": 1})


def test_a_listener_who_is_gone_loses_the_reply():
    with served(talking(), run_ahead_s=1.0, lease_s=1.0) as service:
        service.submit(ask())
        wait_until(lambda: service.stats().outcomes == {"cancelled": 1})


def test_a_listener_whose_loop_was_closed_loses_the_reply():
    runtime = talking()
    runtime.before_forward = lambda: time.sleep(0.005)
    with served(runtime, run_ahead_s=1.0, lease_s=1.0) as service:
        handle = service.submit(ask())
        loop = asyncio.new_event_loop()
        events = handle.events()
        loop.run_until_complete(take(events, Started))
        loop.close()
        wait_until(lambda: service.stats().outcomes == {"cancelled": 1})


def test_waiting_in_the_queue_is_not_absence():
    hold = threading.Event()
    runtime = FakeRuntime(scripted(SPOKEN), replace(LIMITS, max_batch=1))
    runtime.before_forward = lambda: hold.wait(PATIENCE_S)

    async def main(service: Service) -> list[Event]:
        second = asyncio.ensure_future(listen(service, ask()))
        await asyncio.sleep(1.6)
        hold.set()
        return await second

    with served(runtime, lease_s=1.0) as service:
        first = service.submit(ask())
        wait_until(lambda: service.stats().engine.running == 1)
        events = asyncio.run(main(service))
        assert events[-1].reason is FinishReason.STOP
        first.cancel()


def broken(error: Exception):
    def fail() -> None:
        raise error
    return fail


def test_a_codec_error_ends_that_reply_only(caplog: pytest.LogCaptureFixture):
    codec = FakeCodec()
    with served(codec=codec) as service, caplog.at_level(logging.CRITICAL):
        codec.before_push = broken(RuntimeError("secret"))
        failed = asyncio.run(listen(service, ask()))
        codec.before_push = lambda: None
        fine = asyncio.run(listen(service, ask()))
        assert_well_formed(failed)
        assert (failed[-1].code, "secret" in failed[-1].message) == ("E_ENGINE", False)
        assert fine[-1].reason is FinishReason.STOP
        assert service.stats().outcomes == {"failed": 1, "stop": 1}


class Crowd(FakeCodec):
    """Runs up to eight streams at once, and none of them where one has a code from `bad`."""

    def __init__(self, bad: set[int] = frozenset()):
        super().__init__(max_together=8)
        self.bad = bad
        self.running = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def push_together(self, work):
        self.running.set()
        self.go_on.wait(PATIENCE_S)
        if any(self.bad & set(codes) for _, codes in work):
            raise RuntimeError("secret")
        return super().push_together(work)


def backlog(service: Service, codec: Crowd, count: int) -> list[Handle]:
    """Replies whose codes are all sampled while the codec stands still."""
    codec.go_on.clear()
    handles = [service.submit(ask()) for _ in range(count)]
    wait_until(lambda: service.stats().engine.running == service.stats().engine.waiting == 0)
    return handles


def test_replies_are_spoken_together_up_to_the_codecs_bound():
    codec = Crowd()
    with served(codec=codec) as service:
        handles = backlog(service, codec, 20)
        codec.go_on.set()
        for handle in handles:
            events = listen_to(handle)
            np.testing.assert_array_equal(heard(events), sound_of(events[-1].rows))
            assert events[-1].reason is FinishReason.STOP
    assert max(codec.calls) == 8


def test_a_faulty_reply_fails_alone_among_those_spoken_together(caplog: pytest.LogCaptureFixture):
    codec = Crowd(bad={13})
    runtime = FakeRuntime(lambda ids: scripted([*SPOKEN[:3], Row(PAD, 13), *SPOKEN[3:]] if ids[0] == ord("!")
                                               else SPOKEN)(ids))
    with served(runtime, codec) as service, caplog.at_level(logging.CRITICAL):
        codec.go_on.clear()
        texts = ["good", "! bad", "well", "fine"]
        handles = [service.submit(ask(text)) for text in texts]
        wait_until(lambda: service.stats().engine.running == 0)
        codec.go_on.set()
        ends = {text: listen_to(handle) for text, handle in zip(texts, handles, strict=True)}
    failed = ends.pop("! bad")
    assert isinstance(failed[-1], Failed) and "secret" not in failed[-1].message
    for events in ends.values():
        assert events[-1].reason is FinishReason.STOP
        np.testing.assert_array_equal(heard(events), sound_of(tuple(SPOKEN)))


def test_a_reply_that_is_stopped_while_it_is_spoken_with_others_stays_silent():
    codec = Crowd()
    with served(codec=codec) as service:
        handles = backlog(service, codec, 4)
        wait_until(codec.running.is_set)
        handles[1].cancel()
        codec.go_on.set()
        ends = [listen_to(handle) for handle in handles]
        assert [events[-1].reason is FinishReason.CANCELLED for events in ends] == [False, True, False, False]
        assert [len(heard(events)) // 960 for events in ends] == [3, 0, 3, 3]


def test_a_reply_whose_codes_were_taken_meanwhile_is_left_alone():
    codec, ends = FakeCodec(), []
    speaker = Speaker(codec, end=lambda *end: ends.append(end), cancel=lambda _: None, clock=time.monotonic)
    handle = Handle(ask(), speaks=True, sample_rate_hz=24_000, samples_per_code=960, clock=time.monotonic,
                    cancel=lambda _: None, on_taken=lambda: None)
    handle.add_code(3)
    speaker.look_at(handle)
    handle.take_codes(1)
    speaker.turn()
    assert codec.calls == [] and ends == []


def test_who_runs_dry_goes_first_then_who_has_heard_nothing_then_the_others():
    def handle(opened_s: float, heard_s: float | None, made_s: float) -> Handle:
        now_s = [opened_s]
        made = Handle(ask(), speaks=True, sample_rate_hz=100, samples_per_code=10, clock=lambda: now_s[0],
                      cancel=lambda _: None, on_taken=lambda: None)
        if heard_s is not None:
            now_s[0] = heard_s
            made.put_samples(np.zeros(round(100 * made_s), np.float32))
        return made

    now_s = 10.0
    dry, nearly = handle(0, 1, 8.5), handle(0, 5, 5.1)
    new, newer = handle(8, None, 0), handle(9.9, None, 0)
    soon, later = handle(9, 9, 2), handle(3, 9, 4)
    order = sorted([later, newer, nearly, soon, new, dry], key=lambda h: h.urgency(now_s))
    assert order == [dry, nearly, new, newer, soon, later]


def test_sound_that_is_no_number_is_never_sent(caplog: pytest.LogCaptureFixture):
    codec = FakeCodec()
    stream = codec.open_stream()
    stream._samples = lambda count: np.full(count, np.nan, np.float32)
    codec.open_stream = lambda voice: stream
    with served(codec=codec) as service, caplog.at_level(logging.CRITICAL):
        events = asyncio.run(listen(service, ask()))
        assert isinstance(events[-1], Failed) and len(heard(events)) == 0


def test_a_runtime_error_ends_every_stream_and_turns_the_service_unready(caplog: pytest.LogCaptureFixture):
    runtime = talking()
    runtime.before_forward = lambda: time.sleep(0.005)

    async def main(service: Service) -> list[list[Event]]:
        tasks = [asyncio.ensure_future(listen(service, ask())) for _ in range(6)]
        await asyncio.sleep(0.05)
        runtime.before_forward = broken(RuntimeError("device lost"))
        return await asyncio.gather(*tasks)

    with served(runtime) as service, caplog.at_level(logging.CRITICAL):
        assert service.stats().ready
        for events in asyncio.run(main(service)):
            assert_well_formed(events)
            assert isinstance(events[-1], Failed) and "restart" in events[-1].message
        assert not service.stats().ready
        with pytest.raises(EngineFaultError):
            service.submit(ask())


def test_an_error_in_the_services_own_thread_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture):
    with served() as service, caplog.at_level(logging.CRITICAL):
        service.engine.step = broken(RuntimeError("bug"))
        handle = service.submit(ask())
        assert isinstance(listen_to(handle)[-1], Failed)
        assert not service.stats().ready
        service.engine.fault = "over"


def test_drain_lets_replies_end_and_refuses_new_ones():
    runtime = talking()
    runtime.before_forward = lambda: time.sleep(0.001)

    async def main(service: Service) -> list[list[Event]]:
        tasks = [asyncio.ensure_future(listen(service, ask())) for _ in range(6)]
        await asyncio.sleep(0.02)
        drained = asyncio.ensure_future(asyncio.to_thread(service.drain, PATIENCE_S))
        await asyncio.sleep(0.02)
        assert not service.stats().ready
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

    async def main(service: Service) -> list[list[Event]]:
        tasks = [asyncio.ensure_future(listen(service, ask())) for _ in range(6)]
        await asyncio.sleep(0.02)
        await asyncio.to_thread(service.drain, 0.05)  # the runtime hangs: the streams end all the same
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
    engine = Engine(runtime, Sampler(CONFIG), FakeProcessor(), config, samples_per_code=960)
    service = Service(engine, FakeCodec(), config, clock=lambda: now_s[0])
    service.start()
    service.submit(ask())
    wait_until(lambda: len(runtime.batches) == 1)
    assert service.stats().ready
    now_s[0] += 11.0
    assert not service.stats().ready and service.stats().progress_age_s == 11.0
    hold.set()
    wait_until(lambda: service.stats().ready)
    service.close()


def test_the_first_sound_of_a_newcomer_comes_before_the_later_sound_of_others():
    order: list[tuple[str, int]] = []

    class Watching(FakeCodec):
        def open_stream(self, voice=None):
            stream = super().open_stream(voice)
            push = stream.push
            name = threading.current_thread().name + str(len(order))
            stream.push = lambda codes: (order.append((name, len(codes))), time.sleep(0.004), push(codes))[-1]
            return stream

    with served(talking(), Watching(), run_ahead_s=100) as service:
        first = service.submit(ask())
        wait_until(lambda: len(order) > 2)
        second = service.submit(ask())
        wait_until(lambda: len({name for name, _ in order}) == 2)
        position = next(i for i, (name, _) in enumerate(order) if name != order[0][0])
        assert position < len(TALK) // 10, "the newcomer did not wait for the whole of the first reply"
        assert max(count for _, count in order) <= 10, "a codec call is at most 0.4 s of sound"
        first.cancel(), second.cancel()


def test_cancel_fuzz_leaves_nothing_behind():
    """150 requests, a third stopped at random by five routes, some twice: one terminal event each, nothing left."""
    chance = random.Random(3)
    runtime = FakeRuntime(noisy)
    runtime.before_forward = lambda: time.sleep(0.0005)
    ends: list[type] = []

    async def visitor(service: Service, number: int) -> None:
        route = chance.choice(["stay"] * 10 + ["break", "task", "cancel", "session", "double"])
        request = ask(f"{number}", session=f"s{number}", channel=WARM, max_rows=chance.randint(1, 60), seed=number)
        task = asyncio.ensure_future(listen(service, request))
        await asyncio.sleep(0)
        if route != "stay":
            await asyncio.sleep(chance.random() * 0.05)
        if route == "task":
            task.cancel()
        elif route == "break":
            task.cancel()
            async with aclosing(service.stream(ask(session=f"again{number}", channel=WARM))) as events:
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

    async def main(service: Service) -> None:
        await asyncio.gather(*(visitor(service, n) for n in range(150)))

    with served(runtime, max_waiting=400) as service:
        asyncio.run(main(service))
        wait_until(lambda: service.stats().engine.running == service.stats().engine.waiting == 0)
        assert len(ends) > 100 and set(ends) == {Finished}
