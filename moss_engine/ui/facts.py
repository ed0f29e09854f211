"""What the page has to know about the parts it was given: modes, voices, defaults and the names of what runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from moss_engine.config import EngineConfig
from moss_engine.modes import Mode
from moss_engine.request import Sampling
from moss_engine.runtime.base import RuntimeInfo
from moss_engine.service import Service

if TYPE_CHECKING:
    from moss_engine.processor import Processor


@dataclass(frozen=True)
class Facts:
    """`sampling` holds the checkpoint's defaults; `runtime` is shown as it stands."""

    runtime: RuntimeInfo
    modes: tuple[Mode, ...]
    voices: tuple[str, ...]
    sampling: Sampling
    sample_rate_hz: int
    max_text_chars: int

    @property
    def usable(self) -> tuple[Mode, ...]:
        """The modes that this page can serve: it takes typed text."""
        return tuple(mode for mode in self.modes if mode.input == "text")

    @property
    def default_mode(self) -> Mode:
        return next((mode for mode in self.usable if mode.default), self.usable[0])

    def mode(self, name: str) -> Mode:
        return next(mode for mode in self.usable if mode.name == name)


def facts_of(service: Service, config: EngineConfig) -> Facts:
    """The facts of a service that is about to be shown."""
    processor, codec = cast("Processor", service.engine.processor), service.codec
    return Facts(service.engine.runtime.info, processor.modes, tuple(codec.voices),
                 processor.default_sampling, codec.sample_rate_hz, config.max_text_chars)
