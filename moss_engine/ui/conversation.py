"""A visitor's conversation, as the server keeps it; what a browser sends back of it is never
believed.

Its history holds what was said and what was heard: codes of recordings, so that nothing is encoded
twice, and rows of replies up to the last sample that reached the ear, so that their keys and values
are found again.

Conversations are found again by the session of a tab or of a program, and after a reload by a
secret name that only the tab's own browser has.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message
from moss_engine.api.service import SpeechService
from moss_engine.ui.clip import Clip, cut_clip, write_clip
from moss_engine.ui.parts.words import STATE_S
from moss_engine.ui.turn import Turn

POSITION = re.compile(r"([0-9a-f]{8}):(\d{1,12})")


@dataclass(eq=False)
class Conversation:
    """By `name` it is found again, until it is `forgetting` itself. `forgotten` turns, from the
    first on, are history no longer; `voice` is the visitor's own; `doubted` are keys of texts that
    were refused once (`form.doubt_once`)."""

    turns: list[Turn] = field(default_factory=list)
    session_id: str = ""
    visitor: str = ""
    name: str = ""
    forgotten: int = 0
    voice: str = ""
    forgetting: asyncio.TimerHandle | None = None
    doubted: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_DOUBTED))
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def history(self, asked: Turn) -> tuple[Message, ...]:
        """The turns to answer after: those remembered, of any mode, of whose reply something was
        heard, and which hold no recordings of what is `asked` now."""
        told = [
            (turn, answer)
            for turn in self.turns
            if turn.mode.history
            and (answer := turn.as_history(through_text=turn.mode.through_text))
        ]
        return tuple(
            message
            for turn, answer in told[self.forgotten :]
            if not turn.utterances & asked.utterances
            for message in (Message("user", turn.content), Message("assistant", answer))
        )

    def add(self, turn: Turn) -> None:
        """A turn was accepted; earlier ones that hold the same recordings are replaced by it, and
        those that did not fit beside it are history no longer."""
        if turn in self.turns:
            return
        self.forgotten += turn.num_left_out // 2
        turn.left_out = self.forgotten if turn.num_left_out else 0
        self.turns = [other for other in self.turns if not other.utterances & turn.utterances]
        self.turns.append(turn)

    def clear(self) -> None:
        """Nothing was said; the voice stays."""
        self.turns, self.forgotten = [], 0

    def cut(self, heard: str, info: ServiceInfo) -> None:
        """Note how much of a reply reached the ear, where `heard` names its run and a number of
        samples; browsers may say something else, or nothing."""
        position = POSITION.fullmatch(heard)
        with self._writing:
            for turn in self.turns:
                if not position or not turn.mode.history or turn.run != position[1] or turn.is_cut:
                    continue
                turn.cut(int(position[2]), info)
                if turn.is_cut and (clip := turn.answer_clip):
                    turn.answer_clip = _kept(turn, partial(cut_clip, clip, turn.num_samples))

    def entries(self, folder: Path) -> list[dict[str, Any]]:
        """What was said so far, for the page's Transcript; sound of finished turns is written to
        `folder` once, and not kept otherwise."""
        with self._writing:
            return [
                entry | {"reads": turn.reads, "id": f"{turn.run}:{entry['role'][0]}"}
                for turn in self.turns
                for entry in (_question(turn, folder), *_answer(turn, folder))
            ]


def _question(turn: Turn, folder: Path) -> dict[str, Any]:
    if isinstance(turn.asked, str):
        return _entry("user", turn.asked)
    if turn.question_clip is None and len(turn.asked.pcm):
        turn.question_clip = _kept(
            turn, partial(write_clip, folder, turn.asked.pcm, turn.asked.rate_hz)
        )
        turn.asked = replace(turn.asked, pcm=turn.asked.pcm[:0].copy())
    transcript = turn.asked.speech.transcript
    if transcript is None:
        return _entry("user", "", clip=turn.question_clip)
    return _entry(
        "user", transcript.text, f"As {transcript.recogniser} heard it.", turn.question_clip
    )


def _answer(turn: Turn, folder: Path) -> list[dict[str, Any]]:
    if not turn.over:
        return []
    left_out = (
        f"The first {turn.left_out} turns no longer fit beside this one and were left out."
        if turn.left_out
        else ""
    )
    if turn.answer_clip is None and len(pcm := turn.sound()):
        turn.answer_clip = _kept(turn, partial(write_clip, folder, pcm, turn.sample_rate_hz))
    note = " ".join(part for part in (turn.note, left_out, turn.unkept) if part)
    return [_entry("assistant", turn.transcript.strip(), note, turn.answer_clip)]


def _kept(turn: Turn, make: Callable[[], Clip | None]) -> Clip | None:
    """The clip that is made so; None where there is no room for it, which the turn then says."""
    try:
        return make()
    except OSError as error:
        turn.unkept = f"Its sound cannot be heard again: {error.strerror}."
        return None


def _entry(role: str, text: str, note: str = "", clip: Clip | None = None) -> dict[str, Any]:
    return {
        "role": role,
        "text": text,
        "note": note,
        "clip": clip.message() if clip and clip.path.exists() else None,
    }


SETTLE_S = 1.0  # how long is waited for a stopped reply's handler to close its books
MAX_CONVERSATIONS = 512
MAX_DOUBTED = 64


class Sessions:
    """Who asks: the conversations of tabs and of programs, and that they leave. Used on one event
    loop."""

    def __init__(self, service: SpeechService):
        self._key = secrets.token_bytes(16)
        self._service = service
        self._of_name: dict[str, Conversation] = {}  # the one that was used last is the last
        self._leaving: set[asyncio.Future[None]] = set()

    def secret(self, name: str) -> str:
        """What a tab, a program's session or a network address is called inside the service: not
        by its own name, which lets others read and cancel what it asks for. It is another in every
        process."""
        return hashlib.blake2b(name.encode(), key=self._key, digest_size=16).hexdigest()

    def of(self, session_id: str, visitor: str = "", name: str = "") -> Conversation:
        """The conversation of a session, which was used just now; it is forgotten STATE_S after
        the last call. By a `name` of its own it outlives its session. A visitor with many gives up
        the longest unused one of them where there are MAX_CONVERSATIONS."""
        name = name or session_id
        found = self._of_name.pop(name, None)
        if found is None:
            self._make_room()
            found = Conversation(name=name)
        if found.forgetting is not None:
            found.forgetting.cancel()
        self._of_name[name] = found
        found.session_id, found.visitor = session_id, visitor
        found.forgetting = asyncio.get_running_loop().call_later(STATE_S, self._forget, found)
        return found

    async def come_back(self, session_id: str, visitor: str, name: str) -> None:
        """A page was loaded: the conversation of its tab goes on in another session. Of a reply in
        the middle no more is made, and the voice of the earlier session is left to it."""
        before = self._of_name.get(name)
        if before is not None and before.session_id != session_id:
            await self._service.cancel_session(before.session_id)
            await settle(before)
            before.voice = ""
        self.of(session_id, visitor, name)

    def _make_room(self) -> None:
        kept = list(self._of_name.values())
        if len(kept) < MAX_CONVERSATIONS:
            return
        count = Counter(conversation.visitor for conversation in kept)
        self._forget(max(kept, key=lambda one: count[one.visitor]))

    def _forget(self, conversation: Conversation) -> None:
        assert conversation.forgetting is not None, "it was used"
        conversation.forgetting.cancel()
        del self._of_name[conversation.name]
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
