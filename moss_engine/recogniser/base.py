"""The recogniser seam: sound in, text out, without any knowledge of who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

RATE_HZ = 16_000


class Recogniser(Protocol):
    """Called by one thread at a time. `name` is shown to visitors, `language` is the only one that
    it understands."""

    name: str
    language: str

    def transcribe(self, wave: np.ndarray) -> str:
        """float32 [samples] mono at RATE_HZ in [-1, 1] -> what was said, with punctuation; empty
        where there are no words. Blocks, a fraction of the recording's length."""
        ...

    def close(self) -> None:
        """Give back its memory; it is not used afterwards."""
        ...
