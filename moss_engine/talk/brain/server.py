"""A server of OpenAI's chat completions, streamed: every piece of its answer, or one sentence that
says what is wrong with it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from moss_engine.api.errors import BrainError, ConfigError

if TYPE_CHECKING:
    import httpx

CONNECT_S = 5.0
SILENT_S = 30.0
"""The longest that it may think between two pieces of an answer."""
WHOLE_S = 120.0
"""The longest that a whole answer may be waited for."""
MAX_TOKENS = 600
MAX_CHARS = 6000
MAX_LINE_BYTES = 1 << 20
TOLD_CHARS = 160  # of its own words in a sentence of ours


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
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def stream(self, messages: list[dict[str, str]]) -> AsyncGenerator[str, None]:
        """The pieces of an answer; raises BrainError where it breaks off, takes too long or does
        not end."""
        import httpx

        body: dict[str, Any] = {"model": self.model, "messages": messages}
        body |= {"stream": True, "max_tokens": MAX_TOKENS}
        limits = httpx.Timeout(CONNECT_S, read=SILENT_S)
        num_chars, begun_s = 0, self._clock()
        try:
            async with (
                httpx.AsyncClient(timeout=limits, trust_env=False) as client,
                client.stream("POST", self._url, json=body, headers=self._headers) as answer,
            ):
                await self._require_stream(answer)
                left_s = WHOLE_S - (self._clock() - begun_s)
                async with aclosing(self._events(answer, left_s)) as events:
                    async for event in events:
                        piece = _content(event, self.host)
                        num_chars += len(piece)
                        if num_chars > MAX_CHARS:
                            raise self._endless()
                        if piece:
                            yield piece
        except httpx.ConnectError:
            raise BrainError(f"Nobody answers at {self.host}; start the brain there.") from None
        except httpx.TimeoutException:
            raise BrainError(
                f"The brain at {self.host} was silent for {SILENT_S:g} s; ask again, or take a "
                "smaller model."
            ) from None
        except httpx.HTTPError as error:
            raise BrainError(
                f"The brain at {self.host} broke off ({type(error).__name__}); ask again."
            ) from None

    async def _require_stream(self, answer: httpx.Response) -> None:
        kind = answer.headers.get("content-type", "")
        if answer.status_code == 200 and "text/event-stream" in kind:
            return
        told = (await _read(answer)).decode("utf-8", "replace")
        told = " ".join(told.split())[:TOLD_CHARS]
        if answer.status_code in (401, 403):
            raise BrainError(
                f"The brain at {self.host} refuses the key; give it in MOSS_BRAIN_KEY."
            )
        if answer.status_code != 200:
            raise BrainError(
                f"The brain at {self.host} refused the question ({answer.status_code}: {told}); "
                "check --brain and --brain-model."
            )
        raise BrainError(
            f"The brain at {self.host} sent {kind or 'nothing'} instead of a stream; check --brain."
        )

    async def _events(self, answer: httpx.Response, left_s: float) -> AsyncGenerator[str, None]:
        """The data of server-sent events, to [DONE] or the end; `left_s` is how long they may be
        waited for, not counting what is done with them in between."""
        rest, asked_s = b"", self._clock()
        async for block in answer.aiter_bytes():
            left_s -= self._clock() - asked_s
            if left_s < 0:
                raise self._endless()
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise BrainError(
                    f"The brain at {self.host} sent a line without an end; check --brain."
                )
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip().decode("utf-8", "replace")
                    if data == "[DONE]":
                        return
                    yield data
            asked_s = self._clock()

    def _endless(self) -> BrainError:
        return BrainError(f"The brain at {self.host} did not come to an end; ask for less.")


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


async def _read(answer: httpx.Response) -> bytes:
    """The beginning of an answer that is no stream."""
    body = b""
    async for block in answer.aiter_bytes():
        body += block
        if len(body) > TOLD_CHARS * 4:
            break
    return body


def _content(data: str, host: str) -> str:
    """The text of one event; raises BrainError where it is not as agreed."""
    wrong = BrainError(f"The brain at {host} sent something that is no answer; check --brain.")
    try:
        event: Any = json.loads(data)
        if "error" in event:
            told = str(event["error"])[:TOLD_CHARS]
            raise BrainError(f"The brain at {host} failed ({told}); ask again.")
        choices = event["choices"]
        text = (choices[0].get("delta") or {}).get("content") if choices else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise wrong from None
    if text is not None and not isinstance(text, str):
        raise wrong
    return text or ""
