"""Earlier answers, exactly as they were sampled, by the id that programs know them by."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from moss_engine.api.modes import Mode
from moss_engine.api.request import Content, Reply, Text
from moss_engine.api.tokens import Row
from moss_engine.endpoints.errors import ApiError

KEPT_S = 3600.0
MAX_REPLIES = 256
MAX_ROWS = 200_000


@dataclass(frozen=True)
class Earlier:
    """An answer's rows, and the words that were said with them."""

    rows: tuple[Row, ...]
    words: str

    def content(self, mode: Mode) -> Content:
        """As a mode takes it as history."""
        return Text(self.words) if mode.through_text else Reply(self.rows)


class Memory:
    """Keeps the newest `MAX_REPLIES` of at most `MAX_ROWS` rows for `KEPT_S`; ids are secrets."""

    def __init__(self, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._replies: OrderedDict[str, tuple[float, Earlier]] = OrderedDict()
        self._num_rows = 0

    @staticmethod
    def new_id() -> str:
        return f"audio_{secrets.token_hex(16)}"

    def expires_at(self) -> int:
        """When an answer that is kept now is forgotten, in seconds of the epoch."""
        return int(self._clock() + KEPT_S)

    def keep(self, name: str, rows: tuple[Row, ...], words: str) -> None:
        self._replies[name] = (self._clock() + KEPT_S, Earlier(rows, words))
        self._num_rows += len(rows)
        self._forget()

    def find(self, name: str) -> Earlier:
        """Raises ApiError for an id that is unknown or too old."""
        self._forget()
        found = self._replies.get(name)
        if found is None:
            raise ApiError(
                400,
                f"No earlier answer has the id {name[:48]!r}, or it is older than "
                f"{KEPT_S / 60:g} minutes; send its words as content instead.",
                "unknown_audio",
            )
        return found[1]

    def _forget(self) -> None:
        now_s = self._clock()
        while self._replies and (
            len(self._replies) > MAX_REPLIES
            or self._num_rows > MAX_ROWS
            or next(iter(self._replies.values()))[0] < now_s
        ):
            _, (_, earlier) = self._replies.popitem(last=False)
            self._num_rows -= len(earlier.rows)
