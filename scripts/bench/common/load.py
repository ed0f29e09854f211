"""Load on a service, in closed loops or by random arrivals, and what each listener met.

Used by `scripts.bench`. A listener plays from the first chunk on; a chunk is late when everything
before it was played.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.api.events import Event, Failed
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row, SpecialIds
from moss_engine.engine.sequence import Segment, TextDecoder

PERCENTILES = (50, 90, 95, 99)
Ask = Callable[[Request], AsyncGenerator[Event, None]]
"""A request -> the events of its reply: `ServiceCore.stream`, or that of another service."""
MakeRequest = Callable[[int, int], Request]
"""Listener's number, reply's number -> the request; no two may have the same id."""


class FixedSize:
    """A processor of random prompts of `num_prompt_rows` rows, replies of `num_codes` codes."""

    def __init__(
        self,
        ids: SpecialIds,
        open_text_decoder: Callable[[], TextDecoder],
        num_prompt_rows: int,
        num_codes: int,
    ):
        self.ids = ids
        self.open_text_decoder = open_text_decoder
        self._size = num_prompt_rows, num_codes

    def speaks(self, request: Request) -> bool:
        return True

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        num_rows, num_codes = self._size
        chance = random.Random(request.request_id)
        codes = (
            Row(self.ids.modality_pad, chance.randrange(self.ids.num_codes))
            for _ in range(num_rows - 1)
        )
        return (Segment((*codes, Row(self.ids.sosp, self.ids.audio_pad)), num_codes),)


@dataclass(frozen=True)
class Load:
    """One level of load; `figures` holds min and percentiles of every figure over its replies.

    A closed loop has `concurrency` listeners, who ask again when a reply was made, or, with
    `hears_out`, when it was heard; an open one has `arrivals_per_s` on average, and `concurrency`
    is the most that were open at a time. `rows_per_s` and `audio_s_per_s` count all listeners
    together, over the time from the first request to the last sample. `without_underrun` is the
    share of replies without a late chunk, `late_chunks` the sum of those chunks.
    """

    concurrency: int
    replies: int
    wall_s: float
    rows_per_s: float
    audio_s_per_s: float
    without_underrun: float
    figures: dict[str, dict[str, float]]
    late_chunks: int
    worst_rtf: float
    arrivals_per_s: float | None = None
    hears_out: bool = False


@dataclass
class _Listeners:
    """Who listens now, and what was heard so far."""

    ask: Ask
    make_request: MakeRequest
    metrics: list[RequestMetrics] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    async def hear(self, listener: int, number: int, *, to_the_end: bool) -> None:
        """One reply; `to_the_end` waits until it would have been played out."""
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        timeline = Timeline()
        async for event in self.ask(self.make_request(listener, number)):
            timeline = fold(timeline, event)
            if isinstance(event, Failed):
                raise MossError(event.message)
        self.metrics.append(measure(timeline))
        if to_the_end:
            await asyncio.sleep(self.metrics[-1].buffered_s)
        self.num_open -= 1


async def run_load(
    ask: Ask,
    make_request: MakeRequest,
    concurrency: int,
    replies: int,
    *,
    to_the_end: bool = False,
    ramp_s: float = 0.0,
) -> Load:
    """A closed loop: `replies` in all, `concurrency` at a time.

    A listener asks again when the last reply was made, or with `to_the_end` when it was heard; the
    first requests are spread over `ramp_s`. Raises a MossError if a reply fails: then nothing was
    measured.
    """
    numbers = iter(range(replies))
    listeners = _Listeners(ask, make_request)

    async def listener(index: int) -> None:
        await asyncio.sleep(ramp_s * index / concurrency)
        for number in numbers:
            await listeners.hear(index, number, to_the_end=to_the_end)

    start_s = time.perf_counter()
    await asyncio.gather(*(listener(index) for index in range(concurrency)))
    load = _load(listeners.metrics, concurrency, time.perf_counter() - start_s)
    return dataclasses.replace(load, hears_out=to_the_end)


async def run_arrivals(
    ask: Ask, make_request: MakeRequest, arrivals_per_s: float, replies: int, seed: int = 0
) -> Load:
    """An open loop: requests arrive by chance (Poisson), whether or not the others are answered.

    Raises a MossError if a reply fails.
    """
    listeners = _Listeners(ask, make_request)
    start_s = time.perf_counter()
    tasks = []
    async for number in _arrivals(arrivals_per_s, replies, seed):
        tasks.append(asyncio.ensure_future(listeners.hear(number, number, to_the_end=True)))
    await asyncio.gather(*tasks)
    load = _load(listeners.metrics, listeners.most_open, time.perf_counter() - start_s)
    return dataclasses.replace(load, arrivals_per_s=arrivals_per_s, hears_out=True)


async def _arrivals(per_s: float, count: int, seed: int) -> AsyncIterator[int]:
    chance, due_s = random.Random(seed), time.perf_counter()
    for number in range(count):
        due_s += chance.expovariate(per_s)
        await asyncio.sleep(due_s - time.perf_counter())
        yield number


def _load(metrics: list[RequestMetrics], concurrency: int, wall_s: float) -> Load:
    return Load(
        concurrency=concurrency,
        replies=len(metrics),
        wall_s=wall_s,
        rows_per_s=sum(m.num_rows for m in metrics) / wall_s,
        audio_s_per_s=sum(m.audio_s for m in metrics) / wall_s,
        without_underrun=sum(m.underruns == 0 for m in metrics) / len(metrics),
        figures=summarise(metrics),
        late_chunks=sum(m.underruns for m in metrics),
        worst_rtf=max((m.rtf for m in metrics if m.rtf is not None), default=0.0),
    )


def summarise(metrics: list[RequestMetrics]) -> dict[str, dict[str, float]]:
    """Minimum and percentiles (linear between ranks) of each figure over `n` replies."""
    import numpy as np

    figures = {}
    for f in dataclasses.fields(RequestMetrics):
        values = [value for m in metrics if (value := getattr(m, f.name)) is not None]
        if values:
            ranks = zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
            figures[f.name] = {
                "n": len(values),
                "min": float(min(values)),
                **{f"p{p}": float(v) for p, v in ranks},
            }
    return figures


def load_table(load: Load) -> str:
    who = f"{load.concurrency} at a time{', each heard out' if load.hears_out else ''}"
    if load.arrivals_per_s is not None:
        who = f"{load.arrivals_per_s:g} arrivals a second, up to {load.concurrency} at a time"
    head = (
        f"\n{who}, {load.replies} replies: {load.rows_per_s:.0f} rows/s, "
        f"{load.audio_s_per_s:.2f} s of audio a second, {load.without_underrun:.0%} without "
        f"underrun, "
        f"{load.late_chunks} chunks late, worst RTF {load.worst_rtf:.3f}"
    )
    units = {f.name: f.metadata["unit"] for f in dataclasses.fields(RequestMetrics)}
    columns = ["min", *(f"p{p}" for p in PERCENTILES)]
    lines = [f"{'':<26}{'n':>5}" + "".join(f"{column:>11}" for column in columns)]
    for name, values in load.figures.items():
        shown = "".join(f"{values[column]:>11.3f}" for column in columns)
        lines.append(f"{name:<17}{units[name]:<9}{values['n']:>5}{shown}")
    return "\n".join([head, *lines])


def pairs(option: str, text: str) -> list[tuple[float, int]]:
    """Levels of load from an option's value: "16:32,64:128" -> [(16, 32), (64, 128)].

    Raises ConfigError.
    """
    try:
        found = [
            (float(a), int(b)) for a, b in (part.split(":") for part in text.split(",") if part)
        ]
    except ValueError:
        found = [(0.0, 0)]
    if any(a <= 0 or b < 1 for a, b in found):
        raise ConfigError(
            f"{option} is {text!r}; give pairs of positive numbers, as in 16:32,64:128."
        )
    return found
