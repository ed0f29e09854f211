"""Voices are made beside everything else."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import UnknownVoiceError
from moss_engine.api.events import Finished
from moss_engine.service.local import LocalService
from moss_engine.service.recordings import ClonedVoices
from tests.cluster.cluster_support import INFO
from tests.fakes import FakeCodec
from tests.service.service_support import PATIENCE_S, ask, served


class SlowCloner:
    """Makes no voice before it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.names: list[str] = []

    def add(self, name: str, wave: np.ndarray, rate_hz: int, codes: tuple[int, ...]) -> None:
        assert self.may.wait(PATIENCE_S)
        self.names.append(name)

    def remove(self, name: str) -> None:
        self.names.remove(name)


def test_no_refusal_tells_the_names_of_visitors_voices():
    codec = FakeCodec()

    class Cloner:
        def add(self, name: str, *_: object) -> None:
            codec.voices = (*codec.voices, name)

        def remove(self, name: str) -> None:
            codec.voices = tuple(other for other in codec.voices if other != name)

    async def play(service: LocalService) -> None:
        made = await service.add_voice("a", np.ones(9, np.float32), 24_000, (1,))
        assert (await service.submit(replace(ask(), voice=made.name))).request_id
        with pytest.raises(UnknownVoiceError) as told:
            await service.submit(replace(ask(), voice="nobody"))
        assert "plain" in str(told.value) and made.name not in str(told.value)

    with served(codec=codec) as core:
        service = LocalService(core, INFO, ClonedVoices(Cloner()))
        asyncio.run(play(service))
        service.close()


def test_a_request_does_not_wait_for_the_voices_of_others():
    async def play(service: LocalService, cloner: SlowCloner) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))  # on a small machine they are few
        wave = np.ones(9, np.float32)
        adding = [
            asyncio.ensure_future(service.add_voice(session_id, wave, 24_000, (1,)))
            for session_id in "ab"
        ]
        await asyncio.sleep(0)
        reply = await asyncio.wait_for(service.submit(ask()), PATIENCE_S / 2)
        last = [event async for event in reply.events()][-1]
        assert isinstance(last, Finished)
        assert not any(task.done() for task in adding)
        cloner.may.set()
        assert [voice.name for voice in await asyncio.gather(*adding)] == cloner.names
        await service.remove_voice("a")
        assert len(cloner.names) == 1

    cloner = SlowCloner()
    with served() as core:
        service = LocalService(core, INFO, ClonedVoices(cloner))
        try:
            asyncio.run(play(service, cloner))
        finally:
            cloner.may.set()
            service.close()
