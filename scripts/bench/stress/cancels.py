"""Replies that are stopped at random moments: whatever they held must come back."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
from collections import Counter
from typing import Any

from moss_engine.api.events import Event
from moss_engine.api.service import ReplyStream, SpeechService
from scripts.bench.stress.listeners import spoken_request
from scripts.sentences import sentence

AT_A_TIME = 8
LONGEST_S = 0.8
SETTLE_S = 5.0


async def measure_cancels(service: SpeechService, count: int, seed: int = 0) -> dict[str, Any]:
    """Stop `count` replies: queued, in prefill, speaking, or over; by the stream, by the session,
    or by a listener who leaves. The counts of what is left afterwards."""
    info, chance = await service.describe(), random.Random(seed)
    numbers = iter(range(count))
    before = counts()

    async def visitor(name: int) -> None:
        for number in numbers:
            request = spoken_request(info, sentence(number), f"visitor {name}")
            reply = await service.submit(request)
            how, moment_s = chance.randrange(3), LONGEST_S * chance.random() ** 3
            listening = asyncio.ensure_future(_listen(reply))
            await asyncio.sleep(moment_s)
            if how == 0:
                reply.cancel()
            elif how == 1:
                await service.cancel_session(request.session_id)
            else:
                listening.cancel()
            if chance.random() < 0.2:
                reply.cancel()
            await asyncio.wait({listening}, timeout=SETTLE_S)
            assert listening.done(), "a stopped reply did not end"

    await asyncio.gather(*(visitor(name) for name in range(AT_A_TIME)))
    for _ in range(int(SETTLE_S / 0.1)):
        engine = (await service.stats()).engine
        if not engine.running + engine.waiting:
            break
        await asyncio.sleep(0.1)
    stats = await service.stats()
    after = counts()
    return {
        "cancels": count,
        "running": stats.engine.running,
        "waiting": stats.engine.waiting,
        "blocks_used": stats.engine.blocks_used,
        "leaked_blocks": stats.engine.leaked_blocks,
        "outcomes": stats.outcomes,
        "state": stats.state,
        "threads_more": dict(after["threads"] - before["threads"]),
        "handles_more": after["handles"] - before["handles"],
    }


def counts() -> dict[str, Any]:
    """Threads of this process by the first part of their names, and its open files. Those called
    asyncio are the pool in which an event loop prepares requests: as many as the machine's cores
    and four more at the most, and they end with the loop."""
    names = Counter(re.split(r"[_-]\d", thread.name)[0] for thread in threading.enumerate())
    return {"threads": names, "handles": len(os.listdir("/proc/self/fd"))}


async def _listen(reply: ReplyStream) -> Event | None:
    last = None
    async for event in reply.events():
        last = event
    return last
