"""Voices and speaking rates that a network takes as tokens of its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moss_engine.api.errors import CheckpointError, ParameterError
from moss_engine.api.validation import FASTEST, SLOWEST


@dataclass(frozen=True)
class Voice:
    """A voice of the network; `token` is the special token that asks for it."""

    name: str
    label: str
    token: str
    default: bool


@dataclass(frozen=True)
class Rate:
    """A speaking rate of the network: `speed` 2 speaks twice as fast as 1."""

    speed: float
    token: str


@dataclass(frozen=True)
class Speakers:
    """Fields of `processor_config.json`; both are empty where there is nothing to choose."""

    voices: tuple[Voice, ...] = ()
    rates: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        names = [voice.name for voice in self.voices]
        if len(set(names)) < len(names) or (names and sum(v.default for v in self.voices) != 1):
            raise CheckpointError(
                f"the voices {', '.join(names)} need different names and exactly one default."
            )
        if any(not 0 < rate.speed < math.inf for rate in self.rates):
            raise CheckpointError("the speeds of the rates must be positive.")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the voices, the default one first."""
        return tuple(v.name for v in sorted(self.voices, key=lambda voice: not voice.default))

    @property
    def speeds(self) -> tuple[float, float] | None:
        """The slowest and the fastest that may be asked for."""
        return (SLOWEST, FASTEST) if self.rates else None

    def tokens(self, voice: str | None, speed: float) -> tuple[str, ...]:
        """The special tokens that ask for a voice (None: the default) at a speed.

        Raises ParameterError for a voice that there is not, and for a speed where there are none.
        """
        found = ()
        if self.voices:
            wanted = self.names[0] if voice is None else voice
            found = tuple(known.token for known in self.voices if known.name == wanted)
            if not found:
                raise ParameterError(
                    f"voice {voice!r} is unknown; choose one of {', '.join(self.names)}."
                )
        if not self.rates:
            if speed != 1.0:
                raise ParameterError(
                    f"speed is {speed:g}, and this checkpoint speaks at one speed; leave it at 1."
                )
            return found
        nearest = min(self.rates, key=lambda rate: abs(math.log(rate.speed / speed)))
        return (*found, nearest.token)


def read_speakers(values: dict[str, Any]) -> Speakers:
    """From the values of `processor_config.json`; raises TypeError, ValueError or CheckpointError
    for what they must not be."""
    voices = tuple(Voice(**voice) for voice in values.get("voices", ()))
    rates = tuple(
        Rate(float(rate["speed"]), str(rate["token"])) for rate in values.get("rates", ())
    )
    return Speakers(voices, rates)


def token_ids(speakers: Speakers, known: dict[str, int]) -> dict[str, int]:
    """The ids of all tokens of the speakers; raises CheckpointError if the tokenizer lacks one."""
    tokens: Sequence[str] = [
        *(voice.token for voice in speakers.voices),
        *(rate.token for rate in speakers.rates),
    ]
    missing = [token for token in tokens if token not in known]
    if missing:
        raise CheckpointError(
            f"tokenizer.json has no {', '.join(missing)} of processor_config.json; "
            "use files of one checkpoint."
        )
    return {token: known[token] for token in tokens}
