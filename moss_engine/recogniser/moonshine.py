"""Moonshine tiny-en, whose weights lie in the wheel of moonshine-voice 0.0.65."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moss_engine.api.errors import MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.recogniser.base import RATE_HZ

if TYPE_CHECKING:
    import numpy as np

INSTALL = "pip install -r requirements-talk.txt"
SILENCE_PEAK = 1e-3
NOTHING = ("", "you")
"""What it writes, letters alone, where there are no words: notes for music, "You" for noise."""
WEIGHTS = Path("assets") / "tiny-en"
OPTIONS = {
    "vad_threshold": "0.3",  # higher ones cut sentences at soft words
    "identify_speakers": "false",
    "return_audio_data": "false",
}


class Moonshine:
    """`transcriber` is moonshine_voice's."""

    name = "Moonshine tiny"
    language = "English"

    def __init__(self, transcriber: Any):
        self._transcriber = transcriber

    def transcribe(self, wave: np.ndarray) -> str:
        if not len(wave) or max(wave.max(), -wave.min()) < SILENCE_PEAK:
            return ""
        found = self._transcriber.transcribe_without_streaming(wave.tolist(), RATE_HZ)
        lines = (line.text.strip() for line in found.lines)
        return " ".join(line for line in lines if _letters(line) not in NOTHING)

    def close(self) -> None:
        self._transcriber.close()


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def load() -> Moonshine:
    """Raises MissingPackageError with the command that installs it."""
    found = importlib.util.find_spec("moonshine_voice")
    folder = Path(found.origin).parent / WEIGHTS if found and found.origin else None
    if folder is None:
        raise MissingPackageError(f"Talking to it needs a recogniser; run: {INSTALL}")
    if not folder.is_dir():
        raise MissingPackageError(
            f"The installed moonshine-voice has no weights in {WEIGHTS}; run: {INSTALL}"
        )
    switch_off_telemetry()
    import moonshine_voice

    return Moonshine(
        moonshine_voice.Transcriber(str(folder), moonshine_voice.ModelArch.TINY, options=OPTIONS)
    )
