"""A visitor of the program over HTTP, as a browser is one: asks, listens, talks, stops, leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from moss_engine.api.controls import BY_NAME

API = "/gradio_api"
PATIENCE_S = 60.0


@dataclass
class Answer:
    """What came of a question: seconds to the first sound (None: there was none), and how it
    ended."""

    first_s: float | None = None
    end: str = "lost"
    note: str = ""


class Visitor:
    """One tab. `functions` are the page's, by name: the index, and the arguments with their
    defaults."""

    def __init__(self, client: httpx.AsyncClient, functions: dict[str, tuple[int, dict[Any, Any]]]):
        self._client = client
        self._functions = functions
        self.session = secrets.token_hex(6)
        self._alive = asyncio.ensure_future(self._stay())

    async def ask(
        self,
        *,
        while_heard: Callable[[Answer], Awaitable[None]] | None = None,
        on_message: Callable[[dict[str, Any]], None] = lambda message: None,
        **values: Any,
    ) -> Answer:
        """Ask something and take the reply to its end; `while_heard` runs beside that, `on_message`
        gets every message when it comes."""
        answer, asked_s = Answer(), time.monotonic()
        await self.join("reply", values)
        beside = asyncio.ensure_future(while_heard(answer)) if while_heard else None
        try:
            async with aclosing(self._messages()) as messages:
                async for message in messages:
                    on_message(message)
                    if message["pcm"] and answer.first_s is None:
                        answer.first_s = time.monotonic() - asked_s
                    answer.end, answer.note = message["state"], message["note"]
        finally:
            if beside is not None and not beside.cancel():
                beside.result()
        return answer

    async def stop(self, heard: str = "") -> None:
        """`heard` of the reply, as its run and a number of samples."""
        await self._run("stop", [heard, None])

    async def microphone(self) -> str:
        """A key for blocks of sound."""
        return (await self._run("listen", []))["data"][0]

    async def say(
        self, key: str, seq: int, pcm: np.ndarray, *, answering: bool = False
    ) -> dict[str, Any]:
        """Send int16 samples at 16 kHz, hands-free, maybe over an answer; what became of them."""
        params = {"seq": seq, "hands_free": 1, "answering": int(answering)}
        answer = await self._client.post(f"{API}/hear/{key}", params=params, content=pcm.tobytes())
        answer.raise_for_status()
        return answer.json()

    async def leave(self) -> None:
        """Close the tab."""
        self._alive.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await self._alive

    async def _stay(self) -> None:
        """What tells Gradio that the tab is open."""
        async with self._client.stream(
            "GET", f"{API}/heartbeat/{self.session}", timeout=None
        ) as alive:
            async for _ in alive.aiter_bytes():
                pass

    async def _run(self, name: str, data: list[Any]) -> dict[str, Any]:
        body = {"data": data, "session_hash": self.session}
        answer = await self._client.post(f"{API}/run/{name}", json=body)
        answer.raise_for_status()
        return answer.json()

    async def join(self, name: str, values: dict[str, Any]) -> None:
        """Ask for something without listening to what comes of it."""
        index, defaults = self._functions[name]
        data = [*{**defaults, **values}.values()]
        body = {"fn_index": index, "data": data, "session_hash": self.session}
        (await self._client.post(f"{API}/queue/join", json=body)).raise_for_status()

    async def _messages(self) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of a reply, whole ones: Gradio sends what changed since the last one."""
        params = {"session_hash": self.session}
        value: Any = None
        async with self._client.stream(
            "GET", f"{API}/queue/data", params=params, timeout=PATIENCE_S
        ) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                event = json.loads(line.removeprefix("data:"))
                if event["msg"] == "process_generating":
                    output = event["output"]["data"][0]
                    value = _changed(value, output) if isinstance(output, list) else output
                    yield value
                elif event["msg"] in ("process_completed", "close_stream", "unexpected_error"):
                    return


async def functions_of(client: httpx.AsyncClient) -> dict[str, tuple[int, dict[Any, Any]]]:
    """The page's own function of a reply: its index, and its arguments with what the page opens
    with; the conversation is the server's."""
    config = (await client.get("/config")).json()
    shown = {part["id"]: part["props"].get("value") for part in config["components"]}
    names = [*BY_NAME, "conversation"]
    reply = next(fn for fn in config["dependencies"] if len(fn["inputs"]) == len(names))
    values = [shown.get(part) for part in reply["inputs"][:-1]]
    return {"reply": (reply["id"], dict(zip(names, [*values, None], strict=True)))}


def _changed(value: Any, changes: list[Any]) -> Any:
    """A value after Gradio's changes: [what is done, path, new value]."""
    for action, path, new in changes:
        value = _with(value, path, action, new)
    return value


def _with(value: Any, path: list[Any], action: str, new: Any) -> Any:
    if not path:
        return value + new if action == "append" else new
    first, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if action == "delete" and not rest:
        del copy[first]
    elif action == "add" and not rest and isinstance(copy, list):
        copy.insert(first, new)
    elif action == "add" and not rest:
        copy[first] = new
    else:
        copy[first] = _with(copy[first], rest, action, new)
    return copy
