"""The recogniser that judges intelligibility: Moonshine tiny-en, its word and character error
rates.

    python -m scripts.nano.judge --wavs FOLDER --references FILE

FILE has one line per file, "name<TAB>text" or, in the order of the sorted file names, only the
text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from moss_engine.api.errors import InputError, MissingPackageError

RECOGNISER_RATE_HZ = 16_000


class Recogniser:
    """Moonshine tiny-en, whole utterances at once."""

    def __init__(self) -> None:
        try:
            import moonshine_voice
        except ImportError as error:
            raise MissingPackageError(
                "The recogniser is not installed: pip install moonshine-voice==0.0.65 (later "
                "wheels hold no weights)"
            ) from error
        model = Path(moonshine_voice.__file__).parent / "assets" / "tiny-en"
        if not model.is_dir():
            raise MissingPackageError(
                f"{model} is missing; only moonshine-voice==0.0.65 holds the recogniser's "
                f"weights: install it."
            )
        self._transcriber = moonshine_voice.Transcriber(str(model), moonshine_voice.ModelArch.TINY)

    def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> str:
        """float32 [samples] mono in [-1, 1] -> what was understood"""
        wave = resample(wave, sample_rate_hz, RECOGNISER_RATE_HZ)
        transcript = self._transcriber.transcribe_without_streaming(
            wave.tolist(), RECOGNISER_RATE_HZ
        )
        return " ".join(line.text.strip() for line in transcript.lines).strip()


def resample(wave: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """float32 [samples] at one rate -> float32 at another, band-limited (polyphase)."""
    if from_hz == to_hz:
        return np.asarray(wave, np.float32)
    from scipy.signal import resample_poly

    ratio = Fraction(to_hz, from_hz)
    return resample_poly(np.asarray(wave, np.float64), ratio.numerator, ratio.denominator).astype(
        np.float32
    )


def spoken_words(text: str) -> list[str]:
    """Text as the words that are heard: numbers and symbols written out, no case, no punctuation,
    hyphens split."""
    from moss_engine.text.spoken.text import spoken_text

    text = spoken_text(text).lower().replace("’", "'").replace("'", "")
    return re.findall(r"[^\W_]+", text)


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Insertions, deletions and substitutions between the two."""
    previous = list(range(len(hypothesis) + 1))
    for i, item in enumerate(reference, 1):
        current = [i]
        for j, other in enumerate(hypothesis, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (item != other)))
        previous = current
    return previous[-1]


@dataclass(frozen=True)
class ErrorCount:
    """Edits and the size of the reference, in words and in characters; counts of several texts add
    up."""

    word_edits: int = 0
    num_words: int = 0
    char_edits: int = 0
    num_chars: int = 0

    def __add__(self, other: ErrorCount) -> ErrorCount:
        return ErrorCount(
            self.word_edits + other.word_edits,
            self.num_words + other.num_words,
            self.char_edits + other.char_edits,
            self.num_chars + other.num_chars,
        )

    @property
    def word_error_rate(self) -> float:
        return self.word_edits / max(1, self.num_words)

    @property
    def char_error_rate(self) -> float:
        return self.char_edits / max(1, self.num_chars)


def count_errors(reference: str, hypothesis: str) -> ErrorCount:
    """Both texts are compared as they are spoken."""
    expected, heard = spoken_words(reference), spoken_words(hypothesis)
    expected_chars, heard_chars = "".join(expected), "".join(heard)
    return ErrorCount(
        edit_distance(expected, heard),
        len(expected),
        edit_distance(expected_chars, heard_chars),
        len(expected_chars),
    )


def word_error_rate(reference: str, hypothesis: str) -> float:
    return count_errors(reference, hypothesis).word_error_rate


def judge(
    recogniser: Recogniser,
    waves: Sequence[np.ndarray],
    references: Sequence[str],
    sample_rate_hz: int,
) -> ErrorCount:
    """Recognise every wave, print what was misheard, -> the sum of the errors."""
    total = ErrorCount()
    for wave, reference in zip(waves, references, strict=True):
        heard = recogniser.transcribe(wave, sample_rate_hz)
        errors = count_errors(reference, heard)
        total += errors
        if errors.word_edits:
            print(f"  {errors.word_edits} wrong | {reference} | heard: {heard}", flush=True)
    return total


def read_references(path: Path, wavs: Sequence[Path]) -> list[str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if any("\t" in line for line in lines):
        by_name = dict(line.split("\t", 1) for line in lines)
        missing = [wav.name for wav in wavs if wav.name not in by_name]
        if missing:
            raise InputError(
                f"{path} has no line for {', '.join(missing)}; add them as name<TAB>text."
            )
        return [by_name[wav.name] for wav in wavs]
    if len(lines) != len(wavs):
        raise InputError(
            f"{path} has {len(lines)} lines for {len(wavs)} sound files; give one line per file."
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--wavs", type=Path, required=True, help="folder of .wav or .flac files of one sample rate"
    )
    parser.add_argument("--references", type=Path, required=True)
    options = parser.parse_args()
    import soundfile

    paths = sorted([*options.wavs.glob("*.wav"), *options.wavs.glob("*.flac")])
    if not paths:
        raise InputError(
            f"{options.wavs} holds no .wav or .flac file; give the folder that has them."
        )
    references = read_references(options.references, paths)
    recogniser = Recogniser()
    total = ErrorCount()
    for path, reference in zip(paths, references, strict=True):
        wave, sample_rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
        total += judge(recogniser, [wave.mean(axis=1)], [reference], sample_rate_hz)
    print(
        f"{len(paths)} files, {total.num_words} words: word error rate "
        f"{total.word_error_rate:.1%}, "
        f"character error rate {total.char_error_rate:.1%}"
    )


if __name__ == "__main__":
    main()
