"""A realtime connection of OpenAI's own client, to the scripted service."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from tests.endpoints.realtime.realtime_support import connected
from tests.ui.page_support import soon


@pytest.fixture
def connect(served, service):
    return partial(connected, served[1])


@pytest.fixture
def slow_ears(service, monkeypatch):
    """The recordings that are listened to, which are understood once `may` is set."""
    asked, may = [], threading.Event()

    async def encode(wave: np.ndarray, sample_rate_hz: int) -> tuple[int, ...]:
        asked.append(wave)
        assert await soon(may.is_set)
        return (1, 2)

    monkeypatch.setattr(service, "encode", encode)
    return asked, may
