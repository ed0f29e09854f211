"""A realtime connection of OpenAI's own client, to the scripted service."""

from __future__ import annotations

from contextlib import asynccontextmanager

import openai
import pytest

from tests.endpoints.endpoint_support import MODEL


@pytest.fixture
def connect(served, service):
    @asynccontextmanager
    async def connecting():
        async with (
            openai.AsyncOpenAI(base_url=f"{served[1]}/v1", api_key="none") as client,
            client.realtime.connect(model=MODEL) as connection,
        ):
            yield connection

    return connecting
