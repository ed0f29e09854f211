"""A client of chat servers: tokens and calls of functions as they are streamed, or one sentence
that says what is wrong; and which chat servers run on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from moss_engine.api.errors import BrainError, ConfigError
from moss_engine.api.request import ToolCall, Tools

if TYPE_CHECKING:
    import httpx

CONNECT_S = 5.0
SILENT_S = 30.0
"""Longest time between two pieces of an answer."""
WHOLE_S = 120.0
"""Longest time for a whole answer."""
MAX_TOKENS = 600
MAX_CHARS = 6000
MAX_LINE_BYTES = 1 << 20
QUOTED_CHARS = 160  # of its own words in a sentence of ours


class ChatServer:
    """`url` as in http://localhost:11434, with or without /v1; `key` goes along as a bearer token.

    Raises ConfigError for an address that is none, and for a key that no header can hold.
    """

    def __init__(
        self, url: str, model: str, key: str = "", *, clock: Callable[[], float] = time.monotonic
    ):
        base = url.rstrip("/")
        self.host = _host(url)
        self.model = model
        self._clock = clock
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                "MOSS_BRAIN_KEY holds a line break or a letter that no key has; copy the key anew."
            )
        self._url = f"{base if base.endswith('/v1') else f'{base}/v1'}/chat/completions"
        self._headers = {"Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    async def stream(
        self, messages: list[dict[str, Any]], tools: Tools | None = None
    ) -> AsyncGenerator[str | ToolCall, None]:
        """The pieces of an answer, and behind them the functions that it calls; raises BrainError
        where it breaks off, takes too long or does not end."""
        import httpx

        body: dict[str, Any] = {"model": self.model, "messages": messages}
        body |= {"stream": True, "max_tokens": MAX_TOKENS, **_offered(tools)}
        calls, is_whole = _Calls(), False
        limits = httpx.Timeout(CONNECT_S, read=SILENT_S)
        num_chars, begun_s = 0, self._clock()
        try:
            async with (
                httpx.AsyncClient(timeout=limits, trust_env=False) as client,
                aclosing(await self._ask(client, body)) as answer,
            ):
                left_s = WHOLE_S - (self._clock() - begun_s)
                async with aclosing(self._events(answer, left_s)) as events:
                    async for event in events:
                        if event == "[DONE]":
                            is_whole = True
                            break
                        piece, num_called, ends = self._read(event, calls)
                        is_whole = is_whole or ends
                        num_chars += len(piece) + num_called
                        if num_chars > MAX_CHARS:
                            raise self._endless()
                        if piece:
                            yield piece
            if not is_whole:
                raise self._fault("broke off; ask again.")
            for call in calls.whole():
                if not _is_object(call.arguments):
                    raise self._fault(
                        f"called {call.name[:QUOTED_CHARS]} with arguments that are no JSON "
                        "object; ask again."
                    )
                yield call
        except httpx.ConnectError:
            raise BrainError(f"Nobody answers at {self.host}; start the brain there.") from None
        except httpx.TimeoutException:
            raise self._fault(
                f"was silent for {SILENT_S:g} s; ask again, or take a smaller model."
            ) from None
        except httpx.HTTPError as error:
            raise self._fault(f"broke off ({type(error).__name__}); ask again.") from None

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
        """The head of its streamed answer; the whole answer must come within WHOLE_S."""
        request = client.build_request("POST", self._url, json=body, headers=self._headers)

        async def asked() -> httpx.Response:
            answer = await client.send(request, stream=True)
            await self._require_stream(answer)
            return answer

        try:
            return await asyncio.wait_for(asked(), WHOLE_S)
        except asyncio.TimeoutError:
            raise self._endless() from None

    async def _require_stream(self, answer: httpx.Response) -> None:
        kind = answer.headers.get("content-type", "")
        packed = answer.headers.get("content-encoding", "identity")
        if packed != "identity":  # few bytes may become any number
            raise self._fault(f"packs its answers ({packed[:20]}); switch that off.")
        if answer.status_code == 200 and "text/event-stream" in kind:
            return
        quoted = (await _beginning(answer)).decode("utf-8", "replace")
        quoted = " ".join(quoted.split())[:QUOTED_CHARS]
        if answer.status_code in (401, 403):
            raise self._fault("refuses the key; give it in MOSS_BRAIN_KEY.")
        if answer.status_code != 200:
            raise self._fault(
                f"refused the question ({answer.status_code}: {quoted or 'it says no more'}); "
                "check --brain and --brain-model."
            )
        raise self._fault(f"sent {kind or 'nothing'} instead of a stream; check --brain.")

    async def _events(self, answer: httpx.Response, left_s: float) -> AsyncGenerator[str, None]:
        """The data of server-sent events; waits for them `left_s` in all, not counting what the
        caller does in between."""
        rest, asked_s = b"", self._clock()
        async for block in answer.aiter_raw():
            left_s -= self._clock() - asked_s
            if left_s < 0:
                raise self._endless()
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise self._fault("sent a line without an end; check --brain.")
            for line in lines:
                if line.startswith(b"data:"):
                    await asyncio.sleep(0)  # many may come at once
                    yield line[5:].strip().decode("utf-8", "replace")
            asked_s = self._clock()

    def _read(self, data: str, calls: _Calls) -> tuple[str, int, bool]:
        """What one event adds: its text, the number of characters of calls, and whether it was the
        last."""
        try:
            event: Any = json.loads(data)
            if "error" not in event:
                choice = event["choices"][0] if event["choices"] else {}
                delta = choice.get("delta") or {}
                text, num_chars = _text(delta.get("content")), calls.add(delta.get("tool_calls"))
                return text, num_chars, bool(choice.get("finish_reason"))
        except (
            LookupError,
            ValueError,
            TypeError,
            ArithmeticError,
            AttributeError,
            RecursionError,
        ):
            raise self._fault("sent something that is no answer; check --brain.") from None
        raise self._fault(f"failed ({_text(str(event['error']))[:QUOTED_CHARS]}); ask again.")

    def _endless(self) -> BrainError:
        return self._fault("did not come to an end; ask for less.")

    def _fault(self, what: str) -> BrainError:
        return BrainError(f"The brain at {self.host} {what}")


LOCAL = {11434: "Ollama", 8080: "llama.cpp", 1234: "LM Studio", 8000: "vLLM"}
"""Chat servers and the ports at which they listen unless told otherwise."""
LOOK_S = 2.0
_EMBEDS = re.compile(r"embed|rerank", re.I)  # models that answer nothing


def find_local(model: str | None, key: str = "") -> ChatServer:
    """The first chat server on this machine that offers `model`, or any model at all; raises
    ConfigError where there is none. It is asked for nothing but the list of its models."""
    offered: dict[str, list[str]] = {}
    for port in LOCAL:
        url = f"http://127.0.0.1:{port}"
        offered[url] = [name for name in _models_of(url, key) if not _EMBEDS.search(name)]
        if model in offered[url] or (model is None and offered[url]):
            return ChatServer(url, model or offered[url][0], key)
    known = ", ".join(name for names in offered.values() for name in names)
    if known:
        raise ConfigError(f"No chat server here has the model {model}; give --brain-model {known}.")
    ports = ", ".join(f"{name} {port}" for port, name in LOCAL.items())
    raise ConfigError(
        f"--brain auto found no chat server with a model on this machine (looked for: {ports}); "
        "start one, such as: ollama run llama3.2. Or give its address with --brain URL."
    )


def _models_of(url: str, key: str) -> list[str]:
    """The models that a server lists; none where no chat server is."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(timeout=LOOK_S, trust_env=False) as client:
            listed = client.get(f"{url}/v1/models", headers=headers).json()["data"]
        return [str(one["id"]) for one in listed]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []  # another program's port, or nobody's


def _host(url: str) -> str:
    """Host and port of an address; raises ConfigError where it is none."""
    wrong = ConfigError(f"--brain is {url!r}; give an address such as http://localhost:11434.")
    try:
        parts = urlsplit(url)
        names_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port, or of brackets
        raise wrong from None
    if parts.scheme not in ("http", "https") or not names_host or not url.isprintable():
        raise wrong
    return parts.netloc.rpartition("@")[2]


async def _beginning(answer: httpx.Response) -> bytes:
    """The beginning of an answer that is not a stream, for an error message."""
    body = b""
    async for block in answer.aiter_raw():
        body += block
        if len(body) > QUOTED_CHARS * 4:
            break
    return body


def _text(said: Any) -> str:
    """A text, or "" for none; half characters (lone surrogates), which can be neither spoken nor
    sent, are replaced. Raises TypeError for anything else."""
    if not isinstance(said, str | None):
        raise TypeError("it is no text")
    return (said or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


MAX_CALLS = 64


class _Calls:
    """Calls of functions, put together from their pieces."""

    def __init__(self) -> None:
        self._found: list[list[str]] = []  # id, name and arguments
        self._last: dict[int, list[str]] = {}  # by their index

    def add(self, pieces: Any) -> int:
        """Take pieces and return how many characters they have; raises a Python error where they
        are not as the interface has them."""
        num_chars = 0
        for piece in pieces or ():
            said = piece.get("function") or {}
            texts = [_text(piece.get("id")), _text(said.get("name")), _text(said.get("arguments"))]
            num_chars += sum(map(len, texts))
            call = self._at(piece.get("index"), texts[0])
            call[0], call[1] = call[0] or texts[0], call[1] or texts[1]
            call[2] += texts[2]
        if len(self._found) > MAX_CALLS or not all(call[1] for call in self._found):
            raise ValueError("they are too many, or have no name")
        return num_chars

    def _at(self, index: Any, name: str) -> list[str]:
        """The call that a piece belongs to: the last one of its index, but for another id, as some
        servers give all of their calls the same index."""
        place = len(self._found) if index is None else int(index)
        known = self._last.get(place)
        if known is None or (name and known[0] not in ("", name)):
            known = self._last[place] = ["", "", ""]
            self._found.append(known)
        return known

    def whole(self) -> list[ToolCall]:
        """In the order in which they began; one without an id of its own gets one."""
        names = set[str]()
        found = []
        for name, function, arguments in self._found:
            name = f"call_{secrets.token_hex(12)}" if name in ("", *names) else name
            names.add(name)
            found.append(ToolCall(name, function, arguments or "{}"))
        return found


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _offered(tools: Tools | None) -> dict[str, Any]:
    """The fields of a body that offer functions."""
    if tools is None:
        return {}
    functions: list[dict[str, Any]] = []
    for tool in tools.functions:
        function: dict[str, Any] = {"name": tool.name, "description": tool.description}
        if tool.parameters:
            function["parameters"] = json.loads(tool.parameters)
        functions.append({"type": "function", "function": function})
    chosen = {"type": "function", "function": {"name": tools.chosen}}
    offered = {"tools": functions, "tool_choice": chosen if tools.chosen else tools.choice}
    return offered if tools.parallel else {**offered, "parallel_tool_calls": False}
