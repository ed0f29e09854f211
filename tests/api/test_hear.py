"""A recording as a request takes it: codes, words, or both."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import AudioEmptyError, BusyError, MossError
from moss_engine.api.service import hear
from moss_engine.api.transcript import Transcript
from tests.ui.page_support import INFO, RATE_HZ, FakeService

WAVE = np.full(RATE_HZ, 0.5, np.float32)


class Refusing(FakeService):
    """Its recogniser finds no words."""

    error: MossError = AudioEmptyError("say it in English")

    async def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript:
        raise self.error


async def test_words_stand_beside_codes():
    speech = await hear(FakeService(info=replace(INFO, recogniser="Ear")), WAVE, RATE_HZ)
    assert len(speech.codes) == 13 and speech.transcript.text == "What time is it?"


@pytest.mark.parametrize("error", [AudioEmptyError("say it in English"), BusyError("later")])
async def test_what_the_recogniser_does_not_understand_the_checkpoint_may(error):
    service = Refusing(info=replace(INFO, recogniser="Ear"))
    service.error = error
    speech = await hear(service, WAVE, RATE_HZ)
    assert len(speech.codes) == 13 and speech.transcript is None


async def test_a_recording_that_is_refused_is_not_listened_to_any_more():
    left = asyncio.Event()

    class Full(FakeService):
        async def encode(self, wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
            await asyncio.sleep(0)  # the recogniser has begun
            raise BusyError("later")

        async def transcribe(self, wave: np.ndarray, sample_rate_hz: int) -> Transcript:
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            raise AssertionError

    with pytest.raises(BusyError):
        await hear(Full(info=replace(INFO, recogniser="Ear")), WAVE, RATE_HZ)
    await asyncio.wait_for(left.wait(), 5.0)
