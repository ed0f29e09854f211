"""Visitors' own voices in a cluster: their recordings stay with the page, replicas get them when a
reply is spoken there, and forget them when the page is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice
from moss_engine.cluster.members import Member

if TYPE_CHECKING:
    import numpy as np


MAX_RECORDINGS = 256


@dataclass
class _Recording:
    """`names` are those that replicas gave the voice, by replica."""

    name: str
    wave: np.ndarray
    sample_rate_hz: int
    codes: tuple[int, ...]
    names: dict[str, str] = field(default_factory=dict)


class OwnVoices:
    """By session, one each; the oldest are `surplus` when there are many. `page` is whose they
    are."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._recordings: dict[str, _Recording] = {}
        # Replicas that were asked for a voice of the session: they may have one.
        self._asked: OrderedDict[str, set[str]] = OrderedDict()

    async def add(
        self,
        member: Member,
        session_id: str,
        wave: np.ndarray,
        sample_rate_hz: int,
        codes: tuple[int, ...],
    ) -> ClonedVoice:
        """As `SpeechService.add_voice`; the replica's name for it is the page's."""
        self._asked.setdefault(session_id, set())
        self._asked.move_to_end(session_id)
        voice = await self._teach(member, session_id, wave, sample_rate_hz, codes)
        if session_id in self._asked:  # else it was removed meanwhile
            names = {member.name: voice.name}
            self._recordings[session_id] = _Recording(
                voice.name, wave, sample_rate_hz, codes, names
            )
        return voice

    def surplus(self) -> list[str]:
        """The sessions whose voices are to be removed, as there are many."""
        return list(self._asked)[: max(0, len(self._asked) - MAX_RECORDINGS)]

    def remove(self, session_id: str) -> list[str]:
        """Forget a session's voice; returns the replicas that may have one of it."""
        self._recordings.pop(session_id, None)
        return list(self._asked.pop(session_id, ()))

    def voiced(self, replica: str) -> Sequence[str]:
        """The sessions of which a replica may have a voice."""
        return [session_id for session_id, names in self._asked.items() if replica in names]

    async def prepare(self, request: Request, member: Member, teaches: bool = False) -> Request:
        """The request with the voice's name at this replica, which learns it if need be; with
        `teaches` in any case."""
        recording = self._recordings.get(request.session_id)
        if recording is None or request.voice != recording.name:
            return request
        if teaches or member.name not in recording.names:
            sound = recording.wave, recording.sample_rate_hz, recording.codes
            voice = await self._teach(member, request.session_id, *sound)
            recording.names[member.name] = voice.name
        return replace(request, voice=recording.names[member.name])

    async def _teach(self, member: Member, session_id: str, *sound: Any) -> ClonedVoice:
        """Noted before it is done: a call that nobody waits for any more may still be heard."""
        self._asked.setdefault(session_id, set()).add(member.name)
        call = member.remote.call(self._page, "add_voice", session_id, *sound)
        return (await call).result()


GONE_S = 300.0
"""Without a word for so long a page is gone: one that lives asks for its watch five times
meanwhile."""


class ReplicaVoices:
    """By session. A page whose voices were forgotten, as it was cut off, sends them again."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._pages: dict[str, str] = {}  # by session
        self._heard_s: dict[str, float] = {}  # by page, of those with voices

    def __len__(self) -> int:
        return len(self._pages)

    def hear(self, page: str) -> None:
        """The page lives."""
        if page in self._heard_s:
            self._heard_s[page] = self._clock()

    def add(self, page: str, session_id: str) -> None:
        self._pages[session_id] = page
        self._heard_s[page] = self._clock()

    def remove(self, session_id: str) -> None:
        self._pages.pop(session_id, None)

    def unwanted(self, page: str, voiced: Collection[str]) -> list[str]:
        """The page's other sessions, which are forgotten."""
        return self._drop([s for s, of in self._pages.items() if of == page and s not in voiced])

    def orphans(self) -> list[str]:
        """The sessions of pages that are gone, which are forgotten."""
        now_s = self._clock()
        for page, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > GONE_S:
                del self._heard_s[page]
        return self._drop([s for s, page in self._pages.items() if page not in self._heard_s])

    def _drop(self, sessions: list[str]) -> list[str]:
        for session_id in sessions:
            del self._pages[session_id]
        return sessions
