"""What the page shows of the service that it was given, and what that service lacks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from moss_engine.api.info import ServiceInfo


@dataclass(frozen=True)
class Unavailable:
    """What this checkpoint cannot do, with the reason as one sentence."""

    label: str
    why: str


HEARS_NOTHING = Unavailable(
    "Speak to it", "This checkpoint was trained on text alone: it cannot understand a voice."
)
SCRIPTED_ONLY = Unavailable(
    "Free conversation",
    "This checkpoint reads texts and knows a few scripted answers: it cannot think of new ones.",
)


@dataclass(frozen=True)
class PageInfo(ServiceInfo):
    """A service's description, and what the page's own server adds: `no_hands_free` is a sentence
    that says why turns must be ended by hand, or None."""

    no_hands_free: str | None = None

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        """What MOSS-Speech offers and this checkpoint does not."""
        converses = any(mode.history for mode in self.modes)
        hears_nothing = replace(HEARS_NOTHING, why=self.no_recogniser or HEARS_NOTHING.why)
        scripted = self.brain is None and any(mode.through_text for mode in self.modes)
        return (() if self.hears else (hears_nothing,)) + (
            (SCRIPTED_ONLY,) if scripted or not converses else ()
        )

    @staticmethod
    def of(info: ServiceInfo, no_hands_free: str | None = None) -> PageInfo:
        values = {f.name: getattr(info, f.name) for f in dataclasses.fields(ServiceInfo)}
        return PageInfo(**values, no_hands_free=no_hands_free)
