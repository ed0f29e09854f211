"""What a checkpoint offers, and its sampling defaults: `processor_config.json` and
`generation_config.json`; voices and speaking rates that a network takes as tokens of its prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from moss_engine.api.errors import CheckpointError, ParameterError
from moss_engine.api.modes import Mode
from moss_engine.api.request import FASTEST, SLOWEST, ChannelSampling, Sampling, check_sampling
from moss_engine.api.small_files import read_json


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
        """Names of the voices, the default one first."""
        return tuple(v.name for v in sorted(self.voices, key=lambda voice: not voice.default))

    @property
    def speeds(self) -> tuple[float, float] | None:
        """The slowest and the fastest rate that may be asked for."""
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


def token_ids(speakers: Speakers, known: dict[str, int]) -> dict[str, int]:
    """The ids of all tokens of the speakers; raises CheckpointError if the tokenizer lacks one."""
    tokens = [choice.token for choice in (*speakers.voices, *speakers.rates)]
    missing = [token for token in tokens if token not in known]
    if missing:
        raise CheckpointError(
            f"tokenizer.json has no {', '.join(missing)} of processor_config.json; "
            "use files of one checkpoint."
        )
    return {token: known[token] for token in tokens}


MAX_PAUSE_CODES = 100


@dataclass(frozen=True)
class Pauses:
    """The pauses of a text that is read aloud, beyond the silence that the network ends a sentence
    with: `code`, a code of silence, is repeated `sentence` times before a sentence and `paragraph`
    times before a paragraph."""

    code: int
    sentence: int
    paragraph: int

    def __post_init__(self) -> None:
        counts = (self.sentence, self.paragraph)
        whole = all(type(value) is int and value >= 0 for value in (self.code, *counts))
        if not whole or max(counts) > MAX_PAUSE_CODES:
            raise CheckpointError(
                f"pauses must be a code and two numbers from 0 to {MAX_PAUSE_CODES}."
            )


@dataclass(frozen=True)
class Modes:
    """`processor_config.json`.

    Three numbers bound a reply in a mode that splits its text: characters of a segment, rows for
    each of its characters at speed 1, and the rows that even the shortest segment may have.
    `silent_lead_s` is the silence with which the network begins a reply, and which nobody hears;
    without `pauses` the sentences of a reply follow each other as the network ends them.
    """

    modes: tuple[Mode, ...]
    segment_chars: int
    max_rows_per_char: float
    min_cap_rows: int
    speakers: Speakers = Speakers()
    silent_lead_s: float = 0.0
    pauses: Pauses | None = None

    def __post_init__(self) -> None:
        names = [mode.name for mode in self.modes]
        if sum(mode.default for mode in self.modes) != 1 or len(set(names)) < len(names):
            raise CheckpointError(
                f"the modes {', '.join(names)} need different names and exactly one default."
            )
        if self.segment_chars < 1 or self.max_rows_per_char <= 0 or self.min_cap_rows < 1:
            raise CheckpointError(
                "segment_chars, max_rows_per_char and min_cap_rows must be positive."
            )
        if not 0 <= self.silent_lead_s < 1:
            raise CheckpointError("silent_lead_s must be below one second.")

    @property
    def default(self) -> Mode:
        return next(mode for mode in self.modes if mode.default)


def read_modes(path: Path) -> Modes:
    """Read `processor_config.json`; raises CheckpointError that names the file and what is wrong
    with it."""
    values = read_json(path)
    try:
        return Modes(
            modes=tuple(Mode(**mode) for mode in values["modes"]),
            segment_chars=int(values["segment_chars"]),
            max_rows_per_char=float(values["max_rows_per_char"]),
            min_cap_rows=int(values["min_cap_rows"]),
            speakers=Speakers(
                tuple(Voice(**voice) for voice in values.get("voices", ())),
                tuple(Rate(**rate) for rate in values.get("rates", ())),
            ),
            silent_lead_s=float(values.get("silent_lead_s", 0.0)),
            pauses=Pauses(**values["pauses"]) if "pauses" in values else None,
        )
    except (KeyError, TypeError, ValueError, CheckpointError) as error:
        raise _refusal(path, error) from None


def read_default_sampling(path: Path) -> Sampling:
    """Read `generation_config.json`, with seed 0; raises CheckpointError that names the file."""
    values = read_json(path)
    try:
        sampling = Sampling(
            text=ChannelSampling(**values["text"]),
            audio=ChannelSampling(**values["audio"]),
            max_rows=values["max_rows"],
            min_rows=values["min_rows"],
            seed=0,
        )
        check_sampling(sampling)
    except (KeyError, TypeError, ParameterError) as error:
        raise _refusal(path, error) from None
    return sampling


def _refusal(path: Path, error: Exception) -> CheckpointError:
    """One sentence of what is wrong with a file."""
    wrong = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
    return CheckpointError(f"{path}: {wrong}; use the file that belongs to the weights.")


_PUBLISHED = Path(__file__).with_name("published")
PUBLISHED_MODES = read_modes(_PUBLISHED / "processor_config.json")
"""The four modes of the published MOSS-Speech checkpoint, with the system turns of its official
demo."""
PUBLISHED_SAMPLING = read_default_sampling(_PUBLISHED / "generation_config.json")
"""The sampling defaults of that demo."""
