"""What a client may choose for a reply, declared once: the page's inputs, the arguments of its
endpoint and the checks of requests follow from this table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

Kind = Literal["text", "choice", "number", "flag"]

LOWEST_TEMPERATURE = 0.01
"""The lowest temperature above 0 (0 is greedy): dividing scores by less overflows."""
MAX_PAGE_SEED = 2**31 - 1


@dataclass(frozen=True)
class Control:
    """One choice. `path` leads to its value in a `Sampling`; without one it is a field of the
    request, or of the page alone. Numbers lie between `low` and `high`, ends included, and move by
    `step` on the page; `label` names it there and `help` explains it in one sentence."""

    name: str
    kind: Kind
    label: str
    help: str = ""
    path: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float = 1.0
    integer: bool = False
    default: Any = ""

    def of(self, sampling: Any) -> Any:
        """Its value in a `Sampling`."""
        return reduce(getattr, self.path, sampling)


def _channel(prefix: str, channel: str) -> tuple[Control, ...]:
    """The sampling values of one channel."""
    return (
        Control(
            f"{prefix}_temperature", "number", "Temperature",
            "0 always takes the likeliest; higher is more varied.",
            (channel, "temperature"), 0.0, 2.0, 0.05,
        ),
        Control(
            f"{prefix}_top_k", "number", "Top-k",
            "Only the k likeliest are drawn from; 0 takes all.",
            (channel, "top_k"), 0, 1000, 1, integer=True,
        ),
        Control(
            f"{prefix}_top_p", "number", "Top-p",
            "Only the likeliest that together have this probability are drawn from.",
            (channel, "top_p"), 0.0, 1.0, 0.01,
        ),
        Control(
            f"{prefix}_repetition_penalty", "number", "Repetition penalty",
            "Above 1 it makes what was said already less likely.",
            (channel, "repetition_penalty"), 0.5, 2.0, 0.01,
        ),
    )  # fmt: skip


CONTROLS: tuple[Control, ...] = (
    Control("text", "text", "Your text"),
    Control("mode", "choice", "Mode"),
    Control("voice", "choice", "Voice"),
    Control(
        "speed", "number", "Speed", "Speaking rate: 1 is the voice's own.",
        low=0.7, high=1.5, step=0.05, default=1.0,
    ),
    *_channel("text", "text"),
    *_channel("speech", "audio"),
    Control(
        "seed", "number", "Seed", "The same seed gives the same reply.",
        ("seed",), 0, MAX_PAGE_SEED, 1, integer=True, default=0,
    ),
    Control("new_seed", "flag", "New seed for every reply", default=True),
    Control(
        "max_rows", "number", "Most rows", "The longest reply: a row is a code or a piece of text.",
        ("max_rows",), 1, 40_960, 1, integer=True,
    ),
    Control("system", "text", "System prompt"),
    Control("utterance", "text", "Recording", "Names what was said, in a mode that takes speech."),
    Control(
        "heard", "text", "Heard",
        "How much of the reply before reached the ear, if not all of it did; that ends it.",
    ),
    Control("run", "text", "Run", "The caller's name for this reply, by which it can be stopped."),
)  # fmt: skip
"""In the order of the endpoint's arguments."""

BY_NAME = {control.name: control for control in CONTROLS}
