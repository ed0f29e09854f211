"""Visitors' own voices in a cluster: their recordings stay with the page, replicas get them when a
reply is spoken there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
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
