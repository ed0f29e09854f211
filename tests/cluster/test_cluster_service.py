"""The service in front of replicas, as one process would have it: for those who leave at the wrong
moment, when replicas die, hang or are replaced, and how it is opened."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from moss_engine.api.errors import (
    BusyError,
    ConfigError,
    EngineFaultError,
    MissingPackageError,
    ParameterError,
    ReplicasLostError,
    ShuttingDownError,
)
from moss_engine.api.events import (
    AudioChunk,
    Event,
    Failed,
    Finished,
    FinishReason,
    Placed,
    Sampled,
    Started,
    Waiting,
)
from moss_engine.api.request import Request
from moss_engine.build import settled
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.replica import fingerprint
from moss_engine.cluster.replies import ReplyProgress
from moss_engine.cluster.service import ClusterService
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.service import replies
from tests.cluster.cluster_support import Cluster, assert_whole, clustered, home, placements
from tests.fakes import FakeCodec, FakeProcessor
from tests.service.service_support import (
    IDS,
    INFO,
    TALK,
    ask,
    at_once,
    at_rest,
    broken,
    hear,
    hold_at,
    listen,
    listen_to,
    take,
    wait_until,
)
from tests.ui.page_support import soon


def test_a_conversation_stays_with_its_replica():
    with clustered(3) as cluster:
        places = {
            session: {
                event.replica
                for _ in range(3)
                for event in hear(cluster.service, ask(session=session, max_rows=4))
                if isinstance(event, Placed)
            }
            for session in map(str, range(8))
        }
        assert all(len(names) == 1 for names in places.values())
        assert len(set.union(*places.values())) == 3
        stats = asyncio.run(cluster.service.stats()).cluster
        assert stats is not None and stats.num_placed == stats.num_preferred == 24


async def placed(
    cluster: Cluster, count: int
) -> tuple[list[threading.Event], asyncio.Future[list[list[Event]]]]:
    """So many replies that their replicas hold back: what lets each replica go on, and all that
    the listeners hear."""
    held = [hold_at(core.engine.runtime, 1) for core in cluster.cores.values()]
    asked = (listen(cluster.service, ask(session=f"s{i}")) for i in range(count))
    heard = asyncio.gather(*asked)
    assert await soon(lambda: cluster.service._replies.num_placed == count)
    return held, heard


def test_refusals_cross_with_their_sentence():
    with clustered() as cluster, pytest.raises(ParameterError, match="voice 'unknown'"):
        hear(cluster.service, replace(ask(), voice="unknown"))
    cramped = replace(INFO, max_sessions=0, max_waiting=0)
    with clustered(info=cramped) as full, pytest.raises(BusyError):
        hear(full.service, ask())


async def test_a_replica_makes_no_more_than_run_ahead_of_what_was_taken():
    with clustered() as cluster:
        reply, events, begin = await cluster.held(2.0)
        (made,) = cluster.cores[placements(begin)[0]]._replies.all()
        assert await soon(lambda: made.stream.num_rows >= 50)
        await asyncio.sleep(0.2)
        assert made.stream.num_rows < 80, "two seconds are 50 codes"
        reply.acknowledge(24_000 * 60)
        assert_whole(begin + [event async for event in events])


def test_news_of_a_replica_are_asked_for_again_when_they_have_ended(monkeypatch):
    monkeypatch.setattr("moss_engine.cluster.replica.NEWS_S", 0.01)
    with clustered(1) as cluster:
        events = hear(cluster.service, ask())
        assert events[-1].rows == tuple(TALK) and asyncio.run(cluster.service.stats()).ready


async def test_leaving_stopping_and_draining_end_the_reply_at_its_replica():
    with clustered() as cluster:
        reply, events, _ = await cluster.held()
        await take(events, Sampled, 5)
        reply.cancel()
        *_, last = [event async for event in events]
        assert last.reason is FinishReason.CANCELLED and len(last.rows) >= 5
        _, events, _ = await cluster.held()
        await events.aclose()
        _, events, _ = await cluster.held()
        await cluster.service.drain(0.0)
        with pytest.raises(ShuttingDownError):
            await cluster.service.submit(ask())
        assert isinstance([event async for event in events][-1], Finished)
        assert await soon(lambda: all(map(at_rest, cluster.cores.values())))


async def test_news_of_replies_travel_together_and_who_leaves_stops_his_own_alone():
    with clustered(1) as cluster:
        _, leaving, _ = await cluster.held()
        staying = (listen(cluster.service, ask(session=f"s{i}")) for i in range(3))
        heard = asyncio.gather(*staying)
        await leaving.aclose()
        for events in await heard:
            assert_whole(events)
        (core,) = cluster.cores.values()
        assert await soon(lambda: at_rest(core))
        assert cluster.remote("replica-0").most_together > 1


async def test_a_listener_who_vanishes_while_his_reply_is_held_back_stops_it():
    """He has taken everything, and nothing more is made for him."""
    with clustered(1, info=replace(INFO, lease_s=2.0)) as cluster:
        reply, events, _ = await cluster.held()
        await take(events, AudioChunk, 13)  # 1.04 s
        while reply.num_untaken:
            await anext(events)
        (core,) = cluster.cores.values()
        assert await soon(lambda: at_rest(core) and not cluster.service._replies.open.all())
        await events.aclose()


def test_a_listener_and_a_session_may_outlive_their_service():
    with clustered(1) as cluster:
        reply = asyncio.run(cluster.service.submit(ask()))
    assert isinstance(listen_to(reply)[-1], Finished)
    reply.cancel()
    asyncio.run(cluster.service.cancel_session("s"))
    with pytest.raises(ShuttingDownError, match="when it is back"):
        hear(cluster.service, ask(session="s"))


def test_without_ray_the_option_says_what_to_install(monkeypatch):
    monkeypatch.setattr("moss_engine.cluster.build.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'ray\[serve\]"):
        open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(replicas=2))


def test_a_cluster_is_started_or_joined():
    with pytest.raises(ConfigError, match="give one of them"):
        open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(replicas=2, ray_address="auto"))
    assert not ClusterConfig().is_wanted and ClusterConfig(replicas=1).is_wanted


def test_replicas_of_other_weights_or_numbers_are_told_apart(tmp_path):
    (tmp_path / "codec").mkdir()
    weights = tmp_path / "codec" / "weights.bin"
    weights.write_bytes(b"a" * 9000)
    before = fingerprint(INFO, [tmp_path])
    assert fingerprint(INFO, [tmp_path]) == before
    other = replace(INFO, runtime=replace(INFO.runtime, dtype="bfloat16"))
    assert fingerprint(other, [tmp_path]) != before
    weights.write_bytes(b"a" * 8999 + b"b")
    assert fingerprint(INFO, [tmp_path]) != before


def test_replicas_on_a_cpu_do_not_choose_their_number_format_themselves(monkeypatch):
    chosen = iter(["int8", torch.float32])
    monkeypatch.setattr("moss_engine.build.resolve_dtype", lambda config, device: next(chosen))
    config = EngineConfig(device="cpu")
    assert [settled(config).dtype, settled(config).dtype] == ["int8", "float32"]
    assert settled(replace(config, dtype="float32")).dtype == "float32"


@pytest.mark.parametrize(
    ("fault", "events"),
    [("kill_after", 0), ("kill_after", 1), ("kill_after", 50), ("hang_after", 20)],
)
def test_a_reply_survives_the_loss_of_its_replica(fault, events):
    with clustered() as cluster:
        first = home(cluster)
        remote = cluster.remote(first)
        setattr(remote, fault, remote.told + events)
        told = hear(cluster.service, ask(session="s"))
        assert_whole(told)
        assert placements(told)[-1] != first
        stats = asyncio.run(cluster.service.stats())
        assert stats.ready and stats.cluster is not None
        assert len(stats.cluster.replicas) == 1
        assert stats.cluster.num_resumes == (events > 0)
        remote.died.set()  # what holds the calls of one that hangs


async def test_an_upgrade_may_move_a_reply_as_often_as_it_takes_without_a_cut():
    """Every replica is taken out of the list in its turn."""
    with clustered(6) as cluster:
        reply, events, heard = await cluster.held()
        cluster.fleet.hidden.add(heard[-1].replica)
        async for event in events:
            heard.append(event)
            if isinstance(event, Placed) and event.num_resumes < 5:
                cluster.fleet.hidden.add(event.replica)
            elif isinstance(event, Placed):
                reply.acknowledge(10**9)
        assert_whole(heard)
        assert len(set(placements(heard))) == 6


def test_without_a_replica_a_reply_waits_and_says_so_in_the_end():
    with clustered(1, patience_s=0.5) as cluster:
        cluster.remote("replica-0").kill_after = 20
        events = hear(cluster.service, ask(session="s"))
        assert isinstance(events[-1], Failed) and events[-1].code == "E_REPLICAS"
        assert "try again" in events[-1].message
        with pytest.raises(ReplicasLostError, match="try again"):
            hear(cluster.service, ask(session="s"))
        assert not asyncio.run(cluster.service.stats()).ready


async def test_a_replica_that_comes_back_takes_what_waits():
    with clustered(1) as cluster:
        remote = cluster.remote("replica-0")
        remote.kill_after = 20
        listening = asyncio.ensure_future(listen(cluster.service, ask(session="s")))
        assert await soon(remote.died.is_set)
        remote.kill_after = None
        remote.died.clear()
        events = await listening
        assert_whole(events)
        assert sum(isinstance(event, Waiting) for event in events) == 1, "it says so once"


def test_nothing_is_told_at_a_time_before_what_was_told():
    """A replica may accept a reply late, which has said meanwhile that it waits, and die, and the
    next one be quick; sound and all else have an order each."""
    course, silence = ReplyProgress("request", IDS), np.zeros(10, np.float32)
    course.begin(1.0, resumes=False)
    waits_s = course.not_before(1.5)
    told = [course.take(Started("request", 0.2, 0, 0))]
    for begun_s, made_s in ((1.0, 0.3), (1.2, 0.05)):
        course.begin(begun_s, resumes=len(told) > 1)
        start = 10 * (len(told) - 1)
        told.append(course.take(AudioChunk("request", made_s, 0, silence, start, 100, 0.0)))
    assert [event.time_s for event in told if event] == [waits_s, 1.3, 1.3]


async def test_a_full_replica_takes_the_replies_of_a_dead_one_and_they_say_that_they_wait():
    with clustered(info=replace(INFO, max_waiting=0)) as cluster:
        held, heard = await placed(cluster, 8)
        dead, full = cluster.cores
        cluster.remote(dead).died.set()
        assert await soon(lambda: len(cluster.cores[full]._replies.all()) == 8)
        for go_on in held:
            go_on.set()
        replies = await heard
    for events in replies:
        assert_whole(events)
    moved = [events for events in replies if len(placements(events)) > 1]
    assert len(moved) == 4
    assert all(any(isinstance(event, Waiting) for event in events) for events in moved)


def test_a_request_that_kills_its_replicas_does_not_kill_them_all():
    with clustered(6) as cluster:
        for remote in cluster.fleet.remotes.values():
            remote.kill_after = 20
        events = hear(cluster.service, ask(session="s"))
        assert isinstance(events[-1], Failed) and events[-1].code == "E_REPLICAS"
        dead = sum(remote.died.is_set() for remote in cluster.fleet.remotes.values())
        assert dead == 4


def test_a_reply_leaves_its_line_with_the_page(caplog):
    with caplog.at_level(logging.INFO, replies.log.name), clustered(1) as cluster:
        hear(cluster.service, ask())
    lines = [json.loads(line.message) for line in caplog.records if line.name == replies.log.name]
    assert [(line["end"], line["rows"]) for line in lines] == [("stop", len(TALK))] * 2, (
        "one is its replica's"
    )


def test_a_replica_of_another_checkpoint_is_not_used(caplog):
    with caplog.at_level(logging.ERROR), clustered(2, fingerprints=("one", "two")) as cluster:
        events = [hear(cluster.service, ask(session=str(i), max_rows=2)) for i in range(6)]
        assert {name for reply in events for name in placements(reply)} == {"replica-0"}
    assert "replica-1 has another checkpoint" in caplog.text


def test_a_page_that_vanishes_holds_no_place():
    short = replace(INFO, lease_s=0.3)
    with clustered(1, info=short) as cluster:
        cluster.hold_back(1.0)
        (core,) = cluster.cores.values()
        cluster.remote("replica-0").server.note = lambda *_: None  # it hears nothing of its page
        asyncio.run(cluster.service.submit(ask(session="s")))
        wait_until(lambda: at_rest(core))
        assert at_once(core.stats()).engine.blocks_used == 0


def test_a_page_lets_in_as_many_as_replicas_are_starting_and_says_so_where_none_does():
    with clustered(3) as cluster:
        cluster.fleet.hidden |= cluster.cores.keys()
        early = ClusterService(cluster.fleet, start_s=0.3)
        with pytest.raises(ReplicasLostError, match="ready within"):
            early.start()
        early.close()
        cluster.fleet.hidden.remove("replica-2")
        early = ClusterService(cluster.fleet)
        early.start()
        assert asyncio.run(early.describe()).max_sessions == 3 * INFO.max_sessions
        early.close()
        cluster.fleet.closed = False


def test_a_recording_does_not_wait_for_a_replica_that_hangs():
    with clustered(1, hangs_s=1.0) as cluster:
        hung = cluster.remote("replica-0")
        hung.hangs = True
        with pytest.raises(ReplicasLostError, match="try again"):
            asyncio.run(cluster.service.encode(np.zeros(9, np.float32), 24_000))
        hung.died.set()  # what holds its calls


def test_a_failure_of_the_engine_is_the_loss_of_its_replica():
    with clustered() as cluster:
        first = home(cluster)
        runtime = cluster.cores[first].engine.runtime
        steps = len(runtime.batches)

        def fail() -> None:
            if len(runtime.batches) > steps + 30:
                raise RuntimeError("a broken runtime")

        runtime.before_forward = fail
        events = hear(cluster.service, ask(session="s"))
        assert_whole(events)
        assert isinstance(events[-1], Finished) and len(placements(events)) == 2


class OneVoiceIsBroken(FakeCodec):
    voices = ("plain", "broken")

    def open_stream(self, voice=None):
        if voice == "broken":
            raise RuntimeError("no memory for this voice")
        return super().open_stream(voice)


class OneTextIsBroken(FakeProcessor):
    def prepare(self, request: Request) -> Any:
        if "broken" in str(request.messages):
            raise KeyError("nobody thought of this")
        return super().prepare(request)


async def test_what_nobody_thought_of_costs_no_replica():
    cloner = FakeCodec()
    cloner.add = broken(KeyError("nobody thought of this"))
    with clustered(2, codec=OneVoiceIsBroken, cloner=cloner) as cluster:
        for core in cluster.cores.values():
            core.engine.processor = OneTextIsBroken()
        service = cluster.service
        reply, events, begin = await cluster.held()
        failed = await listen(service, replace(ask(session="s2"), voice="broken"))
        assert isinstance(failed[-1], Failed) and failed[-1].code == "E_REPLY"
        assert "ask again" in failed[-1].message
        recording = np.ones(9, np.float32), 24_000, (1,)
        for asked in (service.submit(ask("broken")), service.add_voice("s", *recording)):
            with pytest.raises(EngineFaultError, match=r"could not be \w+; "):
                await asked
        reply.acknowledge(10**9)
        whole = begin + [event async for event in events]
        assert_whole(whole)
        assert [len(placements(events)) for events in (failed, whole)] == [1, 1]
        assert len(await service.replicas()) == 2
