"""The page's WebSocket: everything between an open tab and what answers it.

Events are JSON objects with a `type`, named as in OpenAI's realtime protocol where it has one. A
tab sends, besides binary frames, which are its microphone's int16 PCM at 16 kHz:

    session.open               visit, key, last       who it is, and the last frame that it has
    session.close                                     the tab is closed
    got                        last                   it has every frame up to that number
    response.create            values, run, heard, sound
    response.prepare           values                 how what is being said will be asked
    response.cancel            heard
    conversation.clear
    pool.read                                         what of the service is in use now
    input_audio_buffer.begin   recording, hands_free
    input_audio_buffer.update  answering, unheard, saying, played   what the page says while it
                               listens, whether hardly anything was heard of that, and whether
                               blocks hold, behind the microphone's, what it plays
    input_audio_buffer.commit                         what was said is over
    input_audio_buffer.clear                          and is nobody's
    voice.create               consent, utterance     an own voice, of what was said

It is told:

    session.opened             instance, seen, resumed  who answers, and how many frames it has
    conversation.updated       entries, whole         what was said so far
    response.update            run, ...               what is new of a reply
    pool.updated               pool                   counts of blocks and replies
    input_audio_buffer.heard   block, ...             what a block brought about
    input_audio_buffer.failed  message                why nothing more is heard
    voice.created              voice, message         or "", and why there is none
    error                      message

A frame with sound is binary: the length of its JSON as four bytes, the lowest first, the JSON, and
int16 PCM or packets of Opus. Both sides number the frames behind the first one, from 0 on. A
connection that breaks may be taken up again within RESUME_S: what either side has not got is sent
then.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from itertools import count
from typing import Any

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_engine.api.errors import BusyError, MossError, ParameterError
from moss_engine.api.request import Speech
from moss_engine.audio.turn_taking import RATE_HZ
from moss_engine.endpoints.ahead import Ahead
from moss_engine.ui import form
from moss_engine.ui.audio_in.ingest import Utterance
from moss_engine.ui.audio_in.microphone import MAX_SAYING, Microphone
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.entrance.asgi import Refused, address_of
from moss_engine.ui.entrance.guard import parse_json
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.stream import Messages, Wire, pool_counts

HELLO_S = 10.0  # for the first event
RESUME_S = 15.0  # for a broken connection to come back
SEND_S = 30.0  # for a browser to take a frame
MAX_EVENT_BYTES = 256 * 1024
MAX_BLOCK_BYTES = 256 * 1024
MAX_HELD_BYTES = 8 << 20  # of frames that a tab has not got
MAX_TABS, MAX_TABS_OF_VISITOR = 512, 64  # many visitors behind one router are one address
NAME = re.compile(r"[0-9a-f]{32}")
LEFT = (1000, 1001)  # codes with which a browser closes what it does not want any more
GONE_CODE, FULL_CODE, WRONG_CODE = 4001, 4013, 4002
FULL = "All places of this page are taken by open tabs; close some, or try again in a moment."


class Outbox:
    """The frames for a tab, in order, until it has got them."""

    def __init__(self) -> None:
        self.more = asyncio.Event()
        self._frames: deque[str | bytes] = deque()
        self._first = 0  # number of the first of them
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes > MAX_HELD_BYTES

    def put(self, event: dict[str, Any], sound: bytes = b"") -> None:
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        frame: str | bytes = text
        if sound:
            head = text.encode()
            frame = len(head).to_bytes(4, "little") + head + sound
        self._frames.append(frame)
        self._bytes += len(frame)
        self.more.set()

    def got(self, last: int) -> None:
        """The tab has every frame up to that number."""
        while self._frames and self._first <= last:
            self._bytes -= len(self._frames.popleft())
            self._first += 1

    def frame(self, number: int) -> str | bytes | None:
        """The frame of that number; None if it is not made yet."""
        place = number - self._first
        return self._frames[place] if 0 <= place < len(self._frames) else None

    def holds(self, number: int) -> bool:
        """Whether a tab whose last frame was the one before that number can go on."""
        return self._first <= number <= self._first + len(self._frames)


class Tab:
    """One load of the page in a browser, through all its connections. Used on one event loop."""

    def __init__(self, handlers: Handlers, visit: str, key: str, visitor: str):
        self.outbox = Outbox()
        self.seen = 0  # frames that came
        self.socket: WebSocket | None = None
        self.visit, self.visitor = visit, visitor
        self.ending: asyncio.TimerHandle | None = None
        self._handlers = handlers
        self._name = handlers.sessions.secret(key)
        self._session_id = handlers.sessions.secret(visit)
        self._tasks: set[asyncio.Task[None]] = set()
        self._replying: asyncio.Task[None] | None = None
        self._replies: set[asyncio.Task[None]] = set()  # also those that are being stopped
        self._ahead = Ahead(handlers.service, handlers.figures)
        self._microphone: Microphone | None = None
        if handlers.ingest is not None:
            self._microphone = Microphone(handlers.ingest, visitor, self.tell, self._paused)
        self._prepared: dict[str, Any] | None = None

    @property
    def conversation(self) -> Conversation:
        """Of this tab; a new one where it was not used for long."""
        return self._handlers.sessions.of(self._session_id, self.visitor, self._name)

    def tell(self, kind: str, sound: bytes = b"", /, **fields: Any) -> None:
        self.outbox.put({"type": kind, **fields}, sound)

    async def begin(self) -> None:
        """A page was loaded: it is told what its tab said before."""
        await self._handlers.sessions.come_back(self._session_id, self.visitor, self._name)
        await self._tell_conversation(whole=True)

    def take(self, event: dict[str, Any]) -> None:
        """One event of the tab. Raises ParameterError for one that is none."""
        kind = event.get("type")
        if kind == "got":
            self.outbox.got(_number(event, "last"))
        elif kind == "response.create":
            self._reply(self._answer(event), event)
        elif kind == "response.prepare":
            self._prepared = form.read(event.get("values"), self._handlers.facts)
        elif kind == "response.cancel":
            self._do(self._cancel(_text(event, "heard"), self._stopped()))
        elif kind == "conversation.clear":
            self._do(self._clear(self._stopped()))
        elif kind == "pool.read":
            self._do(self._tell_pool())
        elif kind == "voice.create":
            self._do(self._make_voice(event.get("consent") is True, _text(event, "utterance")))
        elif kind is not None and str(kind).startswith("input_audio_buffer."):
            self._listen(str(kind).partition(".")[2], event)
        else:
            raise ParameterError(f"There is no event {str(kind)[:40]!r}.")

    def take_sound(self, block: bytes) -> None:
        """The microphone's next int16 PCM."""
        if self._microphone is not None and len(block) <= MAX_BLOCK_BYTES:
            self._microphone.push(block)

    async def close(self) -> None:
        """The tab is gone: what it asked for ends, and its own voice is forgotten."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._microphone is not None:
            self._microphone.close()
        await self._ahead.close()
        await self._handlers.sessions.leave(self._session_id)

    # What the events bring about.

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _reply(self, messages: Messages, event: dict[str, Any]) -> None:
        """Answer in the place of whatever is answered now."""
        self._replying = self._do(self._relay(messages, event, self._stopped()))
        self._replies.add(self._replying)
        self._replying.add_done_callback(self._replies.discard)

    def _stopped(self) -> set[asyncio.Task[None]]:
        """Cancel the reply that is being made. Returns all replies that still end, to wait for."""
        if self._replying is not None:
            self._replying.cancel()
            self._replying = None
        return set(self._replies)

    async def _relay(
        self, messages: Messages, event: dict[str, Any], before: set[asyncio.Task[None]]
    ) -> None:
        """Every message of a reply as its tab takes them; the conversation once it is accepted and
        once it is over."""
        wire = Wire(str(event.get("sound", "pcm")))
        telling: asyncio.Task[None] | None = None  # that it was accepted, beside its first sound
        if before:
            await asyncio.wait(before)
            await self._tell_conversation()
        try:
            async with aclosing(messages):
                async for message in messages:
                    news, sound = wire.pack(message)
                    self.tell("response.update", sound, **news)
                    if message["now_s"] is not None and telling is None:
                        telling = self._do(self._tell_conversation())
        except MossError as error:
            self.tell("error", message=str(error))
        finally:
            wire.close()
        if telling is not None:
            await telling
            await self._tell_conversation()

    def _answer(self, event: dict[str, Any]) -> Messages:
        values = form.read(event.get("values"), self._handlers.facts)
        values["heard"] = _text(event, "heard")
        run = form.run_name(event.get("run"))
        if self._microphone is not None:
            speech = {mode.name for mode in self._handlers.facts.modes if mode.input == "speech"}
            self._microphone.page.asked = values["utterance"] if values["mode"] in speech else ""
        return self._handlers.answer(values, run, self.conversation, self._ahead)

    def _paused(self, said: Speech | None) -> None:
        """The speaker pauses after `said`: begin the answer. None: they go on, so drop it."""
        microphone = self._microphone
        self._ahead.drop()
        if said is None or self._prepared is None or microphone is None:
            return
        if microphone.page.answering or not (self._replying is None or self._replying.done()):
            return
        so_far = Utterance(microphone.before, said, np.zeros(0, np.int16), RATE_HZ)
        self._handlers.begin(self._prepared, so_far, self.conversation, self._ahead)

    async def _make_voice(self, consent: bool, utterance: str) -> None:
        making = self._handlers.make_voice(self.conversation, consent, utterance)
        task = asyncio.ensure_future(making)
        try:
            voice = await asyncio.shield(task)
        except asyncio.CancelledError:  # the tab is closed, which forgets what is there by then
            await asyncio.wait({task})
            raise
        except MossError as error:
            self.tell("voice.created", voice="", message=str(error))
        else:
            words = ("Answers now come in your voice.", voice.advice)
            self.tell("voice.created", voice=voice.name, message=" ".join(filter(None, words)))

    async def _cancel(self, heard: str, stopped: set[asyncio.Task[None]]) -> None:
        if stopped:
            await asyncio.wait(stopped)
        await asyncio.to_thread(self.conversation.cut, heard, self._handlers.facts)
        await self._tell_conversation()

    async def _clear(self, stopped: set[asyncio.Task[None]]) -> None:
        if stopped:
            await asyncio.wait(stopped)
        self.conversation.clear()
        await self._tell_conversation()

    async def _tell_conversation(self, *, whole: bool = False) -> None:
        entries = await self._handlers.entries(self.conversation)
        self.tell("conversation.updated", entries=entries, whole=whole)

    async def _tell_pool(self) -> None:
        self.tell("pool.updated", pool=await pool_counts(self._handlers.service))

    def _listen(self, what: str, event: dict[str, Any]) -> None:
        if self._microphone is None:
            raise ParameterError("This page takes no recordings; type your question.")
        if what == "begin":
            self._microphone.begin(_number(event, "recording"), bool(event.get("hands_free")))
        elif what == "update":
            page = self._microphone.page
            page.answering, page.unheard = bool(event.get("answering")), bool(event.get("unheard"))
            page.words = _text(event, "saying")[-MAX_SAYING:]
            page.played = bool(event.get("played"))
        elif what == "commit":
            self._microphone.end()
        elif what == "clear":
            self._microphone.drop()
        else:
            raise ParameterError(f"There is no event input_audio_buffer.{what[:40]}.")


class Door:
    """An ASGI app for the WebSockets of a page's tabs, which stand behind its guard."""

    def __init__(self, handlers: Handlers):
        self._handlers = handlers
        self._tabs: dict[str, Tab] = {}
        self._instance = secrets.token_hex(8)
        self._closing: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        try:
            hello = parse_json((await asyncio.wait_for(socket.receive_text(), HELLO_S)).encode())
            tab, last = self._admit(hello, self._handlers.sessions.secret(address_of(scope)))
        except (KeyError, asyncio.TimeoutError, WebSocketDisconnect):
            return
        except (Refused, ParameterError) as error:
            await socket.close(WRONG_CODE, str(error))
            return
        except BusyError as error:
            await socket.close(FULL_CODE, str(error))
            return
        await self._serve(tab, socket, last)

    def _admit(self, hello: Any, visitor: str) -> tuple[Tab, int]:
        """The tab that says who it is, and the last frame that it has, -2 where it is new. Raises
        ParameterError for one that does not, BusyError where there is no place for one more."""
        if not isinstance(hello, dict) or hello.get("type") != "session.open":
            raise ParameterError("The first event must be session.open.")
        visit, key, last = hello.get("visit"), hello.get("key"), hello.get("last", -1)
        if not all(isinstance(name, str) and NAME.fullmatch(name) for name in (visit, key)):
            raise ParameterError("visit and key must be 32 digits from 0 to f.")
        tab = self._tabs.get(str(visit))
        if tab is not None and isinstance(last, int) and tab.outbox.holds(last + 1):
            return tab, last
        if tab is not None:
            self._end(tab)
        mine = Counter(tab.visitor for tab in self._tabs.values())[visitor]
        if len(self._tabs) >= MAX_TABS or mine >= MAX_TABS_OF_VISITOR:
            raise BusyError(FULL)
        tab = self._tabs[str(visit)] = Tab(self._handlers, str(visit), str(key), visitor)
        return tab, -2

    async def _serve(self, tab: Tab, socket: WebSocket, last: int) -> None:
        """Until the connection ends; the tab outlives one that breaks by RESUME_S."""
        if tab.ending is not None:
            tab.ending.cancel()
            tab.ending = None
        before, tab.socket = tab.socket, socket
        if before is not None:  # which may take no more, not even that
            self._behind(_close(before, GONE_CODE))
        left = False
        try:
            left = await self._converse(tab, socket, last)
        finally:
            if tab.socket is socket:  # no other connection took it over
                tab.socket = None
                if left or tab.outbox.is_full:
                    self._end(tab)
                else:
                    tab.ending = asyncio.get_running_loop().call_later(RESUME_S, self._end, tab)
        await _close(socket, GONE_CODE)

    async def _converse(self, tab: Tab, socket: WebSocket, last: int) -> bool:
        """Until the connection ends; whether the browser does not want it any more."""
        opened = {"instance": self._instance, "seen": tab.seen, "resumed": last >= -1}
        try:
            await socket.send_json({"type": "session.opened", **opened})
        except (WebSocketDisconnect, RuntimeError):
            return False
        if last < -1:
            await tab.begin()
        else:
            tab.outbox.got(last)
        work = [
            asyncio.ensure_future(_read(tab, socket)),
            asyncio.ensure_future(_write(tab, socket, max(last, -1) + 1)),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        return any(task.result() in LEFT for task in done)

    def _end(self, tab: Tab) -> None:
        if self._tabs.get(tab.visit) is not tab:
            return  # it has ended
        del self._tabs[tab.visit]
        self._behind(tab.close())

    def _behind(self, closing: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for it."""
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _read(tab: Tab, socket: WebSocket) -> int | None:
    """The tab's events until its connection ends; the code that it ended with."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return message.get("code")
        if tab.socket is not socket:
            return None
        tab.seen += 1
        if message.get("bytes") is not None:
            tab.take_sound(message["bytes"])
            continue
        try:
            body = message["text"].encode("utf-8", "surrogatepass")
            if len(body) > MAX_EVENT_BYTES:
                raise ParameterError(f"An event has at most {MAX_EVENT_BYTES >> 10} kB.")
            event = parse_json(body)
            if not isinstance(event, dict):
                raise ParameterError("An event is a JSON object.")
            if event.get("type") == "session.close":
                return LEFT[0]
            tab.take(event)
        except (Refused, MossError) as error:
            tab.tell("error", message=str(error))


async def _write(tab: Tab, socket: WebSocket, first: int) -> None:
    """Frames from a number on, as they are made; ends where the browser takes none."""
    outbox = tab.outbox
    for number in count(first):
        while (frame := outbox.frame(number)) is None:
            outbox.more.clear()
            await outbox.more.wait()
        if outbox.is_full:
            return
        kind = "text" if isinstance(frame, str) else "bytes"
        sending = asyncio.ensure_future(socket.send({"type": "websocket.send", kind: frame}))
        try:  # `wait_for` of Python 3.11 forgets to be cancelled where the frame has just left
            if not (await asyncio.wait({sending}, timeout=SEND_S))[0]:
                return
            sending.result()
        except (WebSocketDisconnect, RuntimeError, OSError):
            return
        finally:
            sending.cancel()


async def _close(socket: WebSocket, code: int) -> None:
    """Close what may be closed already."""
    with suppress(RuntimeError, WebSocketDisconnect, OSError):
        await socket.close(code)


def _text(event: dict[str, Any], name: str) -> str:
    value = event.get(name, "")
    if not isinstance(value, str):
        raise ParameterError(f"{name} must be a text.")
    return value


def _number(event: dict[str, Any], name: str) -> int:
    value = event.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ParameterError(f"{name} must be a whole number.")
    return value
