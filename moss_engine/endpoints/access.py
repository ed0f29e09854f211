"""Who may call: the keys of a file with their limits, or whoever is on this machine."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from moss_engine.api.errors import ConfigError
from moss_engine.endpoints.errors import ApiError

SUBPROTOCOL = "openai-insecure-api-key."
"""How a browser, which can set no headers on a WebSocket, sends its key; the name is OpenAI's."""
MINUTE_S = 60.0
MAX_CONNECTIONS = 128
"""Realtime connections of one caller: each takes a file handle, of which everybody needs some."""
MIN_KEY_CHARS = 16
ISSUED = "ek_"
"""Prefix of short-lived keys."""
MAX_ISSUED = 1024
MAX_HELD = 32 << 20
"""Characters of events that may wait on all realtime connections of a caller together."""
SHAPE = "NAME KEY [places=N] [per_minute=N]"


@dataclass(eq=False)
class Caller:
    """The owner of a key, what the key allows, and what of that is in use: `places` replies at a
    time and `per_minute` calls a minute; None: no limit but the service's."""

    name: str
    places: int | None = None
    per_minute: int | None = None
    clock: Callable[[], float] = time.monotonic
    num_open: int = 0
    num_connections: int = 0
    num_held: int = 0
    _calls: deque[float] = field(default_factory=deque)  # when they were, of the last minute

    def call(self) -> None:
        """Count a call; raises ApiError (429) if there were too many within a minute."""
        if self.per_minute is None:
            return
        now_s = self.clock()
        while self._calls and now_s - self._calls[0] >= MINUTE_S:
            self._calls.popleft()
        if len(self._calls) >= self.per_minute:
            wait_s = math.ceil(MINUTE_S - (now_s - self._calls[0]))
            allowed = f"The key of {self.name} allows {self.per_minute} calls a minute"
            raise _later(f"{allowed}; try again in {wait_s} s.", "rate_limit_exceeded", wait_s)
        self._calls.append(now_s)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Held while a reply is open; raises ApiError (429) if all places of the key are taken."""
        if self.places is not None and self.num_open >= self.places:
            allowed = f"The key of {self.name} allows {self.places} replies at a time"
            raise _later(f"{allowed}; wait until one is over.", "places_exceeded", 1)
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Held while a realtime connection is open; raises ApiError (429) if there are many."""
        if self.num_connections >= MAX_CONNECTIONS:
            full = f"{MAX_CONNECTIONS} realtime connections are open; close one of them."
            raise _later(full, "connections_exceeded", 1)
        self.num_connections += 1
        try:
            yield
        finally:
            self.num_connections -= 1


Keys = tuple[tuple[bytes, Caller], ...]
"""Digests of keys, and their owners."""


@dataclass(frozen=True)
class Issued:
    """A short-lived key: its owner and the settings of its sessions, until a time."""

    caller: Caller
    settings: dict[str, Any]
    ends_s: float


class Access:
    """`keys` are the operator's. Without any, everybody may call if `open_to_all`, which means that
    only this machine can reach the service; otherwise nobody may."""

    def __init__(self, keys: Keys = (), *, open_to_all: bool = False):
        self._callers = dict(keys)
        self._local = Caller("local") if open_to_all and not keys else None
        self._issued: dict[bytes, Issued] = {}

    @property
    def by_key(self) -> bool:
        return bool(self._callers)

    @property
    def answers(self) -> bool:
        """Whether anybody may call at all."""
        return self.by_key or self._local is not None

    def caller(self, scope: dict[str, Any]) -> Caller:
        """Who calls; raises ApiError (401, or 403 for a page of another origin)."""
        headers = Headers(scope=scope)
        if self._local is not None:
            _refuse_other_origins(headers)
            return self._local
        if not self.by_key:
            raise ApiError(
                401,
                "This address answers programs with a key only, and has none; its operator starts "
                "it with --api-key-file.",
                "no_keys",
            )
        found = self._callers.get(digest_of(_key_in(headers)))
        if found is None:
            raise ApiError(
                401,
                "The key is missing or unknown; send the header Authorization: Bearer KEY.",
                "invalid_api_key",
            )
        return found

    def issue(self, caller: Caller, settings: dict[str, Any], seconds: int) -> tuple[str, int]:
        """A key that opens realtime sessions with these settings, and when it ends, in Unix time.
        Raises ApiError (429) where there are many."""
        now_s = time.time()
        self._issued = {key: held for key, held in self._issued.items() if held.ends_s > now_s}
        if len(self._issued) >= MAX_ISSUED:
            full = f"{MAX_ISSUED} short-lived keys are out; ask again when some have ended."
            raise _later(full, "secrets_exceeded", 60)
        key, ends_s = f"{ISSUED}{secrets.token_urlsafe(32)}", int(now_s) + seconds
        self._issued[digest_of(key)] = Issued(caller, settings, ends_s)
        return key, ends_s

    def of_realtime(self, scope: dict[str, Any]) -> tuple[Caller, dict[str, Any]]:
        """Who opens a realtime session, and with which settings. A short-lived key works from any
        web page, as somebody with a key asked for it. Raises ApiError."""
        key = _key_in(Headers(scope=scope))
        if not key.startswith(ISSUED):
            return self.caller(scope), {}
        held = self._issued.get(digest_of(key))
        if held is None or held.ends_s <= time.time():
            raise ApiError(
                401, "The short-lived key has ended, or is unknown; ask for another one.",
                "invalid_api_key",
            )  # fmt: skip
        return held.caller, held.settings


def _later(sentence: str, code: str, wait_s: int) -> ApiError:
    return ApiError(429, sentence, code, retry_after_s=wait_s)


def digest_of(key: str) -> bytes:
    """Keys are looked up by this digest, so that the time it takes tells nothing of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> Keys:
    """The keys of a file, one a line; empty lines and those that begin with # are skipped.

    Raises ConfigError that names the line, never the key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"--api-key-file {path} cannot be read; name a text file with lines of {SHAPE}."
        ) from None
    keys = tuple(
        _parse(f"{path}, line {number}", line.split())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not keys:
        raise ConfigError(f"{path} holds no key; write lines of {SHAPE}.")
    digests, callers = zip(*keys, strict=True)
    for what, values in (("name", [caller.name for caller in callers]), ("key", digests)):
        if len(set(values)) < len(values):
            raise ConfigError(f"{path} has the same {what} twice; give every line its own.")
    return keys


def _parse(place: str, words: list[str]) -> tuple[bytes, Caller]:
    if len(words) < 2:
        raise ConfigError(f"{place} is incomplete; write {SHAPE}.")
    name, key, *limits = words
    if len(key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"The key of {place} is short enough to be guessed; give it {MIN_KEY_CHARS} or more "
            "characters, as from: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    values: dict[str, int] = {}
    for limit in limits:
        what, _, number = limit.partition("=")
        if what not in ("places", "per_minute") or not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"{place} has a limit that is none; write {SHAPE}.")
        values[what] = int(number)
    return digest_of(key), Caller(name, values.get("places"), values.get("per_minute"))


def _key_in(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(SUBPROTOCOL):
            return protocol.strip().removeprefix(SUBPROTOCOL)
    return ""


def _refuse_other_origins(headers: Headers) -> None:
    """A web page elsewhere must not use a service that trusts this machine."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise ApiError(
            403,
            "Pages of other addresses may not call this service; start it with --api-key-file "
            "and send a key.",
            "foreign_origin",
        )
