"""A server of OpenAI's chat completions, streamed: every piece of its answer, or one sentence that
says what is wrong with it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
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
MAX_TOKENS = 600
MAX_CHARS = 6000
MAX_LINE_BYTES = 1 << 20
TOLD_CHARS = 160  # of its own words in a sentence of ours


class ChatServer:
    """`url` as in http://localhost:11434, with or without /v1; `key` goes along as a bearer token.

    Raises ConfigError for an address that is none.
    """

    def __init__(self, url: str, model: str, key: str = ""):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--brain is {url!r}; give an address such as http://localhost:11434."
            )
        base = url.rstrip("/")
        self.host = parts.netloc.rpartition("@")[2]
        self.model = model
        self._url = f"{base if base.endswith('/v1') else f'{base}/v1'}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def stream(self, messages: list[dict[str, str]]) -> AsyncGenerator[str, None]:
        """The pieces of an answer; raises BrainError where it breaks off, takes too long or does
        not end."""
        import httpx

        body: dict[str, Any] = {"model": self.model, "messages": messages}
        body |= {"stream": True, "max_tokens": MAX_TOKENS}
        limits = httpx.Timeout(CONNECT_S, read=SILENT_S)
        num_chars, end_s = 0, time.monotonic() + WHOLE_S
        try:
            async with (
                httpx.AsyncClient(timeout=limits, trust_env=False) as client,
                client.stream("POST", self._url, json=body, headers=self._headers) as answer,
            ):
                await self._require_stream(answer)
                async with aclosing(_events(answer, self.host)) as events:
                    async for event in events:
                        piece = _content(event, self.host)
                        num_chars += len(piece)
                        if num_chars > MAX_CHARS or time.monotonic() > end_s:
                            raise BrainError(
                                f"The brain at {self.host} did not come to an end; ask for less."
                            )
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


async def _read(answer: httpx.Response) -> bytes:
    """The beginning of an answer that is no stream."""
    body = b""
    async for block in answer.aiter_bytes():
        body += block
        if len(body) > TOLD_CHARS * 4:
            break
    return body


async def _events(answer: httpx.Response, host: str) -> AsyncGenerator[str, None]:
    """The data of server-sent events, to [DONE] or the end."""
    rest = b""
    async for block in answer.aiter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise BrainError(f"The brain at {host} sent a line without an end; check --brain.")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip().decode("utf-8", "replace")
                if data == "[DONE]":
                    return
                yield data


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
