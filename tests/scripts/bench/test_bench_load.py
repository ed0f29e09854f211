"""Load on a service: closed and open loops give every listener what it asked for, and count what
came late."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from moss_engine.api.errors import MossError
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.service.core import ServiceCore
from scripts.bench.common.load import FixedSize, load_table, run_arrivals, run_load
from scripts.bench.service.streams import (
    Level,
    Silent,
    StreamSetup,
    measure_levels,
    random_codec,
    random_service,
    requests,
)
from tests.fakes import CONFIG, LIMITS, FakeCodec, FakeRuntime, noisy
from tests.fixtures.make_tiny_codec import TINY_VOCODER

SETUP = StreamSetup(prompt_rows=9, codes=30, chunk_codes=(3, 6))


def fake_runtime() -> FakeRuntime:
    return FakeRuntime(noisy, replace(LIMITS, num_blocks=256, max_batch=8))


def fake_service(codec: FakeCodec | None = None, **options) -> ServiceCore:
    config, codec = EngineConfig(max_waiting=50), codec or FakeCodec(6)
    engine = Engine(
        fake_runtime(),
        FixedSize(CONFIG.special, Silent, 9, 30),
        config,
        samples_per_code=960,
        **options,
    )
    return ServiceCore(engine, codec, config, **options)


def service_whose_codec_takes(seconds: float) -> ServiceCore:
    """For every push, by a clock that nothing else moves: what comes late does not hang on the
    machine."""
    codec, now_s = FakeCodec(6), [0.0]

    def pass_time() -> None:
        now_s[0] += seconds

    codec.before_push = pass_time
    return fake_service(codec, clock=lambda: now_s[0])


def test_a_closed_loop_answers_every_request_in_full():
    service = service_whose_codec_takes(
        0.005
    )  # all replies together take less than a chunk's 0.24 s
    service.start()
    load = asyncio.run(run_load(service.stream, requests(SETUP, 0), 3, 7))
    service.close()
    assert (load.concurrency, load.replies, load.late_chunks, load.without_underrun) == (
        3,
        7,
        0,
        1.0,
    )
    assert load.figures["num_rows"]["min"] == load.figures["num_rows"]["p99"] == 30
    assert load.figures["num_prompt_rows"]["p50"] == 9
    assert load.worst_rtf == pytest.approx(
        max(load.figures["rtf"][p] for p in ("min", "p50", "p99")), rel=0.5
    )
    assert "3 at a time, 7 replies" in load_table(load)


def test_a_listener_who_hears_replies_out_asks_again_when_they_are_over():
    service = fake_service()
    service.start()
    load = asyncio.run(run_load(service.stream, requests(SETUP, 0), 2, 4, to_the_end=True))
    service.close()
    assert load.wall_s > 2 * 1.2 * 0.95  # two replies of 30 codes, one after another


def test_arrivals_do_not_wait_for_answers():
    service = fake_service()
    service.start()
    load = asyncio.run(run_arrivals(service.stream, requests(SETUP, 0), 100.0, 20))
    service.close()
    assert load.replies == 20 and load.arrivals_per_s == 100.0 and load.concurrency > 8
    assert "100 arrivals a second" in load_table(load)


def test_chunks_that_come_late_are_counted():
    service = service_whose_codec_takes(0.3)
    service.start()
    load = asyncio.run(run_load(service.stream, requests(SETUP, 0), 1, 1))
    service.close()
    assert load.late_chunks == 4 and load.without_underrun == 0 and load.worst_rtf > 1


def test_a_reply_that_fails_is_no_measurement():
    codec = FakeCodec(6)
    service = fake_service(codec)
    codec.before_push = lambda: (_ for _ in ()).throw(MossError("broken"))
    service.start()
    with pytest.raises(MossError, match="broken"):
        asyncio.run(run_load(service.stream, requests(SETUP, 0), 2, 2))
    service.close()


def test_levels_run_through_a_codec_of_the_real_rate():
    codec = random_codec(SETUP, torch.device("cpu"), TINY_VOCODER)
    assert (codec.num_codes, codec.code_rate_hz) == (16_384, 12.5)
    service = random_service(CONFIG, fake_runtime(), codec, replace(SETUP, codes=8))
    loads = list(
        measure_levels(
            service,
            replace(SETUP, codes=8),
            [Level(2, listeners=2), Level(2, arrivals_per_s=9)],
            0.1,
        )
    )
    assert [load.arrivals_per_s for load in loads] == [None, 9]
    assert all(load.figures["audio_s"]["min"] == 8 / 12.5 for load in loads)
