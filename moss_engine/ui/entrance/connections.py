"""Connections that cost too much: half-sent, unread, or too many.

uvicorn waits for the rest of a request, and for somebody to read its answer, as long as the other
side likes; every wait is a file handle, and when the last one is used nobody is let in. Here every
wait has an end, and a newcomer takes the place of the connection that has asked nothing for
longest.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None

HEAD_S = 10.0  # for the head of a request, from the connection or the last answer on
BODY_S = 120.0  # for a whole body
PIECE_S = 15.0  # from one piece of a body to the next
UNREAD_S = 30.0  # for somebody to take what was written
CHECK_S = 1.0
MAX_PER_ADDRESS = 128  # many visitors behind one router are one address
MAX_CONNECTIONS = 1024
OTHER_FILES = 96  # that the program itself opens
SEND_BUFFER_BYTES = 128 * 1024  # what may be on its way at a time
UNSENT_BYTES = 4 * 1024  # what waits for that, here and in the system


def max_connections() -> int:
    """As many as this process may open files for."""
    if resource is None:
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(8, min(MAX_CONNECTIONS, soft - OTHER_FILES))


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """uvicorn servers that are started meanwhile have bounded connections; Gradio starts its own
    with uvicorn's defaults."""
    usual = HTTP_PROTOCOLS["auto"]
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{Connection.__name__}"
    try:
        yield
    finally:
        HTTP_PROTOCOLS["auto"] = usual


class Connection(H11Protocol):
    """One connection of a uvicorn server."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._began_s = self._heard_s = self.loop.time()
        self._unread_since_s: float | None = None
        self._timer = self.loop.call_later(CHECK_S, self._check)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not on Windows
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._began_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._unread_since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        super().resume_writing()

    @property
    def is_idle(self) -> bool:
        """Whether no complete request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """Close the longest idle connection where there are too many, of this address or in all;
        this one where all of them are being served."""
        everybody = [other for other in self.connections if isinstance(other, Connection)]
        address = self.client[0] if self.client else ""
        mine = [other for other in everybody if other.client and other.client[0] == address]
        for others, most in ((mine, MAX_PER_ADDRESS), (everybody, max_connections())):
            if len(others) > most:
                idle = [other for other in others if other.is_idle and other is not self]
                min(idle, key=lambda other: other._began_s, default=self).drop()

    def drop(self) -> None:
        """Close without another word."""
        self.connections.discard(self)
        self.transport.abort()

    def _check(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # over, or a WebSocket by now
        if self._is_overdue(self.loop.time()):
            self.drop()
        else:
            self._timer = self.loop.call_later(CHECK_S, self._check)

    def _is_overdue(self, now_s: float) -> bool:
        if self.is_idle:
            return now_s - self._began_s > HEAD_S
        if self.cycle.more_body and not self.flow.read_paused:
            return now_s - self._began_s > BODY_S or now_s - self._heard_s > PIECE_S
        return self._unread_since_s is not None and now_s - self._unread_since_s > UNREAD_S
