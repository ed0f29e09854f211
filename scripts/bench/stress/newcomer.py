"""A newcomer's first sound while long readings play."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from moss_engine.api.service import SpeechService
from scripts.bench.stress.listeners import Hearing, hear, spoken_request
from scripts.sentences import sentence

READINGS = 4
READING_CHARS = 4000
GAP_S = 1.5


def long_text(number: int) -> str:
    text, index = "", number * 1000
    while len(text) < READING_CHARS:
        text, index = f"{text}{sentence(index)} ", index + 1
    return text[:READING_CHARS]


async def measure_newcomers(service: SpeechService, newcomers: int) -> dict[str, Any]:
    """Seconds to the first sound of one visitor after another, quiet and beside READINGS readings
    of READING_CHARS characters, from their beginning on; and what it cost the readings."""
    info = await service.describe()

    async def ask(number: int, name: str) -> float:
        hearing = Hearing()
        request = spoken_request(info, sentence(number), f"{name} {number}")
        await hear(service, request, hearing)
        assert hearing.first_s is not None, hearing.end
        return hearing.first_s

    quiet = [await ask(number, "quiet") for number in range(5)]
    readers = [Hearing() for _ in range(READINGS)]
    reading = [
        asyncio.ensure_future(
            hear(service, spoken_request(info, long_text(number), f"reader {number}"), hearing)
        )
        for number, hearing in enumerate(readers)
    ]
    beside = []
    for number in range(newcomers):
        await asyncio.sleep(GAP_S)
        beside.append(await ask(100 + number, "newcomer"))
    assert not any(task.done() for task in reading), "the readings ended before the newcomers"
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    return {
        "quiet_p50_s": round(statistics.median(quiet), 3),
        "p50_s": round(statistics.median(beside), 3),
        "worst_s": round(max(beside), 3),
        "first_sounds": [round(first_s, 2) for first_s in beside],
        "times_quiet": round(statistics.median(beside) / statistics.median(quiet), 2),
        "asked": newcomers,
        "readings": READINGS,
        "readings_made_s": round(min(reader.made_s for reader in readers), 1),
        "readings_silent_s": round(max(reader.silent_s for reader in readers), 2),
    }
