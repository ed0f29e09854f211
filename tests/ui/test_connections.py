"""A server whose connections are bounded, and visitors who send half of what they should."""

import asyncio
import contextlib
import logging
import time

import h11
import pytest
import uvicorn

from moss_engine.ui.entrance import connections
from moss_engine.ui.entrance.connections import bounded
from tests.ui.page_support import PATIENCE_S, free_port


async def app(scope, receive, send):
    """Answers after the whole body with more than the system takes of an answer nobody reads."""
    if scope["type"] == "websocket":
        await (accepted if scope["path"] == "/open" else refused)(receive, send)
        return
    while scope["path"] != "/early" and (await receive()).get("more_body"):
        pass
    size = 16 * 1024 * 1024 if scope["path"] in ("/large", "/broken") else 2
    head = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for start in range(0, size, 65536):
        block = b"x" * min(65536, size - start)
        more = start + len(block) < size
        await send({"type": "http.response.body", "body": block, "more_body": more})
        if scope["path"] == "/broken":
            return


async def accepted(receive, send):
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def refused(receive, send):
    await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b"{}"})


@contextlib.asynccontextmanager
async def served(monkeypatch, **limits):
    """Opens connections that send something; closes them at the end."""
    for name, value in {"CHECK_S": 0.02, **limits}.items():
        monkeypatch.setattr(connections, name, value)
    port = free_port()
    with bounded():
        config = uvicorn.Config(app, port=port, log_level="error", lifespan="off")
        config.load()
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    writers = []

    async def connect(sent: bytes = b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        writer.write(sent)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        server.should_exit = server.force_exit = True
        await task


async def over(reader) -> float:
    """Seconds until the other side closes."""
    began_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    return time.monotonic() - began_s


ANSWERED = b"HTTP/1.1 200"
ASKED = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def answered(connect) -> bytes:
    reader, _ = await connect(ASKED)
    return await asyncio.wait_for(reader.read(), PATIENCE_S)


HALF = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", HALF])
async def test_half_a_head_and_half_a_body_are_not_waited_for(monkeypatch, sent):
    async with served(monkeypatch, HEAD_S=0.2, PIECE_S=0.2) as connect:
        reader, _ = await connect(sent)
        await over(reader)
        assert (await answered(connect)).endswith(b"xx")


async def test_a_body_that_trickles_has_an_end(monkeypatch):
    async with served(monkeypatch, PIECE_S=60.0, BODY_S=0.3) as connect:
        reader, writer = await connect(HALF)
        closed = asyncio.ensure_future(over(reader))
        while not closed.done():
            writer.write(b".")
            await asyncio.sleep(0.02)
        assert (await answered(connect)).endswith(b"xx")


@pytest.mark.parametrize("how", ["length", "chunks"])
async def test_what_comes_of_a_body_behind_its_answer_is_no_request(monkeypatch, how):
    async with served(monkeypatch) as connect:
        head = b"POST /early HTTP/1.1\r\nHost: x\r\n"
        rest = b"GET /other HTTP/1.1\r\n\r\n" * 40_000
        if how == "length":
            head += f"Content-Length: {len(rest)}\r\n\r\n".encode()
        else:
            head += b"Transfer-Encoding: chunked\r\n\r\n"
            rest = f"{len(rest):x}\r\n".encode() + rest + b"\r\n0\r\n\r\n"
        reader, writer = await connect(head)
        assert (await asyncio.wait_for(reader.readuntil(b"xx"), PATIENCE_S)).startswith(ANSWERED)
        writer.write(rest + ASKED)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answer.startswith(ANSWERED) and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", [b"/", b"/early"])
async def test_thousands_of_tiny_pieces_leave_others_their_turn(monkeypatch, path):
    taken, longest = 0, 0

    def counted(conn):
        nonlocal taken
        event = usual(conn)
        taken += isinstance(event, h11.Data)
        return event

    async def watch():
        nonlocal taken, longest
        while True:
            taken = 0
            await asyncio.sleep(0)
            longest = max(longest, taken)

    usual = connections.Counting.next_event
    monkeypatch.setattr(connections.Counting, "next_event", counted)
    async with served(monkeypatch) as connect:
        watching = asyncio.ensure_future(watch())
        head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await connect(head + b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n")
        answer = await asyncio.wait_for(reader.readuntil(b"xx"), PATIENCE_S)
        watching.cancel()
        assert answer.startswith(ANSWERED) and 0 < longest <= 2 * connections.PIECES_AT_ONCE
        writer.write(ASKED)
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(ANSWERED)


async def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    async with served(monkeypatch, UNREAD_S=0.2) as connect:
        reader, writer = await connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        transport = writer.transport
        transport.pause_reading()
        await asyncio.sleep(0)
        while not (await answered(connect)).endswith(b"xx"):
            pass
        await asyncio.sleep(0.6)
        transport.resume_reading()
        with contextlib.suppress(ConnectionError):
            received = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert len(received) < 16 * 1024 * 1024


@pytest.mark.parametrize("limit", ["MAX_PER_ADDRESS", "MAX_CONNECTIONS"])
async def test_a_newcomer_takes_the_place_of_who_asked_nothing_for_longest(monkeypatch, limit):
    async with served(monkeypatch, **{limit: 8}) as connect:
        idle = [await connect() for _ in range(20)]
        assert (await answered(connect)).endswith(b"xx")
        first_reader, _ = idle[0]
        await over(first_reader)


OPEN = (
    b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
LONG = b"\x81\xff" + (1 << 20).to_bytes(8, "big") + b"mask"  # the head of a text of 1 MB


async def opened(connect, path=b"open"):
    reader, writer = await connect(OPEN % path)
    return reader, writer, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)


async def test_websockets_are_not_compressed_and_share_their_memory(monkeypatch):
    async with served(monkeypatch, MAX_UNREAD_BYTES=2 << 20, FEW_BYTES=1024) as connect:
        closed = []
        for _ in range(8):
            reader, writer, head = await opened(connect)
            assert b" 101 " in head and b"permessage-deflate" not in head
            writer.write(LONG + bytes(500_000))
            closed.append(asyncio.ensure_future(over(reader)))
        await asyncio.wait(closed, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.2)
        assert sum(end.done() for end in closed) == 4, "four times 500 kB fit into 2 MB"
        for end in closed:
            end.cancel()
        await asyncio.gather(*closed, return_exceptions=True)


async def test_half_a_message_is_not_waited_for(monkeypatch):
    async with served(monkeypatch, PIECE_S=0.2) as connect:
        reader, writer, _ = await opened(connect)
        writer.write(LONG + b"half")
        assert await over(reader) < PATIENCE_S / 2


async def test_what_is_refused_or_breaks_off_is_no_fault_in_the_log(monkeypatch, caplog):
    async with served(monkeypatch) as connect:
        with caplog.at_level(logging.WARNING, "uvicorn.error"):
            logging.getLogger("uvicorn.error").addHandler(caplog.handler)
            *_, head = await opened(connect, b"refused")
            reader, _ = await connect(
                b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            )
            assert b" 200 " in await reader.readline()
            reader, _ = await connect(b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n")
            assert len(await reader.read()) < 100_000
            head_of_chunks = (
                b"POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            reader, _ = await connect(head_of_chunks + b"no length\r\n")
            assert b" 400 " in await reader.readline()
            await asyncio.sleep(0.1)
            logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
        told = {record.getMessage() for record in caplog.records}
        assert b" 401 " in head and told == {"Invalid HTTP request received."}
