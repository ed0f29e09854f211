"""Texts that look foreign to the voice: refused once, and spoken if they are sent again."""

from __future__ import annotations

from collections import deque

from moss_engine.api.errors import ForeignTextError
from moss_engine.api.modes import Mode
from moss_engine.text.language import doubt

MAX_REMEMBERED = 256


class Doubts:
    """The texts that were refused, the newest ones."""

    def __init__(self) -> None:
        self._refused: deque[tuple[str, int]] = deque(maxlen=MAX_REMEMBERED)

    def check(self, session_id: str, mode: Mode, text: str) -> None:
        """Raise ForeignTextError where `mode` reads English and `text` looks otherwise, unless this
        session was told so of this text before."""
        if mode.input != "text" or not mode.spell_out:
            return
        found, key = doubt(text, mode.language), (session_id, hash(text.strip()))
        if found is None or key in self._refused:
            return
        self._refused.append(key)
        raise ForeignTextError(f"{found}; send it again to hear it anyway.")
