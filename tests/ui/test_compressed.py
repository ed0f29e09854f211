"""What of the page's answers is compressed: one text, for who can read that."""

from __future__ import annotations

import asyncio
import gzip
from urllib.request import Request, urlopen

import pytest

from moss_engine.ui.entrance import asgi
from moss_engine.ui.entrance.asgi import Compressor

TEXT = b"A text that says the same again. " * 300
HTML = (b"Content-Type", b"text/html; charset=utf-8")


async def sent(
    pieces=(TEXT,), path="/", accepts=b"gzip, deflate, br", headers=(HTML,), status=200, by=None
):
    """The messages of an answer, as they leave."""
    told = []

    async def send(message):
        told.append(message)

    scope = {"path": path, "headers": [(b"accept-encoding", accepts)]}
    sending = (by or Compressor()).for_(scope, send)
    sizes = [(b"content-length", str(sum(map(len, pieces))).encode())]
    await sending({"type": "http.response.start", "status": status, "headers": [*headers, *sizes]})
    for place, piece in enumerate(pieces, 1):
        more = place < len(pieces)
        await sending({"type": "http.response.body", "body": piece, "more_body": more})
    return told


async def test_a_text_is_compressed_and_says_so():
    start, body = await sent()
    assert gzip.decompress(body["body"]) == TEXT and len(body["body"]) < len(TEXT) / 10
    headers = dict(start["headers"])
    assert headers[b"content-encoding"] == b"gzip" and headers[b"vary"] == b"Accept-Encoding"
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert headers[b"Content-Type"] == HTML[1]


@pytest.mark.parametrize(
    "answer",
    [
        {"accepts": b"br, deflate"},
        {"accepts": b"gzip;q=0, br"},
        {"pieces": (TEXT, TEXT)},
        {"pieces": (b"short",)},
        {"pieces": (b"",)},  # to HEAD
        {"path": "/gradio_api/queue/data"},
        {"path": "/gradio_api/file=/tmp/a.txt"},
        {"path": "/assets/index.js"},
        {"headers": [(b"content-type", b"audio/wav")]},
        {"headers": [(b"content-type", b"text/event-stream")], "pieces": (TEXT, b"")},
        {"headers": [HTML, (b"content-encoding", b"br")]},
        {"status": 404},
    ],
    ids=str,
)
async def test_everything_else_passes_as_it_is(answer):
    start, *bodies = await sent(**answer)
    assert start["type"] == "http.response.start" and b"vary" not in dict(start["headers"])
    assert [body["body"] for body in bodies] == list(answer.get("pieces", (TEXT,)))


@pytest.mark.parametrize("accepts", [b"gzip", b"GZIP;q=0.5", b"br;q=1.0, gzip;q=1.0"])
async def test_who_reads_it_is_asked(accepts):
    start, _ = await sent(accepts=accepts)
    assert dict(start["headers"])[b"content-encoding"] == b"gzip"


async def test_the_same_text_is_compressed_once_and_few_are_kept(monkeypatch):
    made, compressor, compress = [], Compressor(), gzip.compress

    def counted(body, *arguments, **named):
        made.append(body)
        return compress(body, *arguments, **named)

    monkeypatch.setattr(asgi.gzip, "compress", counted)
    for _ in range(3):
        _, body = await sent(by=compressor)
        assert gzip.decompress(body["body"]) == TEXT
    assert len(made) == 1
    for number in range(20):
        await sent((TEXT + str(number).encode(),), by=compressor)
    assert len(made) == 21 and len(compressor._kept) == asgi.KEPT


async def test_the_page_is_a_third_and_still_large_enough_to_measure_a_link_by(url):
    def fetch(**headers):
        with urlopen(Request(url, headers=headers)) as answer:
            return answer.read(), answer.headers

    (plain, _), (small, headers) = await asyncio.gather(
        asyncio.to_thread(fetch), asyncio.to_thread(fetch, **{"Accept-Encoding": "gzip"})
    )
    assert headers["Content-Encoding"] == "gzip" and gzip.decompress(small) == plain
    assert 50_000 < len(small) < len(plain) / 3, "WORTH_MEASURING of live_audio_opus.js"
