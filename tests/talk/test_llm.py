"""An LLM: a chat server over real HTTP, said sentence by sentence, and a sentence for all that
can be wrong with it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from moss_engine.api.errors import BrainError, ConfigError
from moss_engine.api.events import Failed, Finished, FinishReason
from moss_engine.api.request import Message, Text, ToolCall
from moss_engine.api.service import stream
from moss_engine.build import open_brain
from moss_engine.config import TalkConfig
from moss_engine.talk import chat_server
from moss_engine.talk.answer import Question, Reached, Say
from moss_engine.talk.chat_server import ChatServer
from moss_engine.talk.llm import SYSTEM, Llm
from tests.talk.talk_support import all_of, asking, talking, words
from tests.ui.page_support import free_port, soon

PATIENCE_S = 30.0


class Chat:
    """A server that answers every request by `script`, a function of the handler."""

    def __init__(self) -> None:
        self.script: Callable[[BaseHTTPRequestHandler], None] = self.tell
        self.pieces: list[str] = ["It is ", "noon. ", "Have a", " rest."]
        self.models = ["nomic-embed-text", "tiny", "large"]
        self.asked: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.left = threading.Event()
        self.go_on = threading.Event()
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                chat.asked.append({"path": self.path, **json.loads(self.rfile.read(size))})
                chat.headers.append(dict(self.headers))
                try:
                    chat.script(self)
                except OSError:
                    chat.left.set()

            def do_GET(self) -> None:
                body = json.dumps({"data": [{"id": name} for name in chat.models]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def begin(handler: BaseHTTPRequestHandler, **headers: str) -> None:
        handler.send_response(200)
        for name, value in {"content_type": "text/event-stream", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    def tell(self, handler: BaseHTTPRequestHandler) -> None:
        self.begin(handler)
        for piece in self.pieces:
            self.say(handler, piece)
        handler.wfile.write(b"data: [DONE]\n\n")

    @staticmethod
    def say(handler: BaseHTTPRequestHandler, text: str) -> None:
        handler.wfile.write(event({"content": text}))
        handler.wfile.flush()


def event(delta: object) -> bytes:
    value = {"choices": [{"delta": delta}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.fixture
def chat() -> Iterator[Chat]:
    chat = Chat()
    thread = threading.Thread(target=chat.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield chat
    chat.go_on.set()
    chat.server.shutdown()
    chat.server.server_close()
    thread.join(PATIENCE_S)


@pytest.fixture
def llm(chat) -> Llm:
    return Llm(ChatServer(chat.url, "tiny", "secret"))


async def parts(llm: Llm, **values) -> list:
    return await all_of(llm.answer(Question("What time is it?", **values)))


async def said(llm: Llm) -> list[str]:
    return [part.text for part in await parts(llm) if isinstance(part, Say)]


async def test_every_sentence_is_said_as_it_comes(llm, chat):
    assert await parts(llm, speed=0.8) == [
        Reached("first_token"),
        Reached("first_sentence"),
        Say("It is noon.", 0.8),
        Say("Have a rest.", 0.8),
    ]
    asked = chat.asked[0]
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "tiny") and asked["stream"]
    assert chat.headers[0]["Authorization"] == "Bearer secret"
    assert chat.headers[0]["Accept-Encoding"] == "identity", "few bytes may become many"


async def test_the_conversation_goes_along_with_the_visitors_own_system_prompt(llm, chat):
    said = (("assistant", "Hi."), ("user", "My dog is old."), ("assistant", "How nice."))
    await parts(llm, before=tuple(Message(role, Text(text)) for role, text in said))
    await parts(llm, before=(Message("user", Text("x" * 9000)),), system="Be rude.")
    assert [(m["role"], m["content"]) for m in chat.asked[0]["messages"]] == [
        ("system", SYSTEM),
        ("user", "My dog is old."),
        ("assistant", "How nice."),
        ("user", "What time is it?"),
    ]
    assert [m["content"] for m in chat.asked[1]["messages"]] == ["Be rude.", "What time is it?"]


async def test_markup_thoughts_and_faces_are_not_said(llm, chat):
    chat.pieces = ["<thi", "nk>Hm. Let me", " see.</think>\n\n"]
    chat.pieces += ["Yes. 🎉\n", "- One thing\n- and two"]
    assert await said(llm) == ["Yes. 🎉", "- One thing", "- and two"]


async def test_stop_hangs_up_on_the_server(llm, chat):
    def for_ever(handler) -> None:
        chat.begin(handler)
        while not chat.go_on.wait(0.01):
            chat.say(handler, "")

    chat.script = for_ever
    service, below = talking(llm)
    reply = await service.submit(asking())
    async with aclosing(reply.events()) as events:
        taking = asyncio.ensure_future(all_of(events))
        assert await soon(lambda: chat.asked)
        await service.cancel_session("visitor")
        told = await taking
    assert isinstance(told[-1], Finished) and told[-1].reason is FinishReason.CANCELLED
    assert await soon(chat.left.is_set), "the request went on"
    assert below.requests == []


def status(code: int, body: bytes = b"{}", kind: str = "application/json"):
    def answer(handler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Type", kind)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def streamed(data: bytes):
    return status(200, data, "text/event-stream")


def calls(*pieces: tuple[float, str, str], end: bytes = b"data: [DONE]\n\n"):
    """A stream of calls of `look`, each of an index, an id and arguments."""
    data = b""
    for index, name, arguments in pieces:
        piece = {"index": index, "id": name, "function": {"name": "look", "arguments": arguments}}
        data += event({"tool_calls": [piece]})
    return streamed(data + end)


HALF, WHOLE = '{"at": "th', '{"at": "the sky"}'
WRONG = [
    (status(401), "MOSS_BRAIN_KEY"),
    (status(404, b'{"error": "no model tiny"}'), "no model tiny.*--brain-model"),
    (status(500, b"\xff\xfe" * 9999), "refused the question"),
    (status(503, b""), r"refused the question \(503: it says no more\)"),
    (status(200, b"<html>", "text/html"), "text/html instead of a stream"),
    (streamed(b"data: {broken\n\n"), "no answer"),
    (streamed(b"data: [1, 2]\n\n"), "no answer"),
    (streamed(event({"content": 7})), "no answer"),
    (streamed(b"data: " + b"[" * 50_000 + b"\n\n"), "no answer"),
    (streamed(b'data: {"error": "out of memory"}\n\n'), "out of memory"),
    (streamed(b"data: [DONE]\n\n"), "nothing to say"),
    (streamed(b"data: " + b"x" * (1 << 21)), "without an end"),
    (streamed(event({"content": "It is"})), "broke off"),
    (lambda handler: Chat.begin(handler, content_encoding="gzip"), r"packs its answers \(gzip\)"),
    (calls((0, "a", WHOLE), end=b""), "broke off"),
    (calls((0, "a", WHOLE), (1, "b", HALF), end=b""), "broke off"),
    (calls((0, "a", HALF)), "called look with arguments that are no JSON object"),
    (calls((0, "a", WHOLE), (1, "b", "[1]")), "called look with arguments that are no JSON object"),
    (calls((0, "a", '{"a":' * 1150)), "called look with arguments that are no JSON object"),
    (calls((float("inf"), "a", WHOLE)), "no answer"),
]


@pytest.mark.parametrize(("script", "sentence"), WRONG)
async def test_what_is_wrong_with_it_is_a_sentence(llm, chat, script, sentence):
    chat.script = script
    with pytest.raises(BrainError, match=sentence):
        await parts(llm)


@pytest.mark.parametrize("pieces", [((0, "a"), (1, "a")), ((0, "a"), (0, "b")), ((0, ""), (1, ""))])
async def test_calls_that_share_an_id_or_a_place_stay_apart(llm, chat, pieces):
    chat.script = calls(*((*piece, WHOLE) for piece in pieces))
    found = [part for part in await parts(llm) if isinstance(part, ToolCall)]
    assert [call.arguments for call in found] == [WHOLE, WHOLE]
    assert len({call.id for call in found}) == 2 and all(call.id for call in found)


async def test_an_endless_answer_is_cut_and_what_was_said_stays(llm, chat, monkeypatch):
    monkeypatch.setattr(chat_server, "MAX_CHARS", 600)

    def for_ever(handler) -> None:
        chat.begin(handler)
        while True:
            chat.say(handler, "And so on. ")

    chat.script = for_ever
    service, below = talking(llm, seconds=0.01)
    events = await all_of(stream(service, asking()))
    assert isinstance(events[-1], Failed) and "did not come to an end" in events[-1].message
    assert len(below.requests) > 20 and await soon(chat.left.is_set)


async def test_a_silent_server_is_waited_for_only_so_long(llm, chat, monkeypatch):
    monkeypatch.setattr(chat_server, "SILENT_S", 0.2)

    def silent(handler) -> None:
        chat.begin(handler)
        chat.go_on.wait(PATIENCE_S)

    chat.script = silent
    with pytest.raises(BrainError, match=r"silent for 0\.2 s"):
        await parts(llm)


async def test_signs_of_life_without_an_answer_are_waited_for_only_so_long(chat):
    def hesitant(handler) -> None:
        chat.begin(handler)
        while not chat.go_on.wait(0.01):
            handler.wfile.write(b": still there\n\n")

    chat.script = hesitant
    llm = Llm(ChatServer(chat.url, "tiny", clock=count(0, 10).__next__))
    with pytest.raises(BrainError, match="did not come to an end"):
        await asyncio.wait_for(parts(llm), PATIENCE_S)


async def test_what_its_listener_takes_of_time_is_not_the_servers(chat):
    now_s = 0.0
    server = ChatServer(chat.url, "tiny", clock=lambda: now_s)
    pieces = []
    async for piece in server.stream([]):
        pieces.append(piece)
        now_s += 2 * chat_server.WHOLE_S
    assert pieces == chat.pieces


async def test_one_that_dies_in_mid_sentence_is_a_sentence(llm, chat):
    def dies(handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        chat.begin(handler, content_length="100000")
        chat.say(handler, "It is noon. And")

    chat.script = dies
    service, _ = talking(llm)
    events = await all_of(stream(service, asking()))
    assert isinstance(events[-1], Failed) and "broke off" in events[-1].message
    assert words(events) == "It is noon."


async def test_where_nobody_answers_that_is_said():
    with pytest.raises(BrainError, match=r"Nobody answers at 127\.0\.0\.1"):
        await parts(Llm(ChatServer(f"http://127.0.0.1:{free_port()}", "tiny")))


def test_an_address_that_is_none_is_refused():
    urls = ["localhost:11434", "ftp://brain", "http://", "http://[::1", "http://a\tb:80"]
    urls += [f"http://localhost:{port}" for port in ("114345", "abc", "0")]
    for url in urls:
        with pytest.raises(ConfigError, match="--brain"):
            ChatServer(url, "tiny")
    assert ChatServer("http://me:word@[::1]:80/v1", "tiny").host == "[::1]:80"


def test_auto_finds_a_chat_server_on_this_machine_or_says_what_to_do(chat, monkeypatch):
    port = chat.server.server_port
    monkeypatch.setattr(chat_server, "LOCAL", {free_port(): "Ollama", port: "vLLM"})
    assert open_brain(TalkConfig(brain="auto")).name == f"tiny at 127.0.0.1:{port}"
    chosen = open_brain(TalkConfig(brain="auto", brain_model="large"))
    assert chosen.name.startswith("large at 127.0.0.1")
    with pytest.raises(ConfigError, match="--brain-model tiny, large"):
        open_brain(TalkConfig(brain="auto", brain_model="huge"))
    chat.models = []
    with pytest.raises(ConfigError, match=f"vLLM {port}.*ollama run"):
        open_brain(TalkConfig(brain="auto"))
    assert chat.asked == []
    assert open_brain(TalkConfig()) is None, "it is never looked for silently"


def test_a_key_that_no_header_can_hold_is_refused():
    for key in ("sk-abc…", "ключ", "two\nlines", "sk-abc\n"):
        with pytest.raises(ConfigError, match="MOSS_BRAIN_KEY") as told:
            ChatServer("http://localhost:9", "tiny", key)
        assert key not in str(told.value)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 500 Oh\r\n\r\n"])
async def test_a_head_or_a_refusal_that_trickles_has_an_end(llm, chat, monkeypatch, head):
    monkeypatch.setattr(chat_server, "WHOLE_S", 0.3)

    def trickles(handler) -> None:
        handler.wfile.write(head)
        while not chat.go_on.wait(0.02):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    chat.script = trickles
    monkeypatch.setattr(chat_server, "QUOTED_CHARS", 10**6)
    with pytest.raises(BrainError, match="did not come to an end"):
        await asyncio.wait_for(parts(llm), PATIENCE_S / 2)


async def test_half_a_character_is_said_as_a_sign(llm, chat):
    chat.pieces = ["It is \ud800 noon."]
    assert await said(llm) == ["It is \ufffd noon."]


async def test_thousands_of_lines_leave_room_for_others(llm, chat, monkeypatch):
    """By the time of this thread alone: what else the machine does is no matter."""
    monkeypatch.setattr(chat_server, "MAX_CHARS", 100_000)
    chat.pieces = ["".join(f"a{place} b{place}\n" for place in range(2000))]
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began_s)

    watching = asyncio.ensure_future(watch())
    await parts(llm)
    watching.cancel()
    assert longest_s < 0.25
