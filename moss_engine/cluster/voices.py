"""Visitors' own voices in a cluster: their recordings stay with the page; a replica learns a voice
when a reply is to be spoken in it, and forgets it when nobody has used it for long.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moss_engine.api.request import Request
from moss_engine.api.service import ClonedVoice
from moss_engine.cluster.members import Member

if TYPE_CHECKING:
    import numpy as np

Sound = tuple["np.ndarray", int, tuple[int, ...]]
"""Wave, its rate in Hz and its codes."""
MAX_RECORDINGS = 256


@dataclass
class _Recording:
    """`names` are the voice's names, by replica."""

    name: str
    sound: Sound
    names: dict[str, str] = field(default_factory=dict)


class OwnVoices:
    """One own voice for each session; when there are many, the oldest are forgotten."""

    def __init__(self) -> None:
        self._recordings: OrderedDict[str, _Recording] = OrderedDict()
        self._adding: dict[str, object] = {}  # the latest addition of a session

    async def add(self, member: Member, session_id: str, *sound: Any) -> ClonedVoice:
        """As `SpeechService.add_voice`; the replica's name for it is the page's."""
        this = self._adding[session_id] = object()
        voice: ClonedVoice = await member.call("add_voice", session_id, *sound)
        if self._adding.get(session_id) is this:  # else it was removed, or replaced, meanwhile
            del self._adding[session_id]
            self._recordings.pop(session_id, None)
            names = {member.name: voice.name}
            self._recordings[session_id] = _Recording(voice.name, sound, names)  # type: ignore[arg-type]
            if len(self._recordings) > MAX_RECORDINGS:
                self._recordings.popitem(last=False)
        return voice

    def remove(self, session_id: str) -> list[str]:
        """Forget a session's voice; returns the replicas that learned it."""
        self._adding.pop(session_id, None)
        recording = self._recordings.pop(session_id, None)
        return list(recording.names) if recording else []

    async def prepare(self, request: Request, member: Member, teaches: bool = False) -> Request:
        """The request with the voice's name at this replica, which is sent the voice if it does not
        know it, or if `teaches`."""
        recording = self._recordings.get(request.session_id)
        if recording is None or request.voice != recording.name:
            return request
        if teaches or member.name not in recording.names:
            arguments = (request.session_id, *recording.sound)
            recording.names[member.name] = (await member.call("add_voice", *arguments)).name
        return replace(request, voice=recording.names[member.name])
