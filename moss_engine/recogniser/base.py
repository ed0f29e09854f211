"""The recogniser seam: sound in, text out, without any knowledge of who answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moss_engine.api.transcript import Word

if TYPE_CHECKING:
    import numpy as np

RATE_HZ = 16_000


@dataclass(frozen=True)
class Heard:
    """`text` has punctuation, and is empty where there are no words. `sure` is False where this
    seems to be another language, or is too unclear. `words` are those of the text with their times,
    where they were asked for and can be told."""

    text: str
    sure: bool = True
    words: tuple[Word, ...] = ()


class Recogniser(Protocol):
    """Called by several threads at once. `name` is shown to visitors, `language` is the only one
    that it understands."""

    name: str
    language: str

    def transcribe(self, wave: np.ndarray, between: Callable[[], None] | None = None) -> Heard:
        """float32 [samples] mono at RATE_HZ in [-1, 1] -> what was said. Blocks, a fraction of the
        recording's length. With `between`, also when each word was; it is called now and then, and
        may itself transcribe what is more urgent."""
        ...

    def close(self) -> None:
        """Give back its memory; it is not used afterwards."""
        ...
