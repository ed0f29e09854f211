"""The conversations of open tabs, and of tabs that were loaded anew: found again by a secret name
that only the tab's own browser has.

Nothing outlives what Gradio keeps of a session: it says when a conversation is to be forgotten.
"""

from __future__ import annotations

import asyncio
import re
import time

from moss_engine.ui.conversation import Conversation

SETTLE_S = 1.0  # how long is waited for a stopped reply's handler to close its books
KEY = re.compile(r"[0-9a-f]{32}")


class KeptConversations:
    """Used on one event loop, but for `drop`."""

    def __init__(self) -> None:
        self._of_session: dict[str, Conversation] = {}
        self._of_key: dict[str, Conversation] = {}

    def of(self, session_id: str) -> Conversation:
        """The conversation of a session, a new one where it has none."""
        return self._of_session.setdefault(session_id, Conversation())

    def find(self, key: str) -> Conversation | None:
        """What the tab of this name said before it was loaded anew."""
        return self._of_key.get(key)

    def name(self, key: str, conversation: Conversation) -> None:
        """From now on the name finds this conversation."""
        self._of_key[key] = conversation

    def renew(self, session_id: str, voice: str) -> Conversation:
        """An empty conversation in the place of a session's old one, with the same voice."""
        old = self._of_session.get(session_id)
        new = self._of_session[session_id] = Conversation(voice=voice)
        for key in [key for key, known in self._of_key.items() if known is old]:
            self._of_key[key] = new
        return new

    def drop(self, conversation: Conversation) -> None:
        """Forget a conversation; on any thread."""
        for known in (self._of_session, self._of_key):
            for key in [key for key, value in list(known.items()) if value is conversation]:
                known.pop(key, None)


async def settle(conversation: Conversation) -> None:
    """Wait until every reply that was stopped is over; a question that comes meanwhile is not
    meant."""
    deadline_s = time.monotonic() + SETTLE_S
    turns = list(conversation.turns)
    while not all(turn.over for turn in turns) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
    for turn in turns:
        turn.close()
