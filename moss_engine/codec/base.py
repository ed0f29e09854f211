"""The codec seam: codes in, samples out, without any knowledge of the language model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from moss_engine.api.errors import MelSpecError, ParameterError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class MelSpec:
    """Everything that must agree between the stage that makes a mel and the vocoder that reads it.

    The formula is fixed: magnitude sqrt(re^2 + im^2 + 1e-9), Slaney filters, ln(max(x, 1e-5)), Hann
    window, frames not centred, reflect padding (n_fft - hop) / 2.
    """

    sample_rate_hz: int
    n_fft: int
    win_size: int
    hop_size: int
    num_mels: int
    fmin_hz: float
    fmax_hz: float

    def check_equal(self, other: MelSpec, *, ours: str, theirs: str) -> None:
        """Raise MelSpecError, naming every differing field, unless both describe the same mel."""
        differing = [
            f"{f.name} {getattr(self, f.name)} against {getattr(other, f.name)}"
            for f in fields(MelSpec)
            if getattr(self, f.name) != getattr(other, f.name)
        ]
        if differing:
            raise MelSpecError(
                f"{ours} and {theirs} were trained on different mels ({'; '.join(differing)}); "
                "name a vocoder of the codec's mel with --vocoder-folder, or omit that option."
            )


MOSS_MEL = MelSpec(
    sample_rate_hz=24_000,
    n_fft=1920,
    win_size=1920,
    hop_size=480,
    num_mels=80,
    fmin_hz=0.0,
    fmax_hz=8000.0,
)
"""The mel of the published MOSS-Speech codec, and of the nano checkpoint."""


class Window(NamedTuple):
    """The next mel frames [num_mels, n] of a reply in some state, and whether they are its last."""

    state: Any
    mel: Tensor
    is_last: bool


class MelVocoder(Protocol):
    """Speaks many replies: `Hift`, or a `ChunkVocoder`. A state is a value: what is spoken from it
    leaves it as it was."""

    def open(self) -> Any:
        """The state of a reply before its first frame."""
        ...

    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, Any]]:
        """-> for each, the samples [n] that are final now, and the state that follows. Silence
        follows a reply's last frame."""
        ...


class ChunkVocoder(MelVocoder, Protocol):
    """Takes mel of any length, and makes sound of it in chunks."""

    mel: MelSpec

    def missing_frames(self, state: Any) -> int:
        """Frames that must still be added before more samples become final."""
        ...


Item = TypeVar("Item")
Result = TypeVar("Result")


def run_alike(
    items: Sequence[Item],
    kind: Callable[[Item], Hashable],
    run: Callable[[list[Item]], Iterable[Result]],
) -> list[Result]:
    """What `run` makes of each item, those of one kind in one run."""
    groups: dict[Hashable, list[int]] = {}
    for i, item in enumerate(items):
        groups.setdefault(kind(item), []).append(i)
    results: dict[int, Result] = {}
    for members in groups.values():
        results |= zip(members, run([items[i] for i in members]), strict=True)
    return [results[i] for i in range(len(items))]


class SpeechStream(Protocol):
    """One reply being spoken; not thread-safe, but independent of every other stream."""

    @property
    def missing_codes(self) -> int:
        """Codes that it still needs, at least one, before there are samples or work to do."""
        ...

    @property
    def lasting_codes(self) -> int:
        """`missing_codes`, or for a first sound so short that the next one must come soon, the
        codes that give both at once."""
        ...

    def places(self, num_codes: int) -> int:
        """How much of a run's `max_together` so many codes more take."""
        ...


@runtime_checkable
class MovableStream(SpeechStream, Protocol):
    """One that another process can go on with, where the same codec is."""

    def saved(self) -> tuple[Any, ...] | None:
        """Numbers and numpy arrays for `restore`; None where running the codes again is cheaper."""
        ...

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Make a new stream one that was saved: the samples to come are equal bit for bit."""
        ...


class Push(NamedTuple):
    """A stream's next codes, and whether its reply is over behind them."""

    stream: Any
    codes: Sequence[int]
    is_last: bool = False


class SpeechCodec(Protocol):
    """wave <-> codes.

    `max_together` is how many streams to run at a time, each by its `places`: as many as cost
    little more than one, and 1 where running them together gains nothing, so that no voice waits
    longer than it must for the others' sound.
    """

    sample_rate_hz: int
    code_rate_hz: Fraction
    num_codes: int
    max_together: int

    @property
    def voices(self) -> tuple[str, ...]:
        """Names that `open_stream` knows; they may change while the codec is used."""
        ...

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """float32 [samples] mono -> codes; raises UnsupportedModeError without an encoder."""
        ...

    def open_stream(self, voice: str | None = None) -> SpeechStream:
        """A new reply in `voice` (None: the default one); raises ParameterError if unknown."""
        ...

    def push_together(self, work: Sequence[Push]) -> list[np.ndarray]:
        """For each stream the samples [n] that are final with its codes (often none), and where its
        reply is over all that remain; streams together have the same samples as alone, to rounding.

        All of a reply, joined, are exactly `num_codes * sample_rate_hz / code_rate_hz` samples:
        float32 in [-1, 1], without any per-chunk processing. Streams are this codec's own and
        differ. All or nothing: when it raises, every stream is as it was before. Raises
        ParameterError for a code out of range.
        """
        ...


@dataclass(frozen=True)
class CodecOptions:
    """How a codec is asked for: the program's options of these names (`dtype`: --codec-dtype)."""

    dtype: str = "auto"
    vocoder: str = "auto"
    vocoder_folder: Path | None = None
    voices: Path | None = None


class VoiceCloner(Protocol):
    """Makes voices of recordings while the codec is in use; any thread."""

    def add(
        self, name: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> str | None:
        """Offer a voice made of float32 [samples] mono and its codes; answers with a sentence where
        another length would be better. Raises AudioEmptyError and AudioLongError."""
        ...

    def remove(self, name: str) -> None:
        """Offer the voice no more; replies that speak in it go on."""
        ...


def check_codes(work: Sequence[Push], num_codes: int) -> None:
    """Raise ParameterError unless all codes of `push_together` are from 0 to num_codes - 1."""
    for push in work:
        for code in push.codes:
            if not 0 <= code < num_codes:
                raise ParameterError(
                    f"code {code} is none of the codec's {num_codes}; give codes from 0 to "
                    f"{num_codes - 1}."
                )


def samples_per_code(codec: SpeechCodec) -> int:
    """Samples that one code becomes; a codec with a fractional number is refused by assertion."""
    samples = codec.sample_rate_hz / codec.code_rate_hz
    assert samples.denominator == 1, f"{samples} samples a code is no integer"
    return int(samples)
