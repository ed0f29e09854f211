"""What an engine file is built for, and what the builder says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moss_engine.runtime.base import Limits

Report = Callable[[str], None]
"""Takes one line that says what is being done now."""


@dataclass(frozen=True)
class BuildTarget:
    """`weights` is "baked" or "bound"; `compute_capability` as "8.9", several joined by commas, None for this GPU's."""

    backend: str
    weights: str
    compute_capability: str | None
    limits: Limits


@dataclass(frozen=True)
class BuiltPlan:
    """`notes` are figures and facts that the build command prints beside time and memory."""

    library_version: str
    compute_capability: str
    plugin_digest: str = ""
    notes: Mapping[str, str | float] = field(default_factory=dict)
