"""How near the forecast before Send comes to what is then heard, quiet and busy, JSON on stdout:
`python -m scripts.bench.service.forecast [REPLIES]`.

The built-in voice reads sentences to one listener after another, alone and beside others who listen
in real time and ask again when they have heard it out. Before each the page's own forecast is
asked for, which knows the replies before; then the reply is made and the two are compared: the time
to the first sound, whether there are gaps, and the length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Event
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, SpeechService
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.ui.asking.forecast import Forecasts, Seen
from moss_engine.ui.asking.warm_up import warm_up
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.pool_watch import PoolWatch
from scripts.bench.common.sentences import sentence
from scripts.bench.service.page import how_many, machine_now
from scripts.bench.stress.listeners import Hearing, hear, spoken_request

REPLIES = 12
OTHERS = (0, 1, 3)
NEAR_S = 0.1  # a forecast so near, or within half of what came, was a good one


class Followed:
    """A reply with its figures so far, and how many others ran beside it at most."""

    def __init__(self, reply: ReplyStream, pool: PoolWatch):
        self._reply, self._pool = reply, pool
        self.request_id = reply.request_id
        self.timeline, self.others = Timeline(), 0

    def cancel(self) -> None:
        self._reply.cancel()

    def acknowledge(self, samples: int) -> None:
        self._reply.acknowledge(samples)

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        async for event in self._reply.events(acknowledge=acknowledge):
            self.timeline = fold(self.timeline, event)
            if isinstance(event, AudioChunk):
                running = (await self._pool.counts())["running"]
                self.others = max(self.others, running - 1)
            yield event


class Following:
    """A service whose last reply is remembered."""

    def __init__(self, service: SpeechService, pool: PoolWatch):
        self._service, self._pool = service, pool
        self.last: Followed | None = None

    async def submit(self, request: Request) -> Followed:
        self.last = Followed(await self._service.submit(request), self._pool)
        return self.last


def parse(argv: list[str] | None = None) -> int:
    """How many replies to make."""
    return how_many("forecast", __doc__ or "", "replies", REPLIES, argv)


def main() -> None:
    replies = parse()
    machine = machine_now()
    service = build_service(EngineConfig())
    service.start()
    try:
        levels = asyncio.run(measured(service, replies))
    finally:
        service.close()
    print(json.dumps({"machine": machine, "replies": replies, "levels": levels}, indent=1))


async def measured(service: SpeechService, replies: int) -> list[dict[str, Any]]:
    """A table row for each number of others."""
    facts, pool = PageInfo.of(await service.describe()), PoolWatch(service)
    forecasts, following = Forecasts(facts, pool), Following(service, pool)
    forecasts.note(await warm_up(service, facts))  # as a page does at its start
    levels = []
    for others in OTHERS:
        crowd = [asyncio.ensure_future(listen_on(service, facts, i)) for i in range(others)]
        while (await pool.counts(now=True))["running"] < others:
            await asyncio.sleep(0.05)
        first = 1000 * (1 + others)
        pairs = [await scored(following, forecasts, facts, first + i) for i in range(replies)]
        for listener in crowd:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener
        levels.append({"others": others} | summary([pair for pair in pairs if pair]))
        print(levels[-1], file=sys.stderr)
    return levels


async def listen_on(service: SpeechService, facts: PageInfo, listener: int) -> None:
    """Hear one sentence after the other, each to its end."""
    number = 100_000 * (1 + listener)
    while True:
        began_s, hearing, number = time.monotonic(), Hearing(), number + 1
        await hear(service, spoken_request(facts, sentence(number), f"crowd{listener}"), hearing)
        left_s = began_s + (hearing.first_s or 0.0) + hearing.made_s - time.monotonic()
        await asyncio.sleep(max(0.0, left_s))


async def scored(
    following: Following, forecasts: Forecasts, facts: PageInfo, number: int
) -> tuple[dict[str, Any], RequestMetrics] | None:
    """What was foretold of a reply and what came; None where nothing was foretold."""
    text = sentence(number % 997) if number % 2 else f"{sentence(number)} {sentence(number + 7)}"
    told = await forecasts.foresee(facts.default_mode.name, text, "")
    await hear(following, spoken_request(facts, text, "asked"), Hearing())
    assert following.last is not None
    came = measure(following.last.timeline)
    reads = facts.default_mode.split_sentences
    forecasts.note(Seen.of(came, following.last.others, text, reads))
    return (json.loads(told), came) if told else None


def summary(pairs: list[tuple[dict[str, Any], RequestMetrics]]) -> dict[str, Any]:
    """Errors of forecasts against what came."""
    came_s = [(came.ttfa_ms or 0.0) / 1000 for _, came in pairs]
    errors_s = [
        abs(told["first_s"] - first) for (told, _), first in zip(pairs, came_s, strict=True)
    ]
    good = [error <= max(NEAR_S, first / 2) for error, first in zip(errors_s, came_s, strict=True)]
    lengths = [
        abs(told["length_s"] - came.audio_s) / came.audio_s for told, came in pairs if came.audio_s
    ]
    return {
        "foretold": len(pairs),
        "first_sound_foretold_s_median": round(
            statistics.median(t["first_s"] for t, _ in pairs), 3
        ),
        "first_sound_came_s_median": round(statistics.median(came_s), 3),
        "off_by_s_median": round(statistics.median(errors_s), 3),
        "off_by_s_worst": round(max(errors_s), 3),
        "within_0.1_s_or_half": sum(good),
        "gaps_foretold_rightly": sum(t["gaps"] == (c.underruns > 0) for t, c in pairs),
        "replies_with_gaps": sum(c.underruns > 0 for _, c in pairs),
        "length_off_by_percent_median": round(100 * statistics.median(lengths), 1),
    }


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
