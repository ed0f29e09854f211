"""What the page has to know about the parts it was given: modes, voices, defaults and the names of what runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from moss_engine.codec.base import samples_per_code
from moss_engine.config import EngineConfig
from moss_engine.modes import Mode
from moss_engine.request import Sampling
from moss_engine.runtime.base import RuntimeInfo
from moss_engine.service import Service
from moss_engine.tokens import SpecialIds

if TYPE_CHECKING:
    from moss_engine.processor import Processor


@dataclass(frozen=True)
class Closed:
    """What this checkpoint cannot do, with the reason as one sentence."""

    label: str
    why: str


HEARS_NOTHING = Closed("Speak to it", "This checkpoint was trained on text alone: it cannot understand a voice.")
ANSWERS_BY_HEART = Closed("Free conversation",
                          "This checkpoint reads texts and knows a few answers by heart: it cannot think of new ones.")


@dataclass(frozen=True)
class Facts:
    """`sampling` holds the checkpoint's defaults; `runtime` is shown as it stands; `no_hands_free` is a sentence that
    says why turns must be ended by hand, or None; `own_voice` says whether visitors may bring their own; `piece` says
    what a text id stands for.
    """

    runtime: RuntimeInfo
    modes: tuple[Mode, ...]
    voices: tuple[str, ...]
    sampling: Sampling
    sample_rate_hz: int
    samples_per_code: int
    max_text_chars: int
    max_speech_s: float
    ids: SpecialIds
    piece: Callable[[int], str]
    no_hands_free: str | None = None
    own_voice: bool = False

    @property
    def default_mode(self) -> Mode:
        return next((mode for mode in self.modes if mode.default), self.modes[0])

    @property
    def hears(self) -> bool:
        return any(mode.input == "speech" for mode in self.modes)

    @property
    def closed(self) -> tuple[Closed, ...]:
        """What MOSS-Speech offers and this checkpoint does not."""
        converses = any(mode.history for mode in self.modes)
        return (() if self.hears else (HEARS_NOTHING,)) + (() if converses else (ANSWERS_BY_HEART,))

    def mode(self, name: str) -> Mode:
        return next(mode for mode in self.modes if mode.name == name)


def facts_of(service: Service, config: EngineConfig) -> Facts:
    """The facts of a service that is about to be shown."""
    processor, codec = cast("Processor", service.engine.processor), service.codec
    return Facts(service.engine.runtime.info, processor.modes, tuple(codec.voices), processor.default_sampling,
                 codec.sample_rate_hz, samples_per_code(codec), config.max_text_chars, config.max_speech_s,
                 processor.ids, processor.piece)
