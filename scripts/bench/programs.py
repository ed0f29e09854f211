"""The program as one that speaks HTTP meets it.

first_byte   from the service's first samples to the first byte of /v1/audio/speech, one listener at
             a time in a process of its own
word         when each word of a spoken answer begins, as `response.output_audio_transcript.done`
             tells it, against a recogniser, over sentences to which its rule is not fitted; and
             word_early, as each delta tells it before there is sound
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from moss_engine.api.events import AudioChunk, Event
from moss_engine.api.service import ReplyWrapper
from moss_engine.build import build_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from scripts.bench.common import Report, machine, spread
from scripts.judges.times import word_errors
from scripts.sentences import EVERYDAY, HARVARD

TIMES, REST_S = 20, 0.4
BODY = '{"model": "nano", "input": "Good morning, how are you today?", "response_format": "pcm"}'


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=7896)


def run(args: argparse.Namespace, report: Report) -> None:
    report.add(machine=machine(), times=TIMES)
    service = build_service(EngineConfig(), TalkConfig())
    submit, made_s = service.submit, list[float]()

    async def stamped(request: Any) -> Any:
        return Stamped(await submit(request), made_s)

    service.start()
    page = launch(service, PageConfig(port=args.port), model="nano")
    try:
        service.submit = stamped  # type: ignore[method-assign]
        with multiprocessing.get_context("spawn").Pool(1) as listener:
            heard = listener.apply(listen, (args.port,))
        times = zip(heard[1:], made_s[1:], strict=True)
        report.add(**spread("first_byte", [1000 * (came_s - made) for came_s, made in times]))
        service.submit = submit  # type: ignore[method-assign]
        found = asyncio.run(word_errors(service, (*EVERYDAY, *HARVARD)))
        report.add(words=len(found["whole"]), words_unsure=len(found["unsure"]))
        report.add(**spread("word", found["whole"]), **spread("word_early", found["early"]))
    finally:
        page.close(verbose=False)
        service.close()


def listen(port: int) -> list[float]:
    """When each first byte came, by this machine's one clock."""
    found = []
    for _ in range(TIMES + 1):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/audio/speech", BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read(1)
        found.append(time.monotonic())
        answer.read()
        connection.close()
        time.sleep(REST_S)
    return found


class Stamped(ReplyWrapper):
    """A reply, and in `made_s` when its first sound was there."""

    def __init__(self, reply: Any, made_s: list[float]):
        super().__init__(reply)
        self._made_s, self._accepted_s = made_s, reply.accepted_s

    async def events(self) -> AsyncGenerator[Event, None]:
        is_first = True
        async with aclosing(self._reply.events()) as events:
            async for event in events:
                if is_first and isinstance(event, AudioChunk):
                    is_first = False
                    self._made_s.append(self._accepted_s + event.time_s)
                yield event
