"""A page in front of the Ray cluster at an address, without the page: asks a question for each line
of its input, of as many seconds of sound as the line says, and tells how the reply ended."""

from __future__ import annotations

import asyncio
import logging
import sys

from moss_engine.api.errors import MossError
from moss_engine.api.events import Event, Failed
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import stream
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.service import ClusterService
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from tests.ui.page_support import INFO


async def ask(service: ClusterService, name: str, seconds: str) -> None:
    """Tells of the first event and of the last one, or of the refusal."""
    messages = (Message("user", Text(seconds)),)
    request = Request(name, name, messages, INFO.modes[0].name, INFO.sampling)
    last: Event | None = None
    try:
        async for event in stream(service, request):
            if last is None:
                print("began", flush=True)
            last = event
    except MossError as error:
        print(f"refused {error.code} {error}", flush=True)
        return
    told = f"{last.code} {last.message}" if isinstance(last, Failed) else ""
    print(type(last).__name__, told, flush=True)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(message)s", stream=sys.stdout)
    fleet = open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(ray_address=sys.argv[1]))
    service = ClusterService(fleet)
    service.start()
    print("ready", flush=True)
    for i, line in enumerate(sys.stdin):
        asyncio.run(ask(service, f"reply {i}", line.strip()))
    service.close()


if __name__ == "__main__":
    main()
