import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_engine.ui.entrance.asgi import MAX_BODY_BYTES, Refused, answer
from moss_engine.ui.entrance.guard import DOOR, MAX_HEAD_BYTES, Calls, Guard, parse_json
from moss_engine.ui.entrance.login import Login
from tests.ui.page_support import asked

CALLS = Calls(num_inputs={0: 3, 2: 0}, names={"reply": 0, "stop": 2}, unqueued=frozenset({2}))
GOOD = {"fn_index": 0, "session_hash": "abcdefgh12", "data": ["hi", 1.5, True]}


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
        ("queue/join", {"fn_index": None}, 404),
        ("run/predict", {}, 404),  # a queued function past the queue
        ("run/reply", {"fn_index": 2, "data": []}, 200),
        ("run/stop", {"fn_index": None, "data": []}, 200),  # by its name alone
        ("run/stop", {"fn_index": None}, 422),
        ("run/reply", {"fn_index": None}, 404),
        ("queue/join", {"fn_index": 2, "data": []}, 200),
        ("call/reply", {}, 200),
        ("call/nothing", {}, 404),
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
        b'{"fn_index": 0, "data": ["hi", Infinity, true]}',
        b'{"fn_index": 0, "data": ["hi", 1e999, true]}',
        b"[" * 30 + b"]" * 30,
        b"[" * 100_000,
        b"{",
        b"",
        b"\xff\xfe",
        b'"text"',
        b"[]",
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


async def test_large_bodies_are_cut_off_before_they_are_read_whole():
    body = json.dumps({**GOOD, "data": ["x" * MAX_BODY_BYTES, 1, True]}).encode()
    assert (await ask("/gradio_api/queue/join", body, parts=9))[0] == 413


@pytest.mark.parametrize(
    ("state", "alive", "ready"),
    [("ready", 200, 200), ("draining", 200, 503), ("stalled", 200, 503), ("faulted", 503, 503)],
)
async def test_health_is_answered_without_gradio(state, alive, ready):
    status, body, _ = await ask("/healthz", state=state)
    assert status == alive and json.loads(body)["state"] == state
    assert (await ask("/readyz", state=state))[0] == ready


async def passed_on(*more, path="/", query=b"", hosts=None):
    """What Gradio sees of a request."""
    seen = {}

    async def note(scope, receive, send):
        seen.update(scope)
        await answer(send, 200, {})

    head = [(b"host", b"localhost"), *more]
    guard = Guard(note, calls=CALLS, state=None, hosts=hosts)
    await asked(guard, {"path": path, "headers": head, "query_string": query})
    return dict(seen["headers"]), seen["query_string"]


async def headers_that_pass(*more, hosts=None):
    return (await passed_on(*more, hosts=hosts))[0]


@pytest.mark.parametrize("value", [b"bytes=5-2x", b"bytes=-", b"lines=1-2", b"bytes=0-1,5-7,9-"])
async def test_a_range_that_is_none_is_left_out(value):
    assert b"range" not in await headers_that_pass((b"range", value))
    assert b"range" in await headers_that_pass((b"range", b"bytes=0-99"))


async def test_a_forwarded_host_is_believed_only_if_it_may_be_one():
    sane, mad = (b"x-forwarded-host", b"moss.example"), (b"x-forwarded-host", b"[::1")
    assert b"x-forwarded-host" in await headers_that_pass(sane)
    assert b"x-forwarded-host" not in await headers_that_pass(mad)
    local = frozenset({"localhost"})
    assert b"x-forwarded-host" not in await headers_that_pass(sane, hosts=local)


async def test_large_heads_are_refused_before_anybody_reads_their_cookies():
    cookie = (b"cookie", b'a="' + rb"\"" * (MAX_HEAD_BYTES // 2) + b'"')
    assert (await ask("/", more=[cookie]))[0] == 431


async def test_half_characters_are_refused():
    half = json.dumps({**GOOD, "data": ["half \ud800", 1.5, True]}).encode()
    pair = json.dumps({**GOOD, "data": ["\U0001f600", 1.5, True]}).encode()
    assert (await ask("/gradio_api/queue/join", half))[0] == 400
    assert (await ask("/gradio_api/queue/join", pair))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200),
        ("localhost", 200),
        ("[::1]:7860", 200),
        ("[::1]", 200),
        ("evil.example:7860", 403),
        ("", 400),
        ("[::1", 400),
        ("a b", 400),
        ("127.0.0.1.evil.example", 403),
    ],
)
async def test_a_local_service_answers_to_local_names_only(host, status):
    hosts = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
    assert (await ask("/", hosts=hosts, host=host))[0] == status


@pytest.mark.parametrize("own", [True, False])
async def test_a_websocket_is_closed_unless_it_is_of_a_page_behind_the_password(own):
    sent, login = [], Login("guest:secret", title="", css="")

    async def send(message):
        sent.append(message["type"])

    async def receive():
        return {"type": "websocket.connect"}

    async def door(scope, receive, send):
        await send({"type": "websocket.accept"})

    guard = Guard(app, calls=CALLS, state=None, login=login, door=door)
    cookie = (b"cookie", login.cookie(login.token()).encode()) if own else (b"x", b"")
    head = [(b"host", b"localhost"), (b"origin", b"http://localhost"), cookie]
    await guard({"type": "websocket", "path": DOOR, "headers": head}, receive, send)
    assert sent == ["websocket.accept" if own else "websocket.close"]


async def test_gradio_sees_neither_cookies_nor_other_pages():
    cookie = (b"cookie", b'a="' + b'\\"' * 7000)
    seen = await passed_on(cookie, path="/config", query=b"page=x&deep_link=y")
    assert seen == ({b"host": b"localhost"}, b"")
