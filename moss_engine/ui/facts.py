"""What the page has to know about the parts it was given: modes, voices, defaults and the names of what runs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from moss_engine.request import Sampling
from moss_engine.runtime.base import RuntimeInfo


class Mode(Protocol):
    """A kind of answer that the checkpoint was made for."""

    name: str
    label: str
    input: str
    output: str
    default: bool
    note: str | None


@dataclass(frozen=True)
class Facts:
    """`sampling` holds the checkpoint's defaults; `checkpoint` and `runtime` are shown as they stand."""

    checkpoint: str
    runtime: RuntimeInfo
    modes: tuple[Mode, ...]
    voices: tuple[str, ...]
    sampling: Sampling
    sample_rate_hz: int
    code_rate_hz: Fraction
    max_text_chars: int

    @property
    def usable(self) -> tuple[Mode, ...]:
        """The modes that this page can serve: it takes typed text."""
        return tuple(mode for mode in self.modes if mode.input == "text")

    @property
    def default_mode(self) -> Mode:
        return next((mode for mode in self.usable if mode.default), self.usable[0])
