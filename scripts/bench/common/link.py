"""A slow link: a TCP proxy on this machine that passes so many bits a second, so much later."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

SEGMENT_BYTES = 1460  # at a time, so that connections share the link as on a real one
LATE_S = 0.05  # by which this machine may wake up too late without making the link slower
HELD_BYTES = 32_768  # that the link itself holds; a sender with more has to wait


class Link:
    """From a port of its own to `port`. All connections share `bits_s`, which may be changed at any
    time, in each direction; `round_trip_s` is added to every answer, and to every new connection.
    """

    def __init__(self, port: int, bits_s: float, round_trip_s: float):
        self.bits_s, self.round_trip_s = bits_s, round_trip_s
        self.port = 0  # where it listens, once entered
        self.received_bytes = 0  # by the browser
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        self._turns = {"up": asyncio.Lock(), "down": asyncio.Lock()}
        self._free_s = {"up": 0.0, "down": 0.0}
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=HELD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until one of its ends is closed or the link is taken down."""
        await asyncio.sleep(self.round_trip_s)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self._to, limit=HELD_BYTES)
            ways = [
                asyncio.ensure_future(self._pass("up", reader, back)),
                asyncio.ensure_future(self._pass("down", there, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                back.close()
                writer.close()

    async def _pass(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Segments through the bottleneck one after the other, and then on their way."""
        travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.ensure_future(self._arrive(way, travelling, writer))
        try:
            while data := await reader.read(SEGMENT_BYTES):
                async with self._turns[way]:
                    begins_s = max(self._free_s[way], self._loop.time() - LATE_S)
                    self._free_s[way] = begins_s + 8 * len(data) / self.bits_s
                    await asyncio.sleep(self._free_s[way] - self._loop.time())
                travelling.put_nowait((self._loop.time() + self.round_trip_s / 2, data))
            travelling.put_nowait((self._loop.time() + self.round_trip_s / 2, b""))
            await arriving
        finally:
            arriving.cancel()

    async def _arrive(
        self, way: str, travelling: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        """Each at its time, until the end."""
        while True:
            due_s, data = await travelling.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            if not data:
                return
            if way == "down":
                self.received_bytes += len(data)
            writer.write(data)
            await writer.drain()
