"""The service's codec thread: whose sound is made when, which steps wait for it, and what a broken
codec does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from moss_engine.api.events import AudioChunk, Failed, FinishReason
from moss_engine.api.tokens import Row
from moss_engine.service.local import LocalService
from moss_engine.service.reply_stream import LocalReplyStream
from moss_engine.service.speech_worker import SpeechJob, SpeechWorker
from tests.fakes import PAD, SPOKEN, Clock, FakeCodec, FakeRuntime, scripted
from tests.service.service_support import (
    PATIENCE_S,
    ask,
    assert_well_formed,
    at_once,
    at_rest,
    hear,
    heard,
    listen_to,
    served,
    sound_of,
    talking,
    wait_until,
)


def test_a_codec_stream_goes_on_over_segments_and_is_flushed_once():
    with served(codec=FakeCodec(chunk_codes=5)) as service:
        events = hear(service, ask("a\nb\nc", mode="lines"))
        assert events[-1].rows == tuple(SPOKEN * 3)
        np.testing.assert_array_equal(heard(events), sound_of(events[-1].rows))
        assert [len(e.samples) // 960 for e in events if isinstance(e, AudioChunk)] == [5, 4]


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
        if any(self.bad & set(push.codes) for push in work):
            raise RuntimeError("secret")
        return super().push_together(work)


def backlog(service: LocalService, codec: Crowd, count: int) -> list[LocalReplyStream]:
    """Replies whose codes are all sampled while the codec stands still."""
    codec.go_on.clear()
    handles = [service.accept(ask()) for _ in range(count)]
    wait_until(lambda: at_rest(service))
    return handles


def test_a_faulty_reply_fails_alone_among_those_spoken_together(caplog: pytest.LogCaptureFixture):
    codec = Crowd(bad={13})
    runtime = FakeRuntime(
        lambda ids: scripted(
            [*SPOKEN[:3], Row(PAD, 13), *SPOKEN[3:]] if ids[0] == ord("!") else SPOKEN
        )(ids)
    )
    with served(runtime, codec) as service, caplog.at_level(logging.CRITICAL):
        codec.go_on.clear()
        texts = ["good", "! bad", "well", "fine"]
        handles = [service.accept(ask(text)) for text in texts]
        wait_until(lambda: at_rest(service))
        codec.go_on.set()
        ends = {text: listen_to(handle) for text, handle in zip(texts, handles, strict=True)}
    failed = ends.pop("! bad")
    assert_well_formed(failed)
    assert (failed[-1].code, "secret" in failed[-1].message) == ("E_REPLY", False)
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
        stopped = [events[-1].reason is FinishReason.CANCELLED for events in ends]
        assert stopped == [False, True, False, False]
        assert [len(heard(events)) // 960 for events in ends] == [3, 0, 3, 3]


def test_every_chunk_says_which_run_made_it_and_what_the_run_had_to_do():
    codec = Crowd()
    with served(codec=codec) as service:
        handles = backlog(service, codec, 20)
        codec.go_on.set()
        events = [event for handle in handles for event in listen_to(handle)]
    runs = [event.codec for event in events if isinstance(event, AudioChunk)]
    assert max(run.num_replies for run in runs) == 8 and all(run.ran_s > 0 for run in runs)
    for run in {id(run): run for run in runs}.values():  # told to everybody in it
        assert sum(other is run for other in runs) == run.num_replies


def make_job(clock: Clock, rate_hz: int = 24_000) -> SpeechJob:
    stream = LocalReplyStream(
        ask().request_id, clock=clock, cancel=lambda _: None, on_taken=lambda: None
    )
    return SpeechJob(stream, None, rate_hz)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_runs_dry_first_goes_first_and_a_first_sound_is_due_soon():
    def job(accepted_s: float, heard_s: float | None, made_s: float) -> SpeechJob:
        clock = Clock()
        clock.now_s = accepted_s
        made = make_job(clock, 100)
        if heard_s is not None:
            clock.now_s = heard_s
            made.deliver(np.zeros(round(100 * made_s), np.float32))
        return made

    new, newer = job(8, None, 0), job(9.9, None, 0)
    dry, nearly, soon, later = job(0, 1, 8.5), job(0, 5, 5), job(9, 9, 2), job(3, 9, 4)
    order = sorted([later, newer, nearly, soon, new, dry], key=lambda job: job.urgency(0.0))
    assert order == [new, dry, nearly, newer, soon, later]


def test_a_first_sound_waits_for_who_would_run_dry_but_not_for_ever(clock):
    playing, new = make_job(clock, 100), make_job(clock, 100)
    playing.deliver(np.zeros(25, np.float32))  # 0.25 s

    def first(spare_s: float) -> SpeechJob:
        return min(playing, new, key=lambda job: job.urgency(spare_s))

    clock.now_s += 0.1
    assert first(0.1) is new and first(0.2) is playing
    clock.now_s += 1.0
    assert first(0.2) is new


def test_sound_that_is_no_number_is_never_sent(caplog: pytest.LogCaptureFixture):
    codec = FakeCodec()
    stream = codec.open_stream()
    stream._samples = lambda count: np.full(count, np.nan, np.float32)
    codec.open_stream = lambda voice: stream
    with served(codec=codec) as service, caplog.at_level(logging.CRITICAL):
        events = hear(service, ask())
        assert isinstance(events[-1], Failed) and len(heard(events)) == 0


def worker_of(codec: FakeCodec, *, one_gpu: bool) -> SpeechWorker:
    return SpeechWorker(
        codec, finish=print, fail=print, on_first_sound=lambda: None, one_gpu=one_gpu
    )


def waiting(worker: SpeechWorker, clock: Clock, made_s: float, codes: int = 2) -> SpeechJob:
    """A reply with codes, whose listener has so much sound left."""
    job = make_job(clock)
    if made_s:
        job.deliver(np.zeros(round(24_000 * made_s), np.float32))
    for _ in range(codes):
        job.add_code(1)
        worker.notify(job)
    return job


def begun(worker: SpeechWorker, codec: FakeCodec, clock: Clock) -> SpeechJob:
    """A reply whose first sound takes two codes, of which none is there yet."""
    job = waiting(worker, clock, 0.0, codes=0)
    job.open(codec)
    job.missing_codes = 2
    return job


@pytest.mark.parametrize(("one_gpu", "runs"), [(True, [2, 1]), (False, [3])])
def test_on_a_gpu_a_first_sound_does_not_wait_for_what_nobody_needs_soon(clock, one_gpu, runs):
    codec = FakeCodec(max_together=4)
    worker = worker_of(codec, one_gpu=one_gpu)
    jobs = [waiting(worker, clock, made_s) for made_s in (5.0, 0.1, 0.0)]
    while worker._due:
        worker.run_once()
    assert codec.calls == runs and not any(job.codes for job in jobs)


@pytest.mark.parametrize(("listeners", "runs"), [(3, []), (40, [40])])
def test_while_a_first_sound_s_codes_come_only_what_is_urgent_is_made(clock, listeners, runs):
    codec = FakeCodec(max_together=64)
    worker = worker_of(codec, one_gpu=True)
    for _ in range(listeners):
        waiting(worker, clock, 5.0)
    newcomer = begun(worker, codec, clock)
    newcomer.add_code(1)
    worker.notify(newcomer)
    worker.run_once()
    assert codec.calls == runs  # with many due there is no time to lose
    newcomer.add_code(1)
    worker.notify(newcomer)
    worker.run_once()
    assert codec.calls[-1] == 1 and not newcomer.codes
    worker.run_once()
    assert sum(codec.calls) == listeners + 1  # who let it by


@pytest.mark.parametrize(
    ("pace_s", "taken"), [(0.01, 2), (0.2, 4)], ids=["soon followed", "not soon"]
)
def test_a_short_first_sound_waits_for_the_second_where_that_comes_late(clock, pace_s, taken):
    codec = FakeCodec(max_together=4)
    codec.short_codes = 2
    worker = worker_of(codec, one_gpu=True)
    job = begun(worker, codec, clock)
    for left in (1, 0, 1, 0) if taken == 2 else (1, 2, 3, 0):
        clock.now_s += pace_s
        job.add_code(1)
        worker.notify(job)
        worker.run_once()
        assert len(job.codes) == left


def test_a_short_first_sound_does_not_wait_for_what_no_longer_comes(clock):
    codec = FakeCodec(max_together=4)
    codec.short_codes = 2
    worker = worker_of(codec, one_gpu=True)
    job = begun(worker, codec, clock)
    for _ in range(2):
        clock.now_s += 0.1
        job.add_code(1)
        worker.notify(job)
    worker.run_once()
    assert codec.calls == []
    clock.now_s += 0.3
    worker.run_once()
    assert codec.calls == [1]


def test_a_long_run_may_come_again_behind_a_few_short_ones(clock):
    took_s = [0.09]
    codec = FakeCodec(max_together=4)
    codec.short_codes, codec.before_push = 2, lambda: time.sleep(took_s[0])
    worker = worker_of(codec, one_gpu=True)
    for _ in range(4):
        waiting(worker, clock, 0.1)
        worker.run_once()
        took_s[0] = 0.0
    newcomer = begun(worker, codec, clock)
    for _ in range(2):
        clock.now_s += 0.01
        newcomer.add_code(1)
        worker.notify(newcomer)
    worker.run_once()
    assert codec.calls == [1, 1, 1, 1] and len(newcomer.codes) == 2


Held = tuple[LocalService, threading.Event, list[bool]]


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Iterator[Held]:
    """A service whose codec waits in its first run until it may go on, and what the engine's thread
    was told each time that it asked whether to wait."""
    codec, go_on, answers = FakeCodec(), threading.Event(), []
    codec.before_push = lambda: go_on.wait(PATIENCE_S)
    one_gpu = getattr(request, "param", True)
    with served(talking(), codec, one_gpu=one_gpu, run_ahead_s=600.0) as service:
        is_awaited = service._worker.is_awaited

        def noted(ahead_s: dict[str, float]) -> bool:
            answers.append(is_awaited(ahead_s))
            return answers[-1]

        service._worker.is_awaited = noted
        yield service, go_on, answers
        go_on.set()


def test_no_step_runs_beside_the_only_reply_s_first_sound(held: Held):
    service, go_on, answers = held
    reply, batches = service.accept(ask()), service.engine.runtime.batches
    wait_until(lambda: answers and answers[-1])
    steps = len(batches)
    for _ in range(2):
        before = len(answers)
        service._engine_wake.set()
        wait_until(lambda before=before: len(answers) > before)
    assert answers[-1] and len(batches) == steps
    go_on.set()
    assert listen_to(reply)[-1].reason is FinishReason.STOP
    assert len(batches) > steps


def test_who_waits_for_a_step_gets_it_beside_another_s_first_sound(held: Held):
    service, go_on, answers = held
    first, batches = service.accept(ask()), service.engine.runtime.batches
    wait_until(lambda: answers and answers[-1])
    steps = len(batches)
    second = service.accept(ask())
    wait_until(lambda: len(batches) >= steps + 5)
    go_on.set()
    assert [listen_to(reply)[-1].reason for reply in (first, second)] == [FinishReason.STOP] * 2


@pytest.mark.parametrize("held", [False], indirect=True)
def test_on_a_cpu_steps_and_sound_go_on_together(held: Held):
    service, go_on, answers = held
    reply = service.accept(ask())
    wait_until(lambda: at_once(service.stats()).engine.blocks_cached > 0)
    go_on.set()
    assert listen_to(reply)[-1].reason is FinishReason.STOP
    assert answers == []
