import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_engine.ui.guard import MAX_BODY_BYTES, Calls, Guard, Refused, parse_json

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


async def ask(path, body=None, *, ready=True, hosts=None, host="127.0.0.1:7860", parts=1):
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
        "headers": [(b"host", host.encode()), (b"content-type", b"application/json")],
    }

    async def is_ready():
        return ready

    await Guard(app, calls=CALLS, ready=is_ready, hosts=hosts)(scope, receive, send)
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
        "/gradio_api/queue/data",
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
    ],
)
async def test_closed_routes_are_not_there(path):
    assert (await ask(path))[0] == 404
    assert (await ask(path, {}))[0] == 404


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
    assert (await ask("/login", b"x" * (MAX_BODY_BYTES + 1)))[0] == 413


async def test_health_is_answered_without_gradio():
    assert (await ask("/healthz", ready=False))[0] == 200
    assert (await ask("/readyz"))[0] == 200
    assert (await ask("/readyz", ready=False))[0] == 503


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200),
        ("localhost", 200),
        ("[::1]:7860", 200),
        ("[::1]", 200),
        ("evil.example:7860", 403),
        ("", 403),
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

    await Guard(app, calls=CALLS, ready=lambda: True)(
        {"type": "websocket", "path": "/"}, None, send
    )
    assert [message["type"] for message in sent] == ["websocket.close"]
