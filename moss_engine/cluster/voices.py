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
    """`names` are those that replicas gave the voice, by replica; `replicas` those that have this
    one or an earlier one of the session."""

    name: str
    wave: np.ndarray
    sample_rate_hz: int
    codes: tuple[int, ...]
    names: dict[str, str] = field(default_factory=dict)
    replicas: set[str] = field(default_factory=set)


class OwnVoices:
    """By session, one each; the oldest are `surplus` when there are many."""

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
        earlier = self._recordings.pop(session_id, None)
        recording = _Recording(voice.name, wave, sample_rate_hz, codes, {member.name: voice.name})
        recording.replicas = {member.name} | (earlier.replicas if earlier else set())
        self._recordings[session_id] = recording
        return voice

    def surplus(self) -> list[str]:
        """The sessions whose voices are to be removed, as there are many."""
        return list(self._recordings)[: max(0, len(self._recordings) - MAX_RECORDINGS)]

    def remove(self, session_id: str) -> list[str]:
        """Forget a session's voice; returns the replicas that have one of it."""
        recording = self._recordings.pop(session_id, None)
        return list(recording.replicas) if recording else []

    def by_replica(self) -> dict[str, list[str]]:
        """The sessions of which replicas have a voice, by replica."""
        found: dict[str, list[str]] = {}
        for session_id, recording in self._recordings.items():
            for name in recording.replicas:
                found.setdefault(name, []).append(session_id)
        return found

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
            recording.replicas.add(member.name)
        return replace(request, voice=recording.names[member.name])
