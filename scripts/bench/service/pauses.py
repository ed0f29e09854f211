"""How long a full collection of Python's garbage stops everything, JSON on stdout:
`python -m scripts.bench.service.pauses [REPLIES]`.

The built-in voice and its page are started as `app.py` does. Replies are made, each of them with a
full collection behind it, before `freeze_gc_heap` and as many again after it. Under load Python
collects everything by itself about once a minute, and every listener's sound waits for that.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.api.service import SpeechService, stream
from moss_engine.config import EngineConfig
from moss_engine.heap import freeze_gc_heap
from moss_engine.ui.config import PageConfig
from scripts.bench.common.sentences import sentence
from scripts.bench.service.page import how_many, machine_now, tools
from scripts.bench.stress.listeners import spoken_request

REPLIES = 9


def parse(argv: list[str] | None = None) -> int:
    """How many replies to make on either side."""
    return how_many("pauses", __doc__ or "", "replies", REPLIES, argv)


def main() -> None:
    count = parse()
    print(json.dumps({"machine": machine_now(), **measure(count)}, indent=1))


def measure(count: int) -> dict[str, Any]:
    """Milliseconds before and after, and their ratio."""
    _, support = tools()
    from moss_engine.build import build_service
    from moss_engine.ui.server import launch

    service = build_service(EngineConfig())
    service.start()
    page = launch(service, PageConfig(port=support.free_port()))
    try:
        before_ms = asyncio.run(pauses_ms(service, count))
        num_objects = len(gc.get_objects())
        freeze_gc_heap()
        after_ms = asyncio.run(pauses_ms(service, count))
    finally:
        page.close(verbose=False)
        service.close()
    return {
        "objects": num_objects,
        "replies": count,
        "pause_ms_median": round(statistics.median(before_ms), 1),
        "pause_ms_worst": round(max(before_ms), 1),
        "frozen_pause_ms_median": round(statistics.median(after_ms), 1),
        "frozen_pause_ms_worst": round(max(after_ms), 1),
        "ratio": round(statistics.median(before_ms) / statistics.median(after_ms)),
    }


async def pauses_ms(service: SpeechService, count: int) -> list[float]:
    """What a full collection takes behind each of `count` replies."""
    info = await service.describe()
    found = []
    for number in range(count):
        request = spoken_request(info, sentence(number), "pauses")
        kept = [event async for event in stream(service, request)]
        start_s = time.perf_counter()
        gc.collect()
        found.append((time.perf_counter() - start_s) * 1e3)
        kept.clear()
    return found


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
