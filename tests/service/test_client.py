"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from moss_engine import open_service
from moss_engine.api.errors import (
    CheckpointError,
    ConfigError,
    ParameterError,
    ReplyFaultError,
    ShuttingDownError,
)
from moss_engine.api.events import Finished, FinishReason
from moss_engine.client import Client
from moss_engine.service.local import LocalService
from tests.fakes import FakeCodec
from tests.service.service_support import broken, served

has_timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no such clock")


@pytest.fixture(scope="module")
def client(tiny_checkpoint):
    with open_service(checkpoint=str(tiny_checkpoint), device="cpu") as client:
        yield client


def test_leaving_the_loop_stops_the_reply(client):
    events = client.events("One, two, three, four.")
    assert not isinstance(next(events), Finished)
    events.close()
    *_, end = client.events("Hello there.")
    assert end.reason is not FinishReason.CANCELLED
    assert client.stats().engine.running == 0
    assert len(client.say("Hello there.").samples)


async def test_it_speaks_where_an_event_loop_runs_as_in_a_notebook(client):
    assert len(client.say("Hello there.").samples)


@contextmanager
def ctrl_c_soon():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


@has_timer
def test_ctrl_c_ends_the_wait_and_the_reply(client):
    with ctrl_c_soon():
        client.say("One, two, three, four. " * 150)
    assert len(client.say("Hello there.").samples)
    assert client.stats().engine.running == 0


@has_timer
def test_ctrl_c_while_a_request_is_being_accepted(client, monkeypatch):
    """Which takes some turns of the loop to be taken back."""

    async def submit(request):
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)

    with monkeypatch.context() as patched:
        patched.setattr(LocalService, "submit", lambda self, request: submit(request))
        with ctrl_c_soon():
            client.say("Hello there.")
    assert len(client.say("Hello there.").samples)


def test_threads_are_each_answered_until_it_is_closed(tiny_checkpoint):
    with (
        ThreadPoolExecutor(4) as threads,
        open_service(checkpoint=tiny_checkpoint, device="cpu") as client,
    ):
        said = list(threads.map(client.say, ["Hello there."] * 4))
        assert len({len(speech.samples) for speech in said}) == 1 and len(said[0].samples)
        events = client.events("One, two, three, four. " * 150)
        next(events)
        waiting = threads.submit(list, events)
        client.close()
        with pytest.raises(ShuttingDownError, match="open another one"):
            waiting.result(60)


def test_a_closed_one_says_so_and_is_kept_by_nobody(tiny_checkpoint):
    with open_service(checkpoint=tiny_checkpoint, device="cpu") as client:
        events = client.events("Hello there.")
        next(events)
    with pytest.raises(ShuttingDownError, match="open another one"):
        client.say("Hello there.")
    events.close()
    kept = weakref.ref(client)
    del client, events
    gc.collect()
    assert kept() is None


def test_without_a_block_it_speaks_until_it_is_closed_or_the_program_ends(tiny_checkpoint):
    code = (
        "import sys; from moss_engine import open_service;"
        "service = open_service(checkpoint=sys.argv[1], device='cpu');"
        "next(service.events('Hello there.')); print(len(service.say('Hello there.').samples));"
        "sys.argv[2:] and (service.close(), service.close())"
    )
    for more in ([], ["close"]):
        program = [sys.executable, "-c", code, str(tiny_checkpoint), *more]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) > 0


def test_what_cannot_be_served_is_refused(client, tmp_path):
    with pytest.raises(ParameterError, match="no mode 'sing'; choose one of"):
        client.say("Hello.", mode="sing")
    with pytest.raises(ParameterError, match="nobody"):
        client.say("Hello.", voice="nobody")
    with pytest.raises(ParameterError, match="speed"):
        client.say("Hello.", speed=9.0)
    with pytest.raises(ConfigError, match=r"would hold a WAV file; let its name end in \.wav"):
        client.say("Hello.").save(tmp_path / "hello.mp3")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint.*--checkpoint"):
        open_service(checkpoint=tmp_path)
    with pytest.raises(ConfigError, match="There is no option port; leave it out"):
        open_service(port=7860)
    for wrong in ("4", None, 2.5, True):
        with pytest.raises(ConfigError, match=r"--max-sessions is .+; give a whole number from 1"):
            open_service(max_sessions=wrong)
    with pytest.raises(ConfigError, match="--drain-s is '1'; give a number from 0"):
        open_service(drain_s="1")


def test_a_reply_that_fails_raises_the_error_of_its_code(caplog):
    codec = FakeCodec()
    codec.before_push = broken(RuntimeError("secret"))
    with (
        served(codec=codec) as service,
        caplog.at_level(logging.CRITICAL),
        closing(Client(service)) as client,
        pytest.raises(ReplyFaultError, match="ask again") as failed,
    ):
        client.say("hello")
    assert failed.value.code == "E_REPLY"


def test_the_silence_before_the_built_in_voices_first_sound_is_told():
    with open_service(kv_rows=1024) as client:
        assert client.info.lead_samples == round(0.05 * client.info.sample_rate_hz)
