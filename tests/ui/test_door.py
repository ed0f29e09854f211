"""The page's WebSocket: what ends and replaces a reply, and who is let in. In a browser: test_page_lost.py."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from moss_engine.audio.rate import Downsampler
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.ui import door as door_module
from moss_engine.ui.handlers import Handlers
from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import INFO, FakeService, Script, soon, until

WAIT_S = 30.0


class Browser:
    """What a tab of the page sends, and what it is told."""

    def __init__(self, url: str):
        self.url, self.visit, self.key = url, secrets.token_hex(16), secrets.token_hex(16)
        self.last, self.events, self.pcm = -1, [], b""

    def open(self, **changes) -> None:
        address = self.url.replace("http", "ws") + "gradio_api/live"
        self.socket = connect(address, origin=self.url.rstrip("/")).__enter__()
        hello = {"type": "session.open", "visit": self.visit, "key": self.key, "last": self.last}
        self.socket.send(json.dumps({**hello, **changes}))
        assert not json.loads(self.socket.recv(WAIT_S))["resumed"]

    def send(self, kind: str, **fields) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def ask(self, text: str, run: str = "0123456a", seed: int = 7, **values) -> None:
        asked = {"text": text, "seed": seed, "new_seed": False, **values}
        self.send("response.create", values=asked, run=run)

    def take(self) -> dict:
        frame = self.socket.recv(WAIT_S)
        sound = b""
        if isinstance(frame, bytes):
            size = int.from_bytes(frame[:4], "little")
            frame, sound = frame[4 : 4 + size], frame[4 + size :]
        event = json.loads(frame)
        self.last += 1
        self.events.append(event)
        self.pcm += sound
        return event

    def until(self, kind: str, **fields) -> dict:
        while True:
            event = self.take()
            if event["type"] == kind and all(event.get(k) == v for k, v in fields.items()):
                return event


@pytest.fixture
def tab(url, service):
    tab = Browser(url)
    tab.open()
    tab.until("conversation.updated", whole=True)
    yield tab
    with suppress(ConnectionClosed):
        tab.socket.close()
    assert until(lambda: not service.open)


@pytest.mark.parametrize("leave", ["session.close", "going away"])
def test_a_tab_that_is_closed_stops_its_reply_at_once(service, tab, leave):
    service.script = Script(seconds=30.0, rtf=0.9)
    tab.ask("A long one.")
    tab.until("conversation.updated")
    if leave == "session.close":
        tab.send(leave)
    else:
        tab.socket.close(1001)
    assert until(lambda: not service.open) and len(service.cancelled) == 1


async def test_a_tab_that_is_closed_as_a_frame_leaves_is_written_to_no_more():
    tab, sent = SimpleNamespace(outbox=door_module.Outbox()), asyncio.Event()

    async def send(message):
        await sent.wait()

    tab.outbox.put({"type": "error"})
    writing = asyncio.ensure_future(door_module._write(tab, SimpleNamespace(send=send), 0))
    await asyncio.sleep(0)  # the frame is on its way
    await asyncio.sleep(0)
    sent.set()
    asyncio.get_running_loop().call_soon(writing.cancel)
    assert (await asyncio.wait({writing}, timeout=1.0))[0] and writing.cancelled()


@pytest.mark.parametrize(
    "said",
    ["", "[]", "7", '{"type": "no.event"}', '{"type": "got", "last": "x"}', "[" * 5000,
     '{"type": "response.create", "values": {"text": 7}}', '{"type": "response.create"}',
     '{"type": "input_audio_buffer.begin"}', '{"type": "response.cancel", "heard": 1}',
     '{"type": "response.cancel", "heard": "' + "x" * 300_000 + '"}', '{"a": NaN}'],
)  # fmt: skip
def test_what_is_no_event_is_told_in_a_sentence_and_ends_nothing(service, tab, said):
    tab.socket.send(said)
    assert tab.until("error")["message"].endswith(".")
    tab.ask("Hello.")
    assert tab.until("response.update", end=True)["state"] == "done"


def test_the_page_of_another_site_is_not_let_in(url):
    for origin in ("http://evil.example", None, "null", url.rstrip("/") + "0"):
        with pytest.raises(InvalidStatus):
            connect(url.replace("http", "ws") + "gradio_api/live", origin=origin).__enter__()


@pytest.mark.parametrize(
    "change", [{"visit": "short"}, {"key": None}, {"type": "response.create"}, {"visit": ["x"]}]
)
def test_who_does_not_say_who_they_are_is_sent_away(url, change):
    tab = Browser(url)
    with pytest.raises(ConnectionClosed):
        tab.open(**change)


def test_one_address_has_so_many_tabs_and_is_told_so(url, tab, monkeypatch):
    monkeypatch.setattr(door_module, "MAX_TABS_OF_VISITOR", 1)
    with pytest.raises(ConnectionClosed, match="All places of this page"):
        Browser(url).open()


class Line:
    """A connection of a tab as an ASGI server has it: `opened` are answers to its first word.
    `failing` kinds of messages raise, and `stuck` ones never leave."""

    def __init__(self, visit: str, last: int = -1, failing: str = "", stuck: str = ""):
        hello = {"type": "session.open", "visit": visit, "key": visit, "last": last}
        said = {"type": "websocket.receive", "text": json.dumps(hello)}
        self._came = [{"type": "websocket.connect"}, said]
        self._failing, self._stuck = failing, stuck
        self.left, self.opened = asyncio.Event(), []

    async def receive(self):
        if not self._came:
            await self.left.wait()
            return {"type": "websocket.disconnect", "code": 1001}
        return self._came.pop(0)

    async def send(self, message):
        if message["type"] == self._failing:
            raise OSError("the browser is gone")
        if message["type"] == self._stuck:
            await asyncio.Event().wait()
        if "session.opened" in message.get("text", ""):
            self.opened.append(json.loads(message["text"]))

    async def stands_at(self, door: door_module.Door) -> None:
        await door({"type": "websocket", "client": ("1.2.3.4", 5)}, self.receive, self.send)


@pytest.fixture
def door(tmp_path):
    return door_module.Door(Handlers(FakeService(), INFO, wav_folder=tmp_path))


async def test_a_tab_that_left_before_it_was_answered_takes_no_place(door, monkeypatch):
    monkeypatch.setattr(door_module, "MAX_TABS_OF_VISITOR", 1)
    monkeypatch.setattr(door_module, "RESUME_S", 0.01)
    await Line("a" * 32, failing="websocket.send").stands_at(door)
    await asyncio.sleep(0.05)
    line = Line("b" * 32)
    line.left.set()
    await line.stands_at(door)
    assert line.opened, "the place is taken for good"


async def test_a_tab_comes_back_although_its_old_connection_takes_nothing_any_more(door):
    old, new = Line("a" * 32, stuck="websocket.close"), Line("a" * 32)
    lines = [asyncio.ensure_future(old.stands_at(door))]
    assert await soon(lambda: old.opened)
    lines.append(asyncio.ensure_future(new.stands_at(door)))
    assert await soon(lambda: new.opened) and new.opened[0]["resumed"]
    for line in lines:
        line.cancel()
    await asyncio.wait(lines)


def test_a_browser_that_takes_nothing_is_left(service, tab, monkeypatch):
    monkeypatch.setattr(door_module, "MAX_HELD_BYTES", 100_000)
    service.script = Script(seconds=30.0, first_s=0.01, rtf=0.01)
    tab.ask("A long one.")
    assert until(lambda: service.cancelled)


def test_an_answer_is_begun_at_a_pause_and_who_goes_on_over_it_asked_one_question(service, tab):
    """Sound comes faster than it was said: the pause is over only when more of it comes."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("silero_vad")
    wave, _ = soundfile.read(SAMPLE, dtype="int16")
    said = Downsampler().push(wave[57_000:94_000])
    pause, end = np.zeros(RATE_HZ // 2, "<i2"), np.zeros(2 * RATE_HZ, "<i2")
    values = {"mode": "listen", "new_seed": True}

    def ask(run: str) -> list[dict]:
        """What was said is over, and its answer heard; the conversation behind that."""
        tab.socket.send(end.tobytes())
        while not (heard := tab.until("input_audio_buffer.heard"))["utterance"]:
            pass
        asked = {**values, "utterance": heard["utterance"]}
        tab.send("response.create", values=asked, run=run)
        assert tab.until("response.update", run=run, end=True)["state"] == "done"
        return tab.until("conversation.updated")["entries"]

    tab.send("response.prepare", values={**values, "utterance": "now"})
    tab.send("input_audio_buffer.begin", recording=1, hands_free=True)
    tab.socket.send(np.concatenate([end, said, pause]).astype("<i2").tobytes())
    assert until(lambda: service.requests)
    assert not [event for event in tab.events if event["type"] == "response.update"]
    assert len(ask("00000001")) == 2 and len(service.requests) == 1 and tab.pcm
    tab.send("input_audio_buffer.update", answering=True, unheard=True)
    tab.socket.send(said.astype("<i2").tobytes())
    assert len(ask("00000002")) == 2, "the first half stands there, too"
    assert len(service.requests[-1].messages) == 1
    assert len(service.encoded[-1][0]) > 2 * len(said)
    tab.send("input_audio_buffer.clear")
