"""Which modules of moss_engine a typed sentence passes, from the page's WebSocket to the sound.

    python -m scripts.dev.trace "Good morning."

Lists every module of which a function ran, on any thread, and how many there are. A module that is
only imported does not count, and neither does the web server.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from moss_engine.build import build_talking_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.endpoints.figures import Figures, WatchedService
from moss_engine.ui.door import Tab
from moss_engine.ui.handlers import Handlers
from scripts.command import make_parser, run_command


class Modules:
    """A profiler: the modules of moss_engine of which a function, of a value's class too, is called
    while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.names: set[str] = set()
        self._known: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self.on or event != "call" or code in self._known:
            return
        if threading.current_thread().name == "machine":
            return  # it measures the machine beside the requests
        self._known.add(code)
        name = frame.f_globals.get("__name__", "")
        if name.startswith("moss_engine.") and code.co_name != "<module>":
            self.names.add(name)


async def ask(handlers: Handlers, text: str) -> int:
    """Ask as an open tab of the page does; the number of frames that it is told."""
    tab = Tab(handlers, "0" * 32, "1" * 32, "trace")
    tab.take({"type": "response.create", "values": {"text": text, "new_seed": False}})
    while tab.busy:
        await asyncio.sleep(0.01)
    await tab.close()
    return len(tab.outbox)


def modules_of(text: str) -> list[str]:
    """The modules that a sentence passes when the built-in voice reads it, in a process of which
    nothing is asked for the first time."""
    service, modules = build_talking_service(EngineConfig(device="cpu"), TalkConfig()), Modules()
    threading.setprofile(modules)  # of the threads that begin from now on
    service.start()
    try:
        facts = asyncio.run(service.describe())
        with tempfile.TemporaryDirectory() as folder:
            handlers = Handlers(WatchedService(service, Figures()), facts, wav_folder=Path(folder))
            asyncio.run(ask(handlers, text))
            sys.setprofile(modules)
            modules.on = True
            asyncio.run(ask(handlers, text))
            modules.on = False
        return sorted(modules.names)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        service.close()


def main() -> None:
    parser = make_parser("dev.trace", __doc__)
    parser.add_argument("text", nargs="?", default="Good morning.", help="what is read aloud")
    found = modules_of(parser.parse_args().text)
    print("\n".join(found))
    print(f"{len(found)} modules")


if __name__ == "__main__":
    run_command(main)
