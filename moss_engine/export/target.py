"""What an engine file is built for, and what the builder says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moss_engine.runtime.base import Limits

Report = Callable[[str], None]
"""Takes one line that says what is being done now."""


@dataclass(frozen=True)
class BuildTarget:
    """What to build. `weights` is "baked" or "bound"; `compute_capability` "8.9" or "8.6,8.9".

    None stands for this machine's GPU.
    """

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
