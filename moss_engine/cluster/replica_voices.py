"""Visitors' own voices at a replica: of which page they are, and when it is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection

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
