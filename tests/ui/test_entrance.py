"""In front of Gradio: what passes the guard, the password, and how the page's texts leave."""

from __future__ import annotations

import asyncio
import gzip
import json
from functools import partial
from threading import Event
from urllib.parse import urlencode

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from moss_engine.ui.entrance import asgi
from moss_engine.ui.entrance.asgi import MAX_BODY_BYTES, Refused, Texts
from moss_engine.ui.entrance.guard import DOOR, MAX_HEAD_BYTES, Call, Guard, parse_json
from moss_engine.ui.entrance.login import GUESSES, GUESSES_S, Login
from tests.ui.page_support import asked

CALLS = {"reply": Call(0, 3, (True,)), "stop": Call(2, 0)}
GOOD = {"fn_index": 0, "session_hash": "abcdefgh12", "data": ["hi \U0001f600", 1.5, True]}


async def app(scope, receive, send):
    """Answers 200 with the body it was given."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": message.get("body", b"")})


async def ask(
    path, body=None, *, state="ready", hosts=None, host="127.0.0.1:7860", parts=1, more=(), query=""
):
    """Status, body and headers of one request: POST if there is a body."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    scope = {
        "path": path,
        "method": "GET" if body is None else "POST",
        "headers": [(b"host", host.encode()), (b"content-type", b"application/json"), *more],
        "query_string": query.encode(),
    }

    async def state_of():
        return state

    guard = Guard(app, calls=CALLS, state=state_of, hosts=hosts, is_session=lambda n: n == "known")
    status, headers, told = await asked(guard, scope, raw, parts)
    return status, told, headers


PASSING = """/ /assets/x.js /gradio_api/heartbeat/abc /gradio_api/call/reply/known /config
/gradio_api/file=/tmp/a.wav /gradio_api/info /theme.css""".split()
CLOSED = """/gradio_api/proxy=http://x /gradio_api/api/reply /gradio_api/component_server
/gradio_api/vibe-edit /gradio_api/upload /gradio_api/stream/abc/0/1/playlist.m3u8
/gradio_api/file=https://example.com/a /gradio_api/call/v2/reply /gradio_api/openapi.json
/monitoring/summary /pwa_icon/14000 /openapi.json /x%0aforged // /assets""".split()


@pytest.mark.parametrize("path", PASSING)
async def test_what_the_page_needs_passes(path):
    assert (await ask(path))[0] == 200


@pytest.mark.parametrize("path", [*CLOSED, "/gradio_api/heartbeat/a\nb", "/assets/" + "a" * 300])
async def test_closed_routes_are_not_there(path):
    assert (await ask(path))[0] == 404
    assert (await ask(path, {}))[0] == 404


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/gradio_api/call/reply/nobody", ""),
        ("/gradio_api/queue/data", "session_hash=nobody"),
        ("/gradio_api/queue/data", ""),
    ],
)
async def test_who_listens_to_what_is_not_there_is_told_so(path, query):
    status, body, _ = await ask(path, query=query)
    assert status == 404 and b"nothing to listen to" in body


async def test_a_good_call_arrives_unchanged_in_one_piece():
    status, body, headers = await ask("/gradio_api/queue/join", GOOD, parts=7)
    assert status == 200 and json.loads(body) == GOOD
    assert headers[b"x-content-type-options"] == b"nosniff" and headers[b"x-own"] == b"1"


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("queue/join", {"fn_index": 1}, 404),
        ("queue/join", {"fn_index": "0"}, 404),
        ("queue/join", {"fn_index": True}, 404),
        ("run/reply", {}, 404),  # past the queue
        ("call/stop", {"fn_index": None, "data": []}, 200),  # by its name alone
        ("queue/join", {"fn_index": 2, "data": []}, 200),
        ("call/reply", {}, 200),
        ("call/nothing", {}, 404),
        ("call/reply", {"data": []}, 422),
        ("queue/join", {"data": ["hi"]}, 422),
        ("queue/join", {"data": [*GOOD["data"], 1]}, 422),
        ("queue/join", {"data": "hi"}, 422),
        ("queue/join", {"session_hash": "i"}, 200),  # what Gradio's page makes of one half
        ("queue/join", {"session_hash": ""}, 400),
        ("queue/join", {"session_hash": "x" * 65}, 400),
        ("queue/join", {"session_hash": "../../etc/passwd"}, 400),
        ("queue/join", {"session_hash": 12345678}, 400),
    ],
)
async def test_calls_are_held_against_the_pages_functions(path, change, status):
    assert (await ask(f"/gradio_api/{path}", {**GOOD, **change}))[0] == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"fn_index": 0, "data": ["hi", NaN, true]}',
        b'{"fn_index": 0, "data": ["hi", 1e999, true]}',
        b"[" * 30 + b"]" * 30,
        b"[" * 100_000,
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"fn_index": 0, "data": ["half \\ud800", 1.5, true]}',
    ],
)
async def test_json_that_is_none_is_refused(body):
    assert (await ask("/gradio_api/queue/join", body))[0] == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_refused(body):
    try:
        known = parse_json(body)
    except Refused as refused:
        known = refused.status
    assert known == 400 or json.dumps(known, allow_nan=False)


async def test_large_bodies_and_heads_are_cut_off_before_they_are_read_whole():
    body = json.dumps({**GOOD, "data": ["x" * MAX_BODY_BYTES, 1, True]}).encode()
    assert (await ask("/gradio_api/queue/join", body, parts=9))[0] == 413
    cookie = (b"cookie", b'a="' + rb"\"" * (MAX_HEAD_BYTES // 2) + b'"')
    assert (await ask("/", more=[cookie]))[0] == 431


@pytest.mark.parametrize(
    ("state", "alive", "ready"),
    [("ready", 200, 200), ("draining", 200, 503), ("stalled", 200, 503), ("faulted", 503, 503)],
)
async def test_health_is_answered_without_gradio(state, alive, ready):
    status, body, _ = await ask("/healthz", state=state)
    assert status == alive and json.loads(body)["state"] == state
    assert (await ask("/readyz", state=state))[0] == ready


LOCAL = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


@pytest.mark.parametrize(
    ("name", "value", "hosts", "passes"),
    [
        (b"range", b"bytes=0-99", None, True),
        (b"range", b"bytes=5-2x", None, False),
        (b"range", b"lines=1-2", None, False),
        (b"range", b"bytes=0-1,5-7,9-", None, False),
        (b"x-forwarded-host", b"moss.example", None, True),
        (b"x-forwarded-host", b"[::1", None, False),
        (b"x-forwarded-host", b"moss.example", LOCAL, False),
        (b"cookie", b'a="' + b'\\"' * 7000, None, False),
    ],
)
async def test_headers_and_pages_that_gradio_does_not_bear_are_left_out(name, value, hosts, passes):
    seen = {}

    async def note(scope, receive, send):
        seen.update(scope)
        await Response()(scope, receive, send)

    head = [(b"host", b"localhost"), (name, value)]
    guard = Guard(note, calls=CALLS, state=None, hosts=hosts)
    await asked(guard, {"path": "/config", "headers": head, "query_string": b"page=x&deep_link=y"})
    assert ((name, value) in seen["headers"]) is passes and seen["query_string"] == b""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200),
        ("localhost", 200),
        ("[::1]", 200),
        ("evil.example:7860", 403),
        ("", 400),
        ("a b", 400),
        ("127.0.0.1.evil.example", 403),
    ],
)
async def test_a_local_service_answers_to_local_names_only(host, status):
    assert (await ask("/", hosts=LOCAL, host=host))[0] == status


@pytest.mark.parametrize("own", [True, False])
async def test_a_websocket_is_closed_unless_it_is_of_a_page_behind_the_password(own):
    sent, visit = [], Visit()
    if own:
        await visit.enter()

    async def send(message):
        sent.append(message["type"])

    async def receive():
        return {"type": "websocket.connect"}

    async def door(scope, receive, send):
        await send({"type": "websocket.accept"})

    guard = Guard(app, calls=CALLS, state=None, login=visit.login, door=door)
    head = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"cookie", visit.cookie)]
    await guard({"type": "websocket", "path": DOOR, "headers": head}, receive, send)
    assert sent == ["websocket.accept" if own else "websocket.close"]


class Visit:
    def __init__(self):
        self.now_s = 0.0
        self.login = Login("guest:se:cret", title="Title", css="", clock=lambda: self.now_s)
        self.cookie = b""

    def scope(self, path, method="GET", address="10.0.0.1", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        head = {"host": "here", "cookie": self.cookie.decode(), **named}
        return {
            "path": path,
            "method": method,
            "client": (address, 1),
            "headers": [(name.encode(), value.encode()) for name, value in head.items()],
        }

    async def ask(self, scope, **form):
        status, headers, page = await asked(self.login.answer, scope, urlencode(form).encode())
        if b"set-cookie" in headers:
            self.cookie = headers[b"set-cookie"].split(b";")[0]
        return status, page.decode()

    async def enter(self, password="se:cret", **scope):
        return await self.ask(
            self.scope("/login", "POST", **scope), username="guest", password=password
        )


async def test_nobody_passes_without_the_password_and_sees_nothing_of_the_page():
    visit = Visit()
    status, page = await visit.ask(visit.scope("/", accept="text/html"))
    assert status == 401 and "password" in page and "api" not in page
    assert 'rel="icon" href="data:' in page, "another program's picture, below a path of a server"
    with pytest.raises(Refused, match="Log in first"):
        await visit.ask(visit.scope("/config"))
    status, page = await visit.enter("no", accept="text/html")
    assert status == 400 and "wrong" in page
    assert visit.cookie == b"" and not visit.login.knows(visit.scope("/"))
    await visit.enter()
    visit.cookie = visit.cookie.partition(b"=")[0] + b"=" + b"x" * 43
    assert not visit.login.knows(visit.scope("/")), "a made-up cookie opens it"


async def test_the_password_opens_until_the_visitor_logs_out_which_no_other_page_does():
    visit = Visit()
    assert await visit.enter() == (200, '{"success":true}')
    for foreign in ({"sec_fetch_site": "cross-site"}, {"origin": "http://elsewhere"}):
        with pytest.raises(Refused, match="another page"):
            await visit.ask(visit.scope("/logout", **foreign))
    assert visit.login.knows(visit.scope("/config"))
    assert (await visit.ask(visit.scope("/logout")))[0] == 303
    assert not visit.login.knows(visit.scope("/config"))


async def test_guessing_is_bounded_for_an_address_and_not_for_others():
    visit = Visit()
    for number in range(GUESSES):
        with pytest.raises(Refused, match="wrong"):
            await visit.enter(f"guess {number}")
    with pytest.raises(Refused) as refused:
        await visit.enter()
    assert refused.value.status == 429
    assert (await visit.enter(address="10.0.0.2"))[0] == 200
    visit.now_s += GUESSES_S + 1
    assert (await visit.enter())[0] == 200


TEXT = b"A text that says the same again. " * 300
HTML = (b"Content-Type", b"text/html; charset=utf-8")


async def sent(
    pieces=(TEXT,), path="/", accepts=b"gzip, deflate, br", headers=(HTML,), status=200, by=None,
    host=b"here", query=b"",
):  # fmt: skip
    """Headers and body of an answer, as they leave."""

    async def app(scope, receive, send):
        sizes = [(b"content-length", str(sum(map(len, pieces))).encode())]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, *sizes]})
        for place, piece in enumerate(pieces, 1):
            more = place < len(pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    head = [(b"host", host), (b"accept-encoding", accepts)]
    passing = partial((by or Texts()).pass_on, app)
    return (await asked(passing, {"path": path, "headers": head, "query_string": query}))[1:]


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
    headers, body = await sent((TEXT[:100], TEXT[100:]), accepts=accepts)
    assert read(body) == TEXT and headers.get(b"content-encoding") == how
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"content-type"] == HTML[1]


@pytest.mark.parametrize(
    "answer",
    [
        {"pieces": (b"short",)},
        {"path": "/gradio_api/queue/data"},
        {"path": "/gradio_api/file=/tmp/a.txt"},
        {"headers": [(b"content-type", b"audio/wav")]},
        {"status": 404},
    ],
    ids=str,
)
async def test_everything_else_passes_as_it_is(answer):
    headers, body = await sent(**answer)
    assert b"vary" not in headers and body == b"".join(answer.get("pieces", (TEXT,)))


async def test_the_first_do_not_wait_until_a_text_is_as_small_as_it_will_be_kept(monkeypatch):
    may, made, texts = Event(), [], Texts(lambda body: body.replace(b"says", b"speaks"))

    def compressed(body: bytes, hastily: bool) -> bytes:
        made.append(hastily)
        return b"hasty" if hastily else may.wait(9.0) and b"small"

    monkeypatch.setitem(asgi.COMPRESS, "br", compressed)
    assert (await sent(by=texts))[1] == b"hasty"
    may.set()
    rewritten = TEXT.replace(b"says", b"speaks")
    assert await asyncio.to_thread(asgi.smallest(rewritten, "br").result, 9.0) == b"small"
    for _ in range(2):
        assert (await sent(by=texts))[1] == b"small"
    assert sorted(made) == [False, True]
    _, plain = await sent(by=texts, accepts=b"")
    assert plain == rewritten, "the document is rewritten"


async def test_files_whose_name_changes_with_them_are_kept_for_good():
    script = [(b"content-type", b"text/javascript")]
    headers, _ = await sent(path="/assets/index-1.js", headers=script)
    assert b"immutable" in headers[b"cache-control"]
    assert b"cache-control" not in (await sent())[0]


async def test_a_document_is_made_once_for_every_name_of_the_service():
    texts = Texts()
    _, first = await sent(by=texts, accepts=b"")
    _, again = await sent((b"made anew",), by=texts, accepts=b"", query=b"page=x")
    _, other = await sent((b"made anew",), by=texts, accepts=b"", host=b"there")
    assert [first, again, other] == [TEXT, TEXT, b"made anew"]
    failed = [await sent((str(n).encode(),), status=500, by=texts, host=b"x") for n in range(2)]
    assert [body for _, body in failed] == [b"0", b"1"], "what is no document is not kept"
