"""POST /v1/responses, as OpenAI's own client for Python uses it."""

from __future__ import annotations

import httpx
import openai
import pytest
from openai.types.responses import Response

from moss_engine.api.request import Text
from tests.endpoints.endpoint_support import MODEL

ASKED = [{"role": "user", "content": [{"type": "input_text", "text": "How are you?"}]}]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def test_a_text_is_answered(client, service):
    answer = client.responses.with_raw_response.create(
        model="gpt-5", input="How are you?", instructions="Be kind.", store=True
    )
    response = answer.parse()
    assert (response.output_text, response.status) == ("How are you?", "completed")
    assert response.usage.total_tokens == response.usage.input_tokens + 1
    assert answer.headers["x-moss-ignored"] == "store, instructions"
    assert [m.content for m in service.requests[-1].messages] == [Text("How are you?")]


def test_a_conversation_goes_on_from_what_was_sent_back(client, service):
    first = client.responses.create(model=MODEL, input=ASKED)
    later = [*ASKED, {"type": "reasoning", "id": "rs_1", "summary": []}, *first.output, *ASKED]
    assert client.responses.create(model=MODEL, input=later).output_text == "How are you?"
    assert [m.role for m in service.requests[-1].messages] == ["user", "assistant", "user"]


def test_a_stream_tells_every_step(client):
    events = list(client.responses.create(model=MODEL, input=ASKED, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == [
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(e.delta for e in events if "delta" in e.type) == "How are you?"
    assert events[-1].response.output_text == "How are you?"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_server_calls_functions_and_hears_of_their_results(thinking, stream):
    chat, url = thinking
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        choice = {"type": "function", "name": "get_weather"}
        asked = {"model": MODEL, "tools": [WEATHER], "tool_choice": choice}
        if stream:
            *events, last = client.responses.create(input=ASKED, stream=True, **asked)
            first = last.response
            done = [e for e in events if e.type == "response.function_call_arguments.done"]
            assert done[0].arguments == '{"city": "Rome"}'
        else:
            first = client.responses.create(input=ASKED, **asked)
        assert next((c.call_id, c.name) for c in first.output) == ("c1", "get_weather")
        assert chat.asked[-1]["tool_choice"]["function"] == {"name": "get_weather"}
        results = [
            {"type": "function_call_output", "call_id": c.call_id, "output": "It is sunny."}
            for c in first.output
        ]
        second = client.responses.create(input=[*ASKED, *first.output, *results], **asked)
    assert second.output_text == "It is sunny."
    roles = [m["role"] for m in chat.asked[-1]["messages"][1:]]
    assert roles == ["user", "assistant", "tool", "tool"]
    body = {"model": MODEL, "input": ASKED, "temperature": 0.5, "max_output_tokens": 99}
    answer = httpx.post(f"{url}/v1/responses", json=body, timeout=20)
    assert answer.headers["x-moss-ignored"] == "temperature, max_output_tokens"
    Response.model_validate(answer.json())  # of OpenAI's client, which does not look itself
