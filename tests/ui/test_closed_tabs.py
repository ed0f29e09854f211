"""What is kept of tabs that were closed: nothing that grows with their number."""

from __future__ import annotations

import asyncio

import httpx

from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from scripts.bench.stress.visitor import Visitor, functions_of
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
