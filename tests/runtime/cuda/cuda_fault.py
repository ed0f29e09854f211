"""A service on a GPU that fails while replies are open, for a test.

    python -m tests.runtime.cuda.cuda_fault CHECKPOINT THREAD

The fault is met by the engine's thread, in its eighth step, or by the codec's, at its third chunk.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import torch

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.events import Event, Failed, Sampled
from moss_engine.api.request import ChannelSampling, Request, Sampling
from moss_engine.api.tokens import Row, text_rows
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import FAULT, Engine
from moss_engine.engine.sequence import Segment
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.make import make_runtime
from moss_engine.service.core import ServiceCore
from tests.fakes import FakeCodec, FakeDecoder, make_request


class Prompts:
    """Every prompt is the same text, after which speech begins."""

    def __init__(self, model: ModelConfig):
        self.ids = model.special

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        prompt = (*text_rows(range(20, 49), self.ids), Row(self.ids.sosp, 0))
        return (Segment(prompt, request.sampling.max_rows),)

    def speaks(self, request: Request) -> bool:
        return True

    def open_text_decoder(self) -> FakeDecoder:
        return FakeDecoder()


def break_device() -> None:
    """An index out of bounds, which the device finds."""
    torch.ones(1, device="cuda")[torch.full((1,), 9, device="cuda")].cpu()


async def main(folder: Path, thread: str) -> str:
    config = EngineConfig(
        checkpoint=folder, device="cuda", dtype="bfloat16", kv_rows=4096, run_ahead_s=600.0
    )
    model = ModelConfig.from_file(folder / "config.json")
    runtime = make_runtime(config)
    values = ChannelSampling(temperature=1.0, top_k=20, top_p=1.0, repetition_penalty=1.0)
    engine = Engine(runtime, Prompts(model), config, samples_per_code=960)
    codec = FakeCodec()
    service = ServiceCore(engine, codec, config)
    service.start()
    calls, step = Counter(), runtime.step

    def count(name: str, last: int) -> None:
        calls[name] += 1
        if name == thread and calls[name] == last:
            break_device()

    def fails_later(*given: object) -> object:
        count("engine", 8)
        return step(*given)

    runtime.step = fails_later
    codec.before_push = lambda: count("codec", 3)

    async def listen(number: int) -> list[Event]:
        sampling = Sampling(values, values, max_rows=250, min_rows=250, seed=number)
        request = Request(f"r{number}", f"s{number}", (), "speech", sampling)
        return [event async for event in service.stream(request)]

    streams = await asyncio.wait_for(asyncio.gather(*(listen(number) for number in range(3))), 60)
    for events in streams:
        assert any(isinstance(event, Sampled) for event in events), events
        assert isinstance(events[-1], Failed) and events[-1].message == FAULT, events[-1]
        assert sum(isinstance(event, Failed) for event in events) == 1
    assert not service.stats().ready
    try:
        service.submit(make_request())
    except EngineFaultError:
        service.close()
        return f"{len(streams)} closed, not ready, refused"
    raise AssertionError("a request was accepted after the fault")


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1]), sys.argv[2])), flush=True)
    os._exit(0)  # an ordinary end frees GPU memory, which a failed driver never lets happen
