"""Voices made of visitors' recordings: kept in memory, one a session, gone with it."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

from moss_engine.api.errors import BusyError
from moss_engine.api.service import ClonedVoice
from moss_engine.codec.base import VoiceCloner

if TYPE_CHECKING:
    import numpy as np

MAX_VOICES = 16


class ClonedVoices:
    """Used from any thread."""

    def __init__(self, cloner: VoiceCloner):
        self._cloner = cloner
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(
        self, session_id: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> ClonedVoice:
        """Make a voice; it replaces the session's one. Blocks.

        Raises AudioEmptyError and AudioLongError for its length, BusyError while many sessions have
        a voice.
        """
        with self._lock:
            if session_id not in self._names and len(self._names) >= MAX_VOICES:
                raise BusyError(
                    "Many visitors speak with their own voice here; choose another voice or come "
                    "back later."
                )
            name = f"own {secrets.token_hex(8)}"
            advice = self._cloner.add(name, wave, sample_rate_hz, codes)
            self._remove(session_id)
            self._names[session_id] = name
        return ClonedVoice(name, advice)

    def remove(self, session_id: str) -> None:
        """Forget the session's voice, if it has one."""
        with self._lock:
            self._remove(session_id)

    def _remove(self, session_id: str) -> None:
        name = self._names.pop(session_id, None)
        if name is not None:
            self._cloner.remove(name)
