"""A GPU that fails under the codec: every open reply ends with one sentence, and the service is not
ready any more."""

from __future__ import annotations

import asyncio

import pytest
import torch

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.events import Failed
from moss_engine.engine.engine import FAULT
from tests.fakes import FakeCodec
from tests.service.service_support import ask, listen, served, talking


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


def test_another_failure_is_that_replys_alone():
    codec = FakeCodec()
    codec.before_push = lambda: (_ for _ in ()).throw(RuntimeError("a strange code"))
    with served(codec=codec) as service:
        events = asyncio.run(listen(service, ask()))
        assert isinstance(events[-1], Failed) and events[-1].message != FAULT
        assert service.stats().ready
