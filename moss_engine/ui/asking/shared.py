"""What is one for the whole page."""

from __future__ import annotations

from typing import TypeVar

Itself = TypeVar("Itself", bound="Shared")


class Shared:
    """Gradio copies the page's description for every visitor, with the methods that answer; who
    answers is not copied."""

    def __deepcopy__(self: Itself, memo: dict) -> Itself:
        return self
