"""The conversations of open tabs, and of tabs that were loaded anew: found again by a secret name
that only the tab's own browser has.

Gradio keeps a conversation for a session, too, but drops the oldest sessions of many without a
word, so nothing depends on that.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable

import gradio as gr

from moss_engine.api.service import SpeechService
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.parts.words import STATE_S

SETTLE_S = 1.0  # how long is waited for a stopped reply's handler to close its books
MAX_CONVERSATIONS = 512
MAX_STOPPED = 256
SWEEP_S = 30.0
KEY = re.compile(r"[0-9a-f]{32}")


class KeptConversations:
    """Used on one event loop, but for `drop`. What is forgotten for its age, or for there being too
    many, is handed to `on_forget`."""

    def __init__(
        self,
        on_forget: Callable[[Conversation], None] = lambda conversation: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_session: dict[str, Conversation] = {}
        self._of_key: dict[str, Conversation] = {}
        self._on_forget = on_forget
        self._clock = clock

    def of(
        self, session_id: str, visitor: str = "", given: Conversation | None = None
    ) -> Conversation:
        """The conversation of a session, which was used just now: `given` where Gradio knows it, a
        new one where there is none. A visitor with many gives up the longest unused one of them
        where there are MAX_CONVERSATIONS."""
        found = given or self._of_session.get(session_id)
        if found is None:
            self.sweep()
            self._make_room()
            found = Conversation()
        self._of_session[session_id] = found
        found.session_id, found.visitor = session_id, visitor
        found.used_s = self._clock()
        return found

    def get(self, session_id: str) -> Conversation | None:
        """The conversation of a session, if it has one."""
        return self._of_session.get(session_id)

    def find(self, key: str) -> Conversation | None:
        """What the tab of this name said before it was loaded anew."""
        return self._of_key.get(key)

    def name(self, key: str, conversation: Conversation) -> None:
        """From now on the name finds this conversation."""
        self._of_key[key] = conversation

    def renew(self, session_id: str, voice: str) -> Conversation:
        """An empty conversation in the place of a session's old one, with the same voice."""
        old = self._of_session.get(session_id)
        new = self._of_session[session_id] = Conversation(voice=voice, used_s=self._clock())
        for key in [key for key, known in self._of_key.items() if known is old]:
            self._of_key[key] = new
        return new

    def drop(self, conversation: Conversation) -> None:
        """Forget a conversation; on any thread."""
        for known in (self._of_session, self._of_key):
            for key in [key for key, value in list(known.items()) if value is conversation]:
                known.pop(key, None)

    def __len__(self) -> int:
        return len(self._of_session)

    def sweep(self) -> None:
        """Forget what was not used for STATE_S."""
        now_s = self._clock()
        for conversation in {id(kept): kept for kept in self._of_session.values()}.values():
            if now_s - conversation.used_s > STATE_S:
                self._forget(conversation)

    def _make_room(self) -> None:
        kept = list(self._of_session.values())
        if len(kept) < MAX_CONVERSATIONS:
            return
        count = Counter(conversation.visitor for conversation in kept)
        self._forget(min(kept, key=lambda one: (-count[one.visitor], one.used_s)))

    def _forget(self, conversation: Conversation) -> None:
        self.drop(conversation)
        conversation.turns.clear()  # Gradio keeps a closed tab's conversation for an hour
        self._on_forget(conversation)


class SecretNames:
    """Names of tabs and addresses inside the service, which say nothing outside it; others in every
    process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def session(self, request: gr.Request) -> str:
        """A tab's name: not its session hash, which lets others read and cancel its events."""
        return self._of(f"session {request.session_hash}")

    def visitor(self, request: gr.Request) -> str:
        """The name of the address from which a tab asks."""
        return self._of(f"address {getattr(request.client, 'host', '')}")

    def _of(self, value: str) -> str:
        return hashlib.blake2b(value.encode(), key=self._key, digest_size=16).hexdigest()


class Visits:
    """Who asks: the conversations of sessions, what they stopped, and that they leave. Used on one
    event loop, but for `forget`."""

    def __init__(self, service: SpeechService):
        self.kept = KeptConversations(on_forget=self.forget)
        self.names = SecretNames()
        self._service = service
        # Sessions and their runs that are unwanted, the newest ones.
        self._stopped: deque[tuple[str, str]] = deque(maxlen=MAX_STOPPED)
        self._sweeping: asyncio.TimerHandle | None = None

    def of(self, request: gr.Request, given: Conversation | None = None) -> Conversation:
        """The conversation of who asks; it is forgotten STATE_S after the last call."""
        session_id, visitor = self.names.session(request), self.names.visitor(request)
        conversation = self.kept.of(session_id, visitor, given)
        conversation.loop = asyncio.get_running_loop()
        if self._sweeping is None:
            self._sweeping = conversation.loop.call_later(SWEEP_S, self._sweep)
        return conversation

    def _sweep(self) -> None:
        """Forget what is old, now and then as long as there is something."""
        self.kept.sweep()
        again = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self.kept else None
        self._sweeping = again

    def known(self, request: gr.Request | None, given: Conversation | None) -> Conversation | None:
        """The conversation of who asks, if there is one."""
        if given is not None or request is None:
            return given
        return self.kept.get(self.names.session(request))

    def note_stop(self, session_id: str, run: str) -> None:
        """A run is unwanted, even if its question is still on its way."""
        self._stopped.append((session_id, run))

    def was_stopped(self, session_id: str, run: str) -> bool:
        return (session_id, run) in self._stopped

    def forget(self, conversation: Conversation | None) -> None:
        """A conversation is over; Gradio says so on a thread of its own."""
        if conversation is None:
            return
        self.kept.drop(conversation)
        if conversation.loop is not None and not conversation.loop.is_closed():
            leaving = self.leave(conversation.session_id)
            asyncio.run_coroutine_threadsafe(leaving, conversation.loop)

    async def leave(self, session_id: str) -> None:
        """Stop what a session hears, and forget its own voice."""
        await self._service.cancel_session(session_id)
        await self._service.remove_voice(session_id)


async def settle(conversation: Conversation) -> None:
    """Wait until every reply that was stopped is over; a question that comes meanwhile is not
    meant."""
    deadline_s = time.monotonic() + SETTLE_S
    turns = list(conversation.turns)
    while not all(turn.over for turn in turns) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
    for turn in turns:
        turn.close()
