"""An engine over a scripted runtime, stepped until it rests."""

from __future__ import annotations

from moss_engine.api.events import Event, Sampled
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from tests.fakes import Clock, FakeProcessor, FakeRuntime


def make_engine(runtime: FakeRuntime, clock: Clock | None = None, **options: float) -> Engine:
    return Engine(
        runtime,
        FakeProcessor(),
        EngineConfig(**options),
        samples_per_code=960,
        clock=clock or Clock(),
    )


def run(engine: Engine, steps: int = 500) -> dict[str, list[Event]]:
    """Step until nothing is left to do; the events of each request."""
    events: dict[str, list[Event]] = {}
    for _ in range(steps):
        result = engine.step()
        for event in result.events:
            events.setdefault(event.request_id, []).append(event)
        if not result.events and not result.num_rows:
            engine.check_integrity()
            return events
    raise AssertionError("the engine did not come to rest")


def serve(engine: Engine, *requests: Request) -> list[list[Event]]:
    accepted = [engine.submit(request) for request in requests]
    events = run(engine)
    return [[first, *events[first.request_id]] for first in accepted]


def only(events: list[Event], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def assert_at_rest(engine: Engine) -> None:
    """Nobody is being served and no block is used, promised or leaked."""
    engine.step()
    engine.check_integrity()
    stats = engine.stats()
    assert (
        stats.running,
        stats.waiting,
        stats.blocks_used,
        stats.blocks_reserved,
        stats.leaked_blocks,
    ) == (0,) * 5


def sampled_rows(events: list[Event]) -> list[Row]:
    return [event.row for event in only(events, Sampled)]
