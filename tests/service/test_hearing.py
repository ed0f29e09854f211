"""Speech in as text, and the sentences where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from moss_engine.api.errors import AudioEmptyError
from moss_engine.recogniser.base import RATE_HZ, Heard
from moss_engine.recogniser.worker import RecogniserWorker
from moss_engine.service.recordings import Hearing


class Listener:
    """Hears what it was given."""

    name, language = "Listener", "English"

    def __init__(self, heard: Heard):
        self.heard = heard

    def transcribe(self, wave: np.ndarray) -> Heard:
        return self.heard

    def close(self) -> None:
        """Nothing is held."""


async def hear(heard: Heard) -> str:
    hearing = Hearing(RecogniserWorker(Listener(heard)))
    try:
        return (await hearing.transcribe(np.zeros(RATE_HZ, np.float32), RATE_HZ)).text
    finally:
        hearing.close()


async def test_what_was_said_comes_as_text():
    assert await hear(Heard("Good morning.")) == "Good morning."


@pytest.mark.parametrize(
    ("heard", "sentence"),
    [
        (Heard(""), r"Listener heard no words; speak a sentence in English\."),
        (Heard("Gluten, Morgan.", False), r"it understands English only; say it in English"),
    ],
)
async def test_no_words_and_another_language_are_a_sentence(heard, sentence):
    with pytest.raises(AudioEmptyError, match=sentence):
        await hear(heard)
