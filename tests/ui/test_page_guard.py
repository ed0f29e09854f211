import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_engine.ui.entrance.asgi import MAX_BODY_BYTES, Refused, answer
from moss_engine.ui.entrance.guard import MAX_HEAD_BYTES, Calls, Guard, parse_json

CALLS = Calls(
    kinds={0: ("text", "number", "flag", "state"), 2: ()},
    names={"reply": 0, "stop": 2},
    unqueued=frozenset({2}),
)
GOOD = {"fn_index": 0, "session_hash": "abcdefgh12", "data": ["hi", 1.5, True, None]}


async def app(scope, receive, send):
    """Answers 200 with the body it was given."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": message.get("body", b"")})


async def ask(
    path, body=None, *, state="ready", hosts=None, host="127.0.0.1:7860", parts=1, more=(), query=""
):
    """Status and body of one request: POST if there is a body."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    size = max(1, -(-len(raw) // parts))
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)] or [b""]
    messages = [
        {"type": "http.request", "body": p, "more_body": i < len(pieces) - 1}
        for i, p in enumerate(pieces)
    ]
    sent = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "path": path,
        "method": "GET" if body is None else "POST",
        "headers": [(b"host", host.encode()), (b"content-type", b"application/json"), *more],
        "query_string": query.encode(),
    }

    async def state_of():
        return state

    guard = Guard(app, calls=CALLS, state=state_of, hosts=hosts, is_session=lambda n: n == "known")
    await guard(scope, receive, send)
    return (
        sent[0]["status"],
        b"".join(message.get("body", b"") for message in sent[1:]),
        dict(sent[0]["headers"]),
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/assets/x.js",
        "/gradio_api/heartbeat/abc",
        "/gradio_api/call/reply/known",
        "/config",
        "/gradio_api/file=/tmp/a.wav",
        "/gradio_api/info",
        "/theme.css",
    ],
)
async def test_what_the_page_needs_passes(path):
    assert (await ask(path))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/proxy=http://x",
        "/gradio_api/api/reply",
        "/gradio_api/component_server",
        "/gradio_api/deep_link",
        "/gradio_api/process_recording",
        "/gradio_api/vibe-edit",
        "/gradio_api/undo-vibe-edit/",
        "/gradio_api/runs",
        "/gradio_api/run-history/records",
        "/gradio_api/profiling/traces",
        "/gradio_api/upload",
        "/gradio_api/upload_progress",
        "/gradio_api/stream/abc/0/1/playlist.m3u8",
        "/gradio_api/file=https://example.com/a",
        "/gradio_api/file=FTP://x",
        "/gradio_api/call/v2/reply",
        "/gradio_api/openapi.json",
        "/monitoring",
        "/monitoring/summary",
        "/dev/reload",
        "/gradio_api/dev/reload",
        "/svelte/x",
        "/pwa_icon/14000",
        "/pwa_icon",
        "/openapi.json",
        "/docs",
        "/gradio_api/token",
        "/x%0aforged",
        "/x\nforged",
        "/gradio_api/heartbeat/a\nb",
        "//",
        "/assets",
    ],
)
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
        ("call/reply", {"data": ["hi", 1, False]}, 200),  # programs leave the state out
        ("call/nothing", {}, 404),
        ("queue/join", {"data": ["hi"]}, 422),
        ("queue/join", {"data": [*GOOD["data"], 1]}, 422),
        ("queue/join", {"data": "hi"}, 422),
        ("queue/join", {"data": [5, 1.5, True, None]}, 422),
        ("queue/join", {"data": ["hi", "1.5", True, None]}, 422),
        ("queue/join", {"data": ["hi", True, True, None]}, 422),
        ("queue/join", {"data": ["hi", 1.5, 1, None]}, 422),
        (
            "queue/join",
            {"data": ["hi", 1.5, True, {"turns": []}]},
            422,
        ),  # a state made up by the client
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
        b'{"fn_index": 0, "data": ["hi", NaN, true, null]}',
        b'{"fn_index": 0, "data": ["hi", Infinity, true, null]}',
        b'{"fn_index": 0, "data": ["hi", 1e999, true, null]}',
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
    body = json.dumps({**GOOD, "data": ["x" * MAX_BODY_BYTES, 1, True, None]}).encode()
    assert (await ask("/gradio_api/queue/join", body, parts=9))[0] == 413


@pytest.mark.parametrize(
    ("state", "alive", "ready"),
    [("ready", 200, 200), ("draining", 200, 503), ("stalled", 200, 503), ("faulted", 503, 503)],
)
async def test_health_is_answered_without_gradio(state, alive, ready):
    status, body, _ = await ask("/healthz", state=state)
    assert status == alive and json.loads(body)["state"] == state
    assert (await ask("/readyz", state=state))[0] == ready


async def headers_that_pass(*more, hosts=None):
    passed = {}

    async def note(scope, receive, send):
        passed.update(scope["headers"])
        await app(scope, receive, send)

    guard = Guard(note, calls=CALLS, state=None, hosts=hosts)
    head = [(b"host", b"localhost"), *more]
    scope = {"type": "http", "path": "/", "method": "GET", "headers": head, "query_string": b""}

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        pass

    await guard(scope, receive, send)
    return passed


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
    half = json.dumps({**GOOD, "data": ["half \ud800", 1.5, True, None]}).encode()
    pair = json.dumps({**GOOD, "data": ["\U0001f600", 1.5, True, None]}).encode()
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


async def test_a_websocket_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"localhost")]}
    await Guard(app, calls=CALLS, state=None)(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("path", ["/static/", "/assets/"])
async def test_a_name_that_no_file_can_have_is_not_looked_for(path):
    assert (await ask(path + "a" * 300))[0] == 404


async def test_gradio_sees_neither_cookies_nor_other_pages():
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        await answer(send, 200, {})

    async def state():
        return "ready"

    async def send(message):
        pass

    guard = Guard(app, calls=CALLS, state=state)
    headers = [(b"host", b"x"), (b"cookie", b'a="' + b'\\"' * 7000)]
    scope = {"type": "http", "path": "/config", "method": "GET", "headers": headers}
    await guard({**scope, "query_string": b"page=x&deep_link=y"}, None, send)
    assert seen["query_string"] == b"" and seen["headers"] == [(b"host", b"x")]
