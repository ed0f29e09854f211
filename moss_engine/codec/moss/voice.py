"""Voices: what the codec needs to speak as somebody, and the folders that hold it.

A voice is a short sample of speech in three forms: its codes, its mel, and a speaker vector. On
disk it is a folder, called as the voice is, of `voice.json` (format, codes, digest of the codec
that made them) and `voice.safetensors` (mel, speaker).
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError, ParameterError
from moss_engine.api.small_files import read_json
from moss_engine.codec.base import MOSS_MEL
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
