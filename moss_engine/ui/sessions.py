"""The conversations of open tabs and of programs, and of tabs that were loaded anew: found again by
a secret name that only the tab's own browser has."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from moss_engine.api.service import SpeechService
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.parts.words import STATE_S

SETTLE_S = 1.0  # how long is waited for a stopped reply's handler to close its books
MAX_CONVERSATIONS = 512
MAX_STOPPED = 256
SWEEP_S = 30.0


class Conversations:
    """Used on one event loop. What is forgotten for its age, or for there being too
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

    def of(self, session_id: str, visitor: str = "") -> Conversation:
        """The conversation of a session, which was used just now; a new one where there is none. A
        visitor with many gives up the longest unused one of them where there are
        MAX_CONVERSATIONS."""
        found = self._of_session.get(session_id)
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

    def renew(self, old: Conversation) -> Conversation:
        """An empty conversation in the place of an old one, with the same voice."""
        new = replace(old, turns=[], forgotten=0, used_s=self._clock())
        self._of_session[old.session_id] = new
        for key in [key for key, known in self._of_key.items() if known is old]:
            self._of_key[key] = new
        return new

    def drop(self, conversation: Conversation) -> None:
        """Forget a conversation."""
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
        self._on_forget(conversation)


class SecretNames:
    """Names of tabs and addresses inside the service, which say nothing outside it; others in every
    process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def session(self, name: str) -> str:
        """The name of a tab, or of a program's session: not its own, which lets others read and
        cancel what it asks for."""
        return self._of(f"session {name}")

    def visitor(self, address: str) -> str:
        """The name of a network address."""
        return self._of(f"address {address}")

    def _of(self, value: str) -> str:
        return hashlib.blake2b(value.encode(), key=self._key, digest_size=16).hexdigest()


class Sessions:
    """Who asks: the conversations of sessions, what they stopped, and that they leave. Used on one
    event loop."""

    def __init__(self, service: SpeechService):
        self.conversations = Conversations(on_forget=self._forget)
        self.names = SecretNames()
        self._service = service
        # Sessions and their runs that are unwanted, the newest ones.
        self._stopped: deque[tuple[str, str]] = deque(maxlen=MAX_STOPPED)
        self._sweeping: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Future[None]] = set()

    def of(self, session_id: str, visitor: str) -> Conversation:
        """The conversation of a session; it is forgotten STATE_S after the last call."""
        conversation = self.conversations.of(session_id, visitor)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return conversation

    def _sweep(self) -> None:
        """Forget what is old, now and then as long as there is something."""
        self.conversations.sweep()
        again = (
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
            if self.conversations
            else None
        )
        self._sweeping = again

    def note_stop(self, session_id: str, run: str) -> None:
        """A run is unwanted, even if its question is still on its way."""
        self._stopped.append((session_id, run))

    def was_stopped(self, session_id: str, run: str) -> bool:
        return (session_id, run) in self._stopped

    def _forget(self, conversation: Conversation) -> None:
        leaving = asyncio.ensure_future(self.leave(conversation.session_id))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

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
