"""A realtime connection of OpenAI's own client, to the scripted service."""

from __future__ import annotations

from functools import partial

import pytest

from tests.endpoints.realtime.realtime_support import connected


@pytest.fixture
def connect(served, service):
    return partial(connected, served[1])
