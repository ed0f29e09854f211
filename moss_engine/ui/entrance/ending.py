"""The end of the program on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import gradio as gr

from moss_engine.api.service import SpeechService
from moss_engine.ui.entrance.cache import remove

SAME_SIGNAL_S = 1.0  # supervisors send a signal to a process and to its group: that is one signal
FAREWELL_S = 1.0  # for the last messages to leave after the last reply ended
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def serve_until_signal(page: gr.Blocks, service: SpeechService) -> None:
    """Wait for one of SIGNALS, then let the open replies finish and close the page; a second signal
    ends the process at once, but for visitors' sound, which is removed."""
    asked = threading.Event()
    asked_s = 0.0

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked_s
        if asked.is_set() and time.monotonic() - asked_s > SAME_SIGNAL_S:
            remove(Path(os.environ["GRADIO_TEMP_DIR"]))
            os._exit(1)
        asked_s = asked_s or time.monotonic()
        asked.set()

    for name in SIGNALS:
        signal.signal(name, ask)
    while not asked.wait(3600.0):
        pass
    print("Stopping: running replies finish; new requests are refused.", flush=True)
    asyncio.run(service.drain())
    time.sleep(FAREWELL_S)
    page.close(verbose=False)
