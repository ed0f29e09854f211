"""How the page's texts leave: compressed for who can read that, and kept."""

from __future__ import annotations

import gzip

import brotli
import pytest

from moss_engine.ui.entrance import asgi
from moss_engine.ui.entrance.asgi import Texts

TEXT = b"A text that says the same again. " * 300
HTML = (b"Content-Type", b"text/html; charset=utf-8")


async def sent(
    pieces=(TEXT,), path="/", accepts=b"gzip, deflate, br", headers=(HTML,), status=200, by=None,
    host=b"here", query=b"",
):  # fmt: skip
    """The messages of an answer, as they leave."""
    told = []

    async def send(message):
        told.append(message)

    async def app(scope, receive, send):
        sizes = [(b"content-length", str(sum(map(len, pieces))).encode())]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, *sizes]})
        for place, piece in enumerate(pieces, 1):
            more = place < len(pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    asked = [(b"host", host), (b"accept-encoding", accepts)]
    scope = {"method": "GET", "path": path, "headers": asked, "query_string": query}
    await (by or Texts()).pass_on(app, scope, None, send)
    return told


@pytest.mark.parametrize(
    ("accepts", "how", "read"),
    [
        (b"gzip, deflate, br", b"br", brotli.decompress),
        (b"GZIP;q=0.5", b"gzip", gzip.decompress),
        (b"br;q=0, gzip;q=1.0", b"gzip", gzip.decompress),
        (b"deflate", None, bytes),
    ],
)
async def test_a_text_is_compressed_for_who_reads_that_and_says_so(accepts, how, read):
    start, body = await sent((TEXT[:100], TEXT[100:]), accepts=accepts)
    headers = dict(start["headers"])
    assert read(body["body"]) == TEXT and headers.get(b"content-encoding") == how
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert headers[b"content-type"] == HTML[1]


@pytest.mark.parametrize(
    "answer",
    [
        {"pieces": (b"short",)},
        {"path": "/gradio_api/queue/data"},
        {"path": "/gradio_api/file=/tmp/a.txt"},
        {"headers": [(b"content-type", b"audio/wav")]},
        {"headers": [(b"content-type", b"text/event-stream")], "path": "/gradio_api/queue/data"},
        {"status": 404},
    ],
    ids=str,
)
async def test_everything_else_passes_as_it_is(answer):
    start, *bodies = await sent(**answer)
    assert start["type"] == "http.response.start" and b"vary" not in dict(start["headers"])
    assert [body["body"] for body in bodies] == list(answer.get("pieces", (TEXT,)))


async def test_the_same_text_is_compressed_once_and_kept(monkeypatch):
    made, texts = [], Texts(lambda body: body.replace(b"says", b"speaks"))
    monkeypatch.setitem(asgi.COMPRESS, "br", lambda body: made.append(body) or b"small")
    for _ in range(3):
        assert (await sent(by=texts))[1]["body"] == b"small"
    assert made == [TEXT.replace(b"says", b"speaks")]
    plain = await sent(by=texts, accepts=b"")
    assert plain[1]["body"] == TEXT.replace(b"says", b"speaks"), "the document is rewritten"


async def test_files_whose_name_changes_with_them_are_kept_for_good():
    start, _ = await sent(
        path="/assets/index-1.js", headers=[(b"content-type", b"text/javascript")]
    )
    assert b"immutable" in dict(start["headers"])[b"cache-control"]
    assert b"cache-control" not in dict((await sent())[0]["headers"])


async def test_a_document_is_made_once_for_every_name_of_the_service():
    texts = Texts()
    first = await sent(by=texts, accepts=b"")
    again = await sent((b"made anew",), by=texts, accepts=b"", query=b"page=x")
    other = await sent((b"made anew",), by=texts, accepts=b"", host=b"there")
    assert [told[1]["body"] for told in (first, again, other)] == [TEXT, TEXT, b"made anew"]
    failed = [await sent((str(n).encode(),), status=500, by=texts, host=b"x") for n in range(2)]
    assert [told[1]["body"] for told in failed] == [b"0", b"1"], "what is no document is not kept"
