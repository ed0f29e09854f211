"""The endpoints on a port of their own, and what programs hear through them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import uvicorn

from moss_engine.api.service import SpeechService
from moss_engine.endpoints.access import Access
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.figures import Figures, WatchedService
from moss_engine.endpoints.server import Server
from tests.ui.page_support import PATIENCE_S, until

MODEL = "scripted"


@contextmanager
def running(
    service: SpeechService,
    access: Access | None = None,
    names: Mapping[str, str] | None = None,
    strict_names: bool = False,
    **settings: Any,
) -> Iterator[str]:
    """Serve in a thread, with settings of the app; the address, without a slash at its end."""
    with ThreadPoolExecutor(1) as thread:  # the test may be on an event loop itself
        info = thread.submit(asyncio.run, service.describe()).result()
    figures = Figures()
    watched = WatchedService(service, figures, counts_refusals=False)
    access = access or Access(open_to_all=True)
    app = make_app(Server(watched, info, MODEL, access, figures, names, strict_names), **settings)
    # By its protocol asyncio knows that it may send what is small at once.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            log_config=None,  # so that what it logs reaches the tests
            log_level="warning",
            lifespan="off",
            ws_per_message_deflate=False,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive()
