"""What is kept of tabs that were closed: nothing that grows with their number."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from scripts.bench.visitor import Visitor, functions_of
from tests.ui.page_support import FakeService, Script, free_port, soon


async def test_a_closed_tab_leaves_no_state_behind():
    service, port = FakeService(), free_port()
    page = await asyncio.to_thread(launch, service, PageConfig(port=port))
    service.script = Script(seconds=0.4)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            functions = await functions_of(client)
            for _ in range(3):
                tab = Visitor(client, functions)
                assert (await tab.ask(text="Hello.")).end == "done"
                known = page.state_holder.session_data
                assert tab.session in known, "it had none"
                await tab.leave()
                assert await soon(lambda tab=tab, known=known: tab.session not in known)
            assert len(page._queue.event_analytics) <= 1, "calls are counted for nobody"
    finally:
        page.close(verbose=False)


async def test_a_tab_that_is_closed_while_it_is_spoken_to_leaves_nothing_behind():
    service, port = FakeService(), free_port()
    page = await asyncio.to_thread(launch, service, PageConfig(port=port))
    service.script = Script(seconds=2.0, rtf=0.5)
    queue = page._queue
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            functions = await functions_of(client)
            tab, speaking = Visitor(client, functions), asyncio.Event()

            def heard(message: dict[str, Any]) -> None:
                if message["pcm"]:
                    speaking.set()

            asking = asyncio.ensure_future(tab.ask(text="Hello.", on_message=heard))
            await asyncio.wait_for(speaking.wait(), 10.0)
            assert tab.session in queue.pending_messages_per_session, "it had none"
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await tab.leave()
            kept = {
                "calls": lambda: [
                    event.session_hash for event in queue.event_ids_to_events.values()
                ],
                "state": lambda: page.state_holder.session_data,
                "messages": lambda: queue.pending_messages_per_session,
                "names of calls": lambda: queue.pending_event_ids_session,
            }
            for what, holder in kept.items():
                assert await soon(lambda holder=holder: tab.session not in holder()), what
            await asyncio.sleep(1.0)
            for what, holder in kept.items():
                assert tab.session not in holder(), f"{what} came back"
    finally:
        page.close(verbose=False)
