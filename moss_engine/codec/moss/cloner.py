"""Voices made while the codec is in use, of recordings that were encoded already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moss_engine.codec.moss.campplus import CAMPPLUS_NAME, SpeakerEncoder
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.codec.moss.voice_sample import advice, make_voice

if TYPE_CHECKING:
    from moss_engine.codec.moss.voice_sample import Speaker


class MossVoiceCloner:
    """`speaker` is the codec's speaker network."""

    def __init__(self, codec: MossCodec, speaker: Speaker):
        self._codec = codec
        self._speaker = speaker

    def add(
        self, name: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> str | None:
        """Offer a voice made of float32 [samples] mono and its codes; answers with a sentence where
        another length would be better.

        Raises AudioEmptyError below 1 s and AudioLongError above 30 s.
        """
        voice = make_voice(name, wave, sample_rate_hz, _Encoded(codes), self._speaker)
        self._codec.add_voice(voice)
        return advice(len(wave) / sample_rate_hz)

    def remove(self, name: str) -> None:
        """Offer the voice no more; replies that speak in it go on."""
        self._codec.remove_voice(name)


class _Encoded:
    """An encoder of one recording, whose codes are known."""

    def __init__(self, codes: tuple[int, ...]):
        self._codes = codes

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        return list(self._codes)


def load_moss_cloner(codec: MossCodec, folder: Path) -> MossVoiceCloner:
    """Raises CheckpointError and MissingPackageError where the speaker network of the codec's
    folder cannot run."""
    return MossVoiceCloner(codec, SpeakerEncoder(folder / CAMPPLUS_NAME))
