"""Gradio's queue: it rests while nobody asks, and takes as many questions as there are places."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import httpx
from gradio.queueing import Queue

from moss_engine.api.errors import ALL_TAKEN
from moss_engine.ui import form
from moss_engine.ui.config import PageConfig
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.page import MAX_QUEUE
from moss_engine.ui.server import launch
from tests.ui.page_support import INFO, FakeService, Script, free_port

FEW = replace(INFO, max_sessions=1, max_waiting=1, lease_s=600.0)
PLACES = FEW.max_sessions + FEW.max_waiting + MAX_QUEUE
ASKED = 60


def test_gradio_looks_for_calls_a_few_times_a_second_where_nobody_asks(monkeypatch):
    page = launch(FakeService(), PageConfig(port=free_port()))
    looks = []

    def size(queue) -> int:
        looks.append(queue)
        return 0

    monkeypatch.setattr(Queue, "__len__", size)
    try:
        time.sleep(2.0)
    finally:
        page.close(verbose=False)
    assert 1 < looks.count(page._queue) < 60


def test_of_many_questions_at_once_as_many_are_taken_as_there_are_places():
    service, port = FakeService(info=FEW), free_port()
    page = launch(service, PageConfig(port=port))
    service.script = Script(first_s=600.0)
    try:
        taken, told, later = asyncio.run(_ask(f"http://127.0.0.1:{port}", service))
    finally:
        page.close(verbose=False)
    assert taken == PLACES and told == {ALL_TAKEN} and later == 200


async def _ask(base: str, service: FakeService) -> tuple[int, set[str], int]:
    async with httpx.AsyncClient(base_url=base, timeout=60.0) as client:
        data = [*{**form.defaults(PageInfo.of(FEW)), "text": "One of many."}.values()]
        functions = (await client.get("/config")).json()["dependencies"]
        index = next(fn["id"] for fn in functions if fn["api_name"] == "stream")

        async def join(number: int) -> httpx.Response:
            body = {"fn_index": index, "session_hash": f"many{number}", "data": data}
            return await client.post("/gradio_api/queue/join", json=body)

        answers = await asyncio.gather(*(join(number) for number in range(ASKED)))
        assert {answer.status_code for answer in answers} == {200, 429}
        refused = [answer for answer in answers if answer.status_code == 429]
        told = {answer.json()["detail"] for answer in refused}
        first = next(n for n, answer in enumerate(answers) if answer.status_code == 200)
        await client.post(
            "/gradio_api/cancel",
            json={
                "session_hash": f"many{first}",
                "fn_index": index,
                "event_id": answers[first].json()["event_id"],
            },
        )
        for _ in range(600):
            later = (await join(ASKED)).status_code
            if later == 200:
                break
            await asyncio.sleep(0.05)
        return ASKED - len(refused), told, later
