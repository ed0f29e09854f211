"""An answer that was cut to what was heard is still found in the KV cache by the next turn."""

from __future__ import annotations

import pytest

from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.endpoints import server
from tests.endpoints.endpoint_support import running
from tests.endpoints.realtime.realtime_support import MANUAL, ask, connected, until

HEARD_MS = 1500


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    from tests.fixtures.make_tiny_moss import make_tiny_moss

    folder = tmp_path_factory.mktemp("moss")
    make_tiny_moss(folder)
    checkpoint, codec = folder / "model", folder / "codec"
    service = build_service(
        EngineConfig(checkpoint=checkpoint, codec=codec, device="cpu", kv_rows=4096)
    )
    service.start()
    with running(service) as url:
        yield url
    service.close()


QUESTION = "What is there to see from here?"
LIMITS = {"max_output_tokens": 60}


async def test_a_cut_answer_is_found_in_the_cache(url, monkeypatch):
    monkeypatch.setattr(server, "MAX_SEED", 1)  # of random weights, an answer that is long enough
    async with connected(url, MANUAL) as connection:
        first = (await ask(connection, QUESTION, response=LIMITS))[-1].response
        assert first.usage.output_tokens > 40
        await connection.conversation.item.truncate(
            item_id=first.output[0].id, content_index=0, audio_end_ms=HEARD_MS
        )
        await until(connection, "conversation.item.truncated")
        second = (await ask(connection, QUESTION, response=LIMITS))[-1].response
    heard_rows = HEARD_MS * 12.5 // 1000
    cached = second.usage.input_token_details.cached_tokens
    known = first.usage.input_tokens + heard_rows
    assert known - 16 <= cached <= known + 16  # whole blocks of 16 rows
    assert second.usage.input_tokens > cached
