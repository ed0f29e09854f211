"""Many listeners on one GPU: each hears its own codes, whoever else is spoken in the same runs."""

from __future__ import annotations

import asyncio
import importlib.util

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")
if importlib.util.find_spec("bigvgan") is None:
    pytest.skip("bigvgan is not installed", allow_module_level=True)

from moss_engine.api.events import AudioChunk, Event, Finished, FinishReason  # noqa: E402
from moss_engine.api.tokens import spoken_codes  # noqa: E402
from scripts.bench.random_weights import fixed_requests, random_service, stand_in_codec  # noqa: E402
from tests.fixtures.make_tiny_codec import TINY_VOCODER  # noqa: E402
from tests.runtime.cuda.cuda_support import (  # noqa: E402
    DEVICE,
    SMALL,
    make_runtime,
    make_weights,
    relative_error,
)

LISTENERS = 2 if DEVICE.type == "cpu" else 12
CODES = 6
ROUNDING = (
    1e-4 if DEVICE.type == "cpu" else 2e-2
)  # half precision on a GPU: other numbers of windows round otherwise


def test_everyone_hears_their_own_codes():
    import torch

    runtime = make_runtime(make_weights())
    codec = stand_in_codec(DEVICE, 4, (2, 3), TINY_VOCODER)
    service = random_service(SMALL, runtime, codec, 9, CODES)
    make = fixed_requests(CODES, 0)

    async def listen(number: int) -> list[Event]:
        return [event async for event in service.stream(make(number, number))]

    async def crowd() -> list[list[Event]]:
        return await asyncio.gather(*(listen(number) for number in range(LISTENERS)))

    service.start()
    heard = asyncio.run(crowd())
    service.close()
    for events in heard:
        end = events[-1]
        assert isinstance(end, Finished) and end.reason is FinishReason.LENGTH
        wave = np.concatenate([event.samples for event in events if isinstance(event, AudioChunk)])
        stream = codec.open_stream()
        codes = spoken_codes(end.rows, SMALL.special)
        alone = np.concatenate([stream.push(codes), stream.flush()])
        assert len(wave) == len(alone) == 1920 * CODES
        assert relative_error(torch.from_numpy(wave), torch.from_numpy(alone)) < ROUNDING
