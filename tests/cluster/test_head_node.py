"""The head of a Ray cluster is killed under its page, and comes back."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.cluster.build import open_fleet
from moss_engine.cluster.fleet import Card, CutOffError, ReplicaLostError
from moss_engine.cluster.members import CUT_OFF
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from tests.ui.page_support import free_port

ray = pytest.importorskip("ray", reason="ray is not installed")
psutil = pytest.importorskip("psutil", reason="Ray brings it")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
HEAD = """
import sys
from pathlib import Path
from tests.cluster.scripted_replica import scripted_fleet
fleet = scripted_fleet(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


class Process:
    """A Python process whose lines are waited for."""

    def __init__(self, *arguments: str, **environment: str):
        self.lines: list[str] = []
        self._said: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)} | environment,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line.rstrip())
        self._said.put(None)

    def until(self, *words: str) -> str:
        """The next line that begins with one of the words; everything is kept in `lines`."""
        while True:
            line = self._said.get(timeout=PATIENCE_S)
            assert line is not None, f"it ended:\n{self.lines}"
            self.lines.append(line)
            if line.startswith(words):
                return line

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def kill(self) -> None:
        """With all that it started."""
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        self._process.kill()
        for process in below:
            process.kill()
        psutil.wait_procs(below)
        self._process.wait()


@contextmanager
def head(port: int) -> Iterator[Process]:
    """Ray on this machine with a replica that speaks without a model."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        process = Process("-c", HEAD, folder, RAY_GCS_SERVER_PORT=str(port))
        try:
            process.until("ready")
            yield process
        finally:
            process.kill()


def ask_until_answered(page: Process) -> None:
    """Its replica is found a moment behind the head."""
    page.say("1")
    while page.until("Finished", "refused E_REPLICAS").startswith("refused"):
        time.sleep(0.2)
        page.say("1")


def test_a_page_outlives_the_head_of_its_cluster():
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(head(port))
        page = Process("-m", "tests.cluster.page_process", f"127.0.0.1:{port}")
        stack.callback(page.kill)
        page.until("ready")
        page.say("600")
        page.until("began")
        first.kill()
        assert page.until("Failed") == f"Failed E_REPLICAS {CUT_OFF}"
        stack.enter_context(head(port))
        ask_until_answered(page)
        told = "\n".join(page.lines)
        assert f"the head of the Ray cluster at 127.0.0.1:{port} is gone" in told
        assert "the cluster is joined again" in told


@pytest.mark.parametrize("where", ["", ":nowhere"])
def test_a_page_without_a_head_says_so_at_once(where):
    address = f"127.0.0.1{where or f':{free_port()}'}"
    with pytest.raises(ConfigError, match="nobody listens there"):
        open_fleet(EngineConfig(), TalkConfig(), ClusterConfig(ray_address=address))


class Handle:
    """A handle of Serve whose replicas answer with these cards."""

    def __init__(self, *cards: Card):
        self.cards = cards

    def broadcast(self, method: str) -> Handle:
        return self

    async def results_async(self, **how: object) -> list[Card]:
        return list(self.cards)


def test_a_head_that_was_replaced_in_no_time_is_told_by_the_loss_of_all_replicas(monkeypatch):
    from moss_engine.cluster.serve import handle as module
    from moss_engine.cluster.serve.handle import Head

    handle: Any = Handle()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        head = Head(f"127.0.0.1:{listener.getsockname()[1]}")
        fleet = module.HandleFleet(handle, lambda: None, head, lambda: handle)
        monkeypatch.setattr(module, "LONELY_S", -1.0)
        assert asyncio.run(fleet.cards()) == [], "a cluster that starts slowly"
        handle.cards = [Card("one", "same")]
        assert asyncio.run(fleet.cards()) == handle.cards
        handle.cards = []
        with pytest.raises(CutOffError, match="no replica was found"):
            asyncio.run(fleet.cards())


def test_an_application_that_was_deleted_has_no_size(monkeypatch):
    from moss_engine.cluster.serve import handle as module

    handle: Any = Handle()
    fleet = module.HandleFleet(handle, lambda: None)
    nothing = SimpleNamespace(applications={})
    monkeypatch.setattr(module.serve, "status", lambda: nothing)
    with pytest.raises(ReplicaLostError, match="runs no moss-speech any more"):
        asyncio.run(fleet.size())
