"""Visitors' own voices in a cluster: their recordings stay with the page, replicas get them when a
reply is spoken there."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

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
    """By session, one each; the oldest is forgotten when there are many."""

    def __init__(self) -> None:
        self._recordings: OrderedDict[str, _Recording] = OrderedDict()

    async def add(
        self,
        member: Member,
        session_id: str,
        wave: np.ndarray,
        sample_rate_hz: int,
        codes: tuple[int, ...],
    ) -> ClonedVoice:
        """As `SpeechService.add_voice`; the replica's name for it is the page's."""
        answer = await member.remote.call("add_voice", session_id, wave, sample_rate_hz, codes)
        voice: ClonedVoice = answer.result()
        recording = _Recording(voice.name, wave, sample_rate_hz, codes, {member.name: voice.name})
        self._recordings.pop(session_id, None)
        self._recordings[session_id] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return voice

    def remove(self, session_id: str) -> list[str]:
        """Forget a session's voice; returns the replicas that know it."""
        recording = self._recordings.pop(session_id, None)
        return list(recording.names) if recording else []

    async def prepare(self, request: Request, member: Member) -> Request:
        """The request with the voice's name at this replica, which learns it if need be."""
        recording = self._recordings.get(request.session_id)
        if recording is None or request.voice != recording.name:
            return request
        if member.name not in recording.names:
            answer = await member.remote.call(
                "add_voice",
                request.session_id,
                recording.wave,
                recording.sample_rate_hz,
                recording.codes,
            )
            recording.names[member.name] = answer.result().name
        return replace(request, voice=recording.names[member.name])
