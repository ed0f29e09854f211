"""Connections that cost too much: half-sent, unread, or too many.

uvicorn waits for the rest of a request, and for somebody to read its answer, as long as the other
side likes; every wait is a file handle, and when the last one is used nobody is let in. Here every
wait has an end, and a newcomer takes the place of the connection that has asked nothing for
longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import h11
from uvicorn.config import HTTP_PROTOCOLS, WS_PROTOCOLS
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

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
MAX_UNREAD_BYTES = 32 << 20  # of messages on an address's WebSockets that nobody has taken yet
FEW_BYTES = 64 * 1024  # of one WebSocket, which are always let in
FRAME_BYTES = 64  # that a part of a message costs beside its content
PIECES_AT_ONCE = 4  # of a connection's bodies, in a round of the event loop


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
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    usual = HTTP_PROTOCOLS["auto"], WS_PROTOCOLS["auto"]
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{Connection.__name__}"
    WS_PROTOCOLS["auto"] = f"{__name__}:{Socket.__name__}"
    try:
        yield
    finally:
        HTTP_PROTOCOLS["auto"], WS_PROTOCOLS["auto"] = usual


NO_FAULTS = ("ASGI callable returned without completing response.", "Unsupported upgrade request.")


def _is_fault(record: logging.LogRecord) -> bool:
    """Not so a stream that breaks off: without its end it does not look whole, and its own line in
    the log says why. Nor an offer of HTTP/2, as Java's clients send with each call."""
    return record.getMessage() not in NO_FAULTS


class Counting(h11.Connection):
    """Behind `num_pieces` more pieces of a body nothing more seems to be there."""

    num_pieces = PIECES_AT_ONCE
    last: Any = h11.NEED_DATA

    def next_event(self) -> Any:
        if not self.num_pieces:
            return h11.NEED_DATA
        self.last = event = super().next_event()
        self.num_pieces -= isinstance(event, h11.Data)
        return event


class Flow(FlowControl):
    """Reads nothing while `is_held`."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class Connection(H11Protocol):
    """One connection of a uvicorn server. Of what came at once, which may be thousands of chunks of
    a byte, only some pieces are taken before others have their turn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = self._counting = Counting(h11.SERVER)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = self._flow = Flow(transport)
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

    def handle_events(self) -> None:
        if self._flow.is_held:
            return
        self._counting.num_pieces = PIECES_AT_ONCE
        super().handle_events()
        if not self._counting.num_pieces:
            self._flow.is_held = True
            self.flow.pause_reading()
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._flow.is_held = False
        if self.transport.is_closing():
            return
        self.handle_events()
        if self._flow.is_held or self._counting.last is not h11.NEED_DATA:
            return
        if self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self._began_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._unread_since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP; the request whose body it is gets no other answer."""
        if not self.is_idle:
            self.cycle.disconnected = True
        if not self.is_idle and self.cycle.response_started:
            self.drop()
        else:
            super().send_400_response(msg)

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
        if self.cycle.more_body and (self._flow.is_held or not self.flow.read_paused):
            return now_s - self._began_s > BODY_S or now_s - self._heard_s > PIECE_S
        return self._unread_since_s is not None and now_s - self._unread_since_s > UNREAD_S


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket of a uvicorn server. Nothing is compressed on it, since few bytes would become
    many; what an address sends and nobody has taken yet is bounded over all its WebSockets."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        config.ws_per_message_deflate = False
        super().__init__(config, *args, **kwargs)
        self._unread_bytes = 0
        self._began_s = self._heard_s = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(CHECK_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def is_unfinished(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self.frames or self.conn.reader.buffer)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        if not self.is_unfinished:
            self._began_s = self._heard_s
        self._unread_bytes += len(data)
        super().data_received(data)
        if self.queue.empty() and not self.is_unfinished:  # a ping, or the handshake
            self._unread_bytes = 0
        elif self._unread_bytes > FEW_BYTES and self._unread_of_address() > MAX_UNREAD_BYTES:
            self._fail(
                f"Over {MAX_UNREAD_BYTES >> 20} MB of messages are on their way; send less at once."
            )

    def handle_cont(self, event: Any) -> None:
        self._unread_bytes += FRAME_BYTES
        super().handle_cont(event)

    async def receive(self) -> Any:
        message = await super().receive()
        if self.queue.empty():
            self._unread_bytes = len(self.conn.reader.buffer)
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # uvicorn logs a refusal as a fault otherwise

    def _unread_of_address(self) -> int:
        address = self.client and self.client[0]
        return sum(
            other._unread_bytes
            for other in self.connections
            if isinstance(other, Socket) and (other.client and other.client[0]) == address
        )

    def _check(self) -> None:
        """Messages that stop in the middle are not waited for."""
        now_s = self.loop.time()
        late = now_s - self._began_s > BODY_S or now_s - self._heard_s > PIECE_S
        if self.is_unfinished and late and not self.read_paused:
            self._fail("The message did not arrive in time; send it again.")
        elif not self.transport.is_closing():
            self._timer = self.loop.call_later(CHECK_S, self._check)

    def _fail(self, sentence: str) -> None:
        if self.close_sent or not self.handshake_complete:
            self.transport.abort()
            return
        self.conn.fail(1009, sentence)
        self.handle_parser_exception()
        self.frames, self._unread_bytes = [], 0
        self.conn.reader.buffer.clear()
