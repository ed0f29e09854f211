"""Requests and events: what is left out of a conversation that is too long, a row on its way
between processes, and a recording as codes, words, or both."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from moss_engine.api.errors import AudioEmptyError, BusyError
from moss_engine.api.events import Sampled
from moss_engine.api.request import Message, Request, Text, without_older_half
from moss_engine.api.service import hear
from moss_engine.api.tokens import Modality, Row
from moss_engine.api.transcript import Transcript
from tests.fakes import make_request
from tests.service.service_support import broken
from tests.ui.page_support import INFO, RATE_HZ, FakeService

ROLES = {"s": "system", "u": "user", "a": "assistant"}


def conversation(roles: str, *, truncate_history: bool = True) -> Request:
    """Messages of these roles, each of which says where it stood."""
    messages = tuple(Message(ROLES[role], Text(str(i))) for i, role in enumerate(roles))
    return replace(make_request(), messages=messages, truncate_history=truncate_history)


@pytest.mark.parametrize(
    ("roles", "left"),
    [
        ("u", "0"),
        ("su", "01"),
        ("uau", "2"),
        ("suau", "03"),
        ("uauau", "234"),
        ("suauauau", "0567"),
        ("uu", "1"),
        ("suu", "02"),
        ("uuau", "123"),
        ("uuu", "12"),
        ("uaau", "3"),
        ("au", "1"),
        ("auau", "123"),
    ],
)
def test_the_older_half_of_the_turns_goes_and_the_question_stays(roles: str, left: str):
    request, num_messages = without_older_half(conversation(roles))
    assert "".join(message.content.text for message in request.messages) == left
    assert num_messages == len(roles) - len(left)


def test_nothing_goes_where_the_request_does_not_allow_it():
    request = conversation("uau", truncate_history=False)
    assert without_older_half(request) == (request, 0)


def test_a_row_arrives_whole():
    row = Sampled("r", 1.5, 7, Row(3, 9), Modality.TEXT, 0.25, (5, 6))
    differing = [f.name for f in fields(Sampled) if getattr(row, f.name) != f.default]
    assert len(differing) == len(fields(Sampled))
    assert pickle.loads(pickle.dumps(row)) == row


WAVE = np.full(RATE_HZ, 0.5, np.float32)
LISTENS = replace(INFO, recogniser="Ear")


async def test_words_stand_beside_codes():
    speech = await hear(FakeService(info=LISTENS), WAVE, RATE_HZ)
    assert len(speech.codes) == 13 and speech.transcript.text == "What time is it?"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Transcript("What day?", "Ear", 1.0), "What day?"),
        (Transcript("?", "Ear", 1.0, sure=False), None),
        (Transcript("", "Ear", 1.0), None),
        (None, "What time is it?"),
    ],
)
async def test_words_that_somebody_found_out_already_are_not_found_out_again(known, expected):
    async def words() -> Transcript | None:
        return known

    speech = await hear(FakeService(info=LISTENS), WAVE, RATE_HZ, words)
    assert (speech.transcript and speech.transcript.text) == expected


@pytest.mark.parametrize("error", [AudioEmptyError("say it in English"), BusyError("later")])
async def test_what_the_recogniser_does_not_understand_the_checkpoint_may(error):
    service = FakeService(info=LISTENS)
    service.transcribe = broken(error)
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
        await hear(Full(info=LISTENS), WAVE, RATE_HZ)
    await asyncio.wait_for(left.wait(), 5.0)
