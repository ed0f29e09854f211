"""The service in front of replicas: as one process would have it, for those who leave at the wrong
moment, too; and how it is opened.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
import torch

from moss_engine.api.errors import (
    BusyError,
    ConfigError,
    MissingPackageError,
    ParameterError,
    ShuttingDownError,
)
from moss_engine.api.events import AudioChunk, Finished, FinishReason, Placed, Sampled
from moss_engine.build import settled
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.replica import fingerprint
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.options import from_values
from tests.cluster.cluster_support import INFO, Cluster, clustered, hear, listen
from tests.fakes import FakeCodec
from tests.service.service_support import (
    PATIENCE_S,
    TALK,
    ask,
    assert_well_formed,
    heard,
    hold_at,
    listen_to,
    sound_of,
    take,
    talking,
    wait_until,
)


def test_a_reply_is_what_one_process_would_have_said():
    with clustered() as cluster:
        events = hear(cluster.service, ask())
    assert_well_formed(events)
    assert [event.row for event in events if isinstance(event, Sampled)] == TALK
    assert heard(events).tobytes() == sound_of(tuple(TALK)).tobytes()
    assert events[-1].rows == tuple(TALK)
    runs = [event.codec for event in events if isinstance(event, AudioChunk)]
    assert all(run.num_replies == 1 and run.ran_s > 0 for run in runs)


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


def test_a_full_replica_leaves_a_conversation_to_another():
    async def all_of(cluster) -> list[str]:
        held = [hold_at(core.engine.runtime, 1) for core in cluster.cores.values()]
        asked = [
            asyncio.ensure_future(listen(cluster.service, ask(session=f"s{i}"))) for i in range(8)
        ]
        await asyncio.to_thread(wait_until, lambda: cluster.service._replies.num_placed == 8)
        for go_on in held:
            go_on.set()
        replies = await asyncio.gather(*asked)
        return [
            event.replica for events in replies for event in events if isinstance(event, Placed)
        ]

    with clustered() as cluster:
        names = asyncio.run(all_of(cluster))
    assert sorted(map(names.count, set(names))) == [4, 4], "four places each"


def test_refusals_cross_with_their_sentence():
    with clustered() as cluster, pytest.raises(ParameterError, match="voice 'unknown'"):
        hear(cluster.service, replace(ask(), voice="unknown"))
    cramped = replace(INFO, max_sessions=0, max_waiting=0)
    with clustered(info=cramped) as full, pytest.raises(BusyError):
        hear(full.service, ask())


def test_a_replica_makes_no_more_than_run_ahead_of_what_was_taken():
    async def hold_back(cluster) -> tuple[int, list]:
        reply = await cluster.service.submit(ask())
        events = reply.events(acknowledge=False)
        taken = [await anext(events)]
        while not isinstance(taken[-1], AudioChunk):
            taken.append(await anext(events))
        (made,) = cluster.cores[cluster.serving()]._replies.all()
        await asyncio.to_thread(wait_until, lambda: made.num_rows >= 50)
        await asyncio.sleep(0.2)
        num_rows = made.num_rows
        reply.acknowledge(24_000 * 60)
        rest = [event async for event in events]
        return num_rows, rest

    with clustered(runtime=talking) as cluster:
        cluster.hold_back(2.0)
        rows, rest = asyncio.run(hold_back(cluster))
        assert rows < 80, "two seconds are 50 codes"
        assert isinstance(rest[-1], Finished) and rest[-1].reason is FinishReason.STOP


def test_a_replica_is_watched_again_when_the_watch_has_ended(monkeypatch):
    monkeypatch.setattr("moss_engine.cluster.replica.WATCH_S", 0.01)
    with clustered(1) as cluster:
        events = hear(cluster.service, ask())
        assert events[-1].rows == tuple(TALK) and asyncio.run(cluster.service.stats()).ready


def test_leaving_and_stopping_end_the_reply_at_its_replica():
    async def stop(cluster) -> Finished:
        reply = await cluster.service.submit(ask())
        last = None
        async for event in reply.events():
            if isinstance(event, Sampled) and event.num_rows == 5:
                reply.cancel()
            last = event
        return last

    with clustered(codec=lambda: FakeCodec()) as cluster:
        cluster.hold_back(1.0)
        last = asyncio.run(stop(cluster))
        assert last.reason is FinishReason.CANCELLED and len(last.rows) >= 5

        async def leave() -> None:
            reply = await cluster.service.submit(ask())
            async for _ in reply.events():
                break

        asyncio.run(leave())
        wait_until(lambda: not any(core.stats().engine.running for core in cluster.cores.values()))


def test_draining_refuses_and_gives_every_reply_its_last_word():
    async def drain(cluster) -> list:
        reply = await cluster.service.submit(ask())
        events = reply.events(acknowledge=False)
        await anext(events)
        await cluster.service.drain(0.0)
        with pytest.raises(ShuttingDownError):
            await cluster.service.submit(ask())
        return [event async for event in events]

    with clustered() as cluster:
        assert isinstance(asyncio.run(drain(cluster))[-1], Finished)


def test_a_listener_who_vanishes_while_his_reply_is_held_back_stops_it():
    """He has taken everything, and nothing more is made for him."""

    async def vanish(cluster: Cluster) -> None:
        reply = await cluster.service.submit(ask())
        async with aclosing(reply.events(acknowledge=False)) as events:
            await take(events, AudioChunk, 13)  # 1.04 s
            while reply.num_untaken:
                await anext(events)
            while not (await cluster.service.stats()).outcomes:
                await asyncio.sleep(0.01)

    with clustered(1, info=replace(INFO, lease_s=2.0)) as cluster:
        cluster.hold_back(1.0)
        asyncio.run(asyncio.wait_for(vanish(cluster), PATIENCE_S))
        assert asyncio.run(cluster.service.stats()).outcomes == {"cancelled": 1}


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


def test_options_of_a_file_are_those_of_the_program(tmp_path):
    config = from_values(EngineConfig, {"checkpoint": str(tmp_path), "max_sessions": 7})
    assert (config.checkpoint, config.max_sessions) == (tmp_path, 7)
    with pytest.raises(ConfigError, match="no option max_session;"):
        from_values(EngineConfig, {"max_session": 7})


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
