"""Voices: what the codec needs to speak as somebody, the folders that hold it, and how it is made.

A voice is a short sample of speech in three forms: its codes, its mel, and a speaker vector. On
disk it is a folder, called as the voice is, of `voice.json` (format, codes, digest of the codec
that made them) and `voice.safetensors` (mel, speaker).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import AudioEmptyError, AudioLongError, CheckpointError, ParameterError
from moss_engine.api.small_files import read_json
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.moss.whisper import to_16_khz
from moss_engine.codec.resample import resample
from moss_engine.models.checkpoint import load_tensors, save_tensors

FRAMES_PER_CODE = 4
SPEAKER_DIM = 192
GROUP_CODES = 5
"""A voice's codes are a multiple of one chunk, so that a reply's first chunk follows its sample."""
MAX_CODES = 375
"""30 s, what the encoder takes in one piece."""
JSON_NAME, TENSORS_NAME = "voice.json", "voice.safetensors"
FORMAT = "moss-voice"

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 _-]{0,38}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Voice:
    """codes [n], a multiple of 5; mel float32 [80, 4 * n]; speaker float32 [192], unnormalised."""

    name: str
    codes: tuple[int, ...]
    mel: Tensor
    speaker: Tensor

    def __post_init__(self) -> None:
        assert 0 < len(self.codes) <= MAX_CODES and len(self.codes) % GROUP_CODES == 0, (
            "codes come in groups of 5"
        )
        assert self.mel.shape == (MOSS_MEL.num_mels, FRAMES_PER_CODE * len(self.codes)), (
            "4 mel frames a code"
        )
        assert self.speaker.shape == (SPEAKER_DIM,), "the speaker vector has 192 values"


def check_name(name: str) -> None:
    """Raise ParameterError unless a voice may have this name, which is also its folder's."""
    if not _NAME.fullmatch(name):
        raise ParameterError(
            f"A voice cannot be called {name[:60]!r}; use 1 to 40 Latin letters, digits, spaces, "
            "hyphens and underscores."
        )


def list_voices(folder: Path) -> tuple[str, ...]:
    """The names of the voices in a folder, sorted; a folder that does not exist holds none."""
    if not folder.is_dir():
        return ()
    names = [path.parent.name for path in folder.glob(f"*/{JSON_NAME}")]
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def load_voice(folder: Path, codec_digest: str) -> Voice:
    """The voice of one folder, for the codec with this digest.

    Raises CheckpointError for a missing or damaged file, and for a voice whose codes were made by
    another codec.
    """
    path = folder / JSON_NAME
    values = read_json(path, again=_AGAIN)
    try:
        if values["format"] != FORMAT:
            raise ValueError(f"format is {values['format']!r}, not {FORMAT!r}")
        codes, made_by = _codes(values["codes"]), str(values["codec"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path} describes no voice ({error}); {_AGAIN}") from None
    if made_by != codec_digest:
        raise CheckpointError(
            f"{folder} was made with another codec, whose codes mean other sounds; {_AGAIN}"
        )
    shapes = {"mel": (MOSS_MEL.num_mels, FRAMES_PER_CODE * len(codes)), "speaker": (SPEAKER_DIM,)}
    tensors = load_tensors(folder / TENSORS_NAME, shapes, dtype=torch.float32)
    return Voice(folder.name, codes, tensors["mel"], tensors["speaker"])


_AGAIN = "make it again with python -m scripts.voice make."


def _codes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(code) is int and code >= 0 for code in values):
        raise ValueError("codes are no list of whole numbers")
    if not 0 < len(values) <= MAX_CODES or len(values) % GROUP_CODES:
        raise ValueError(
            f"there are {len(values)} codes, not a multiple of {GROUP_CODES} up to {MAX_CODES}"
        )
    return tuple(values)


def save_voice(folder: Path, voice: Voice, codec_digest: str) -> Path:
    """Write folder/NAME, replacing a voice of that name; returns that path."""
    check_name(voice.name)
    target = folder / voice.name
    target.mkdir(parents=True, exist_ok=True)
    save_tensors(
        target / TENSORS_NAME, {"mel": voice.mel.float(), "speaker": voice.speaker.float()}
    )
    values = {"format": FORMAT, "codec": codec_digest, "codes": list(voice.codes)}
    (target / JSON_NAME).write_text(json.dumps(values) + "\n", encoding="utf-8")
    return target


def remove_voice(folder: Path, name: str) -> None:
    """Delete folder/NAME; raises ParameterError if there is no such voice."""
    if name not in list_voices(folder):
        known = ", ".join(list_voices(folder)) or "none"
        raise ParameterError(
            f"There is no voice {name[:60]!r} in {folder} (there: {known}); name one of these."
        )
    shutil.rmtree(folder / name)


ADVISED_S = (3.0, 6.0)
"""Shorter says little about a voice; longer is computed once per voice but kept for every reply."""
SHORTEST_S = 1.0
CODE_S = FRAMES_PER_CODE * MOSS_MEL.hop_size / MOSS_MEL.sample_rate_hz
LONGEST_S = MAX_CODES * CODE_S


class Speaker(Protocol):
    def vector(self, wave: torch.Tensor) -> torch.Tensor: ...


@torch.inference_mode()
def make_voice(
    name: str, wave: np.ndarray, sample_rate_hz: int, codes: Sequence[int], speaker: Speaker
) -> Voice:
    """A voice of float32 [samples] mono and its codes, trimmed to a multiple of 5 codes (0.4 s).

    Codes are those of the recording as it is; mel and speaker vector come from it at 24 kHz, the
    vector by way of 16 kHz: with other orders the published decoder hears another voice. Raises
    ParameterError for a name that no voice may have, AudioEmptyError below 1 s and AudioLongError
    above 30 s.
    """
    check_name(name)
    duration_s = len(wave) / sample_rate_hz
    if duration_s < SHORTEST_S:
        raise AudioEmptyError(
            f"The sample lasts {duration_s:.1f} s; record {ADVISED_S[0]:g} to {ADVISED_S[1]:g} s."
        )
    if duration_s > LONGEST_S:
        raise AudioLongError(
            f"The sample lasts {duration_s:.0f} s, the limit is {LONGEST_S:g} s; "
            f"{ADVISED_S[0]:g} to {ADVISED_S[1]:g} s are best."
        )
    samples = torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32))
    at_24_khz = resample(
        samples, sample_rate_hz, MOSS_MEL.sample_rate_hz, zero_crossings=6, roll_off=0.99
    )
    mel = log_mel(at_24_khz, MOSS_MEL)
    vector = speaker.vector(to_16_khz(at_24_khz, MOSS_MEL.sample_rate_hz))
    num_codes = min(mel.shape[1] // FRAMES_PER_CODE, len(codes))
    num_codes -= num_codes % GROUP_CODES
    return Voice(
        name, tuple(codes[:num_codes]), mel[:, : FRAMES_PER_CODE * num_codes].clone(), vector
    )


def advice(duration_s: float) -> str | None:
    """A sentence for a sample that is shorter or longer than advised."""
    if ADVISED_S[0] <= duration_s <= ADVISED_S[1]:
        return None
    return (
        f"The sample lasts {duration_s:.1f} s; voices are best made of {ADVISED_S[0]:g} to "
        f"{ADVISED_S[1]:g} s."
    )
