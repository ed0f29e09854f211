"""A realtime connection of OpenAI's own client, to the scripted service."""

from __future__ import annotations

from contextlib import asynccontextmanager

import openai
import pytest

from tests.endpoints.endpoint_support import MODEL
from tests.endpoints.realtime.realtime_support import begin


@pytest.fixture
def connect(served, service):
    @asynccontextmanager
    async def connecting(session: dict | None = None):
        async with (
            openai.AsyncOpenAI(base_url=f"{served[1]}/v1", api_key="none") as client,
            client.realtime.connect(model=MODEL) as connection,
        ):
            if session is not None:
                await begin(connection, session)
            yield connection

    return connecting
