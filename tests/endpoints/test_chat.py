"""POST /v1/chat/completions, as OpenAI's own client for Python uses it."""

from __future__ import annotations

import base64
import http.client
import io
import json
from collections.abc import Callable
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest
import websockets.sync.client

from moss_engine.api.request import Reply, Speech, Text
from moss_engine.audio.pcm import read_wav, to_pcm16, write_wav
from moss_engine.endpoints import chat as complete
from tests.endpoints.endpoint_support import MODEL, running
from tests.talk.test_llm import event
from tests.ui.page_support import INFO, FakeService, Script, signal, until

ASKED = [{"role": "user", "content": "How are you?"}]
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "default", "format": "wav"}}
QUESTION = signal(1.0)


def ask(client, messages=ASKED, **fields):
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def recording(encoded: Callable[[bytes], bytes] = base64.b64encode) -> dict:
    file = io.BytesIO()
    write_wav(file, to_pcm16(QUESTION), 24_000)
    data = encoded(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def test_a_conversation_is_not_listened_to_for_ever(client, service, monkeypatch):
    monkeypatch.setattr(complete, "MAX_HEARD_S", 1.5)
    messages = [{"role": "user", "content": [recording()]}] * 5
    with pytest.raises(openai.APIStatusError, match=r"longer than 1\.5 s in all") as refused:
        ask(client, messages, modalities=["text"])
    assert refused.value.status_code == 413 and len(service.encoded) < len(messages)


def sent(service, seed: int = 7) -> np.ndarray:
    return to_pcm16(signal(service.script.seconds, seed=seed))


def test_text_is_answered_by_text(client, service):
    answer = ask(client, seed=7)
    assert answer.choices[0].message.content == "How are you?"
    assert answer.choices[0].message.audio is None
    assert answer.choices[0].finish_reason == "stop"
    assert service.requests[-1].mode == "write"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 1
    assert answer.usage.completion_tokens_details.audio_tokens == 0


def test_text_is_answered_by_sound(client, service, tmp_path):
    answer = ask(client, seed=7, **SPOKEN)
    audio = answer.choices[0].message.audio
    (tmp_path / "a.wav").write_bytes(base64.b64decode(audio.data))
    pcm, rate_hz = read_wav(tmp_path / "a.wav")
    assert rate_hz == 24_000 and np.array_equal(pcm, sent(service))
    assert audio.transcript == "How are you?" and audio.expires_at > answer.created
    assert answer.choices[0].message.content is None
    assert service.requests[-1].mode == "chat"
    details = answer.usage.completion_tokens_details
    assert details.audio_tokens + details.text_tokens == answer.usage.completion_tokens
    assert details.audio_tokens > 0 and details.text_tokens > 0


@pytest.mark.parametrize("encoded", [base64.b64encode, base64.encodebytes])
def test_a_recording_is_a_question(client, service, encoded):
    """As one line, or as `base64 FILE` breaks it."""
    messages = [{"role": "user", "content": [recording(encoded)]}]
    answer = ask(client, messages, seed=7, **SPOKEN)
    request = service.requests[-1]
    assert request.mode == "listen"
    codes = request.messages[0].content.codes
    assert isinstance(request.messages[0].content, Speech)
    assert answer.usage.prompt_tokens_details.audio_tokens == len(codes) > 0
    wave, rate_hz = service.encoded[-1]
    assert rate_hz == 24_000 and np.array_equal(wave * 32768, to_pcm16(QUESTION))


def test_a_stream_carries_text(client, service):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "How are you?"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 1


def test_a_stream_carries_sound_and_its_words(client, service):
    spoken = {**SPOKEN, "audio": {"format": "pcm16"}}
    pcm, words = b"", ""
    for chunk in ask(client, stream=True, seed=7, **spoken):
        audio = getattr(chunk.choices[0].delta, "audio", None)
        if audio is not None:
            pcm += base64.b64decode(audio.data or "")
            words += audio.transcript or ""
    assert np.array_equal(np.frombuffer(pcm, "<i2"), sent(service))
    assert words.strip() == "How are you?"


def test_an_earlier_answer_is_found_by_its_id(client, service):
    first = ask(client, **SPOKEN).choices[0].message
    spoken = {**SPOKEN, "model": MODEL, "messages": ASKED, "audio": {"voice": "default"}}
    with client.chat.completions.stream(**spoken) as stream:
        joined = stream.get_final_completion().choices[0].message
    for earlier in ({"id": first.audio.id}, first.audio.model_dump(), {"id": joined.audio.id}):
        said = {"role": "assistant", "audio": earlier}
        ask(client, [*ASKED, said, {"role": "user", "content": "And you?"}], **SPOKEN)
        asked, answered, last = service.requests[-1].messages
        assert asked.content == Text("How are you?") and last.content == Text("And you?")
        assert isinstance(answered.content, Reply)


def test_the_fields_reach_both_channels(client, service):
    fields = {"temperature": 0.5, "top_p": 0.8, "max_completion_tokens": 99, "seed": 3}
    ask(client, [{"role": "developer", "content": "Be kind."}, *ASKED], **fields, **SPOKEN)
    request = service.requests[-1]
    sampling = request.sampling
    for channel in (sampling.text, sampling.audio):
        assert (channel.temperature, channel.top_p) == (0.5, 0.8)
    assert (sampling.max_rows, sampling.seed) == (99, 3)
    assert request.messages[0].role == "system" and request.voice == "default"


@pytest.mark.parametrize(
    ("field", "given", "taken"),
    [
        ("max_completion_tokens", 128_000, 40_960),
        ("max_tokens", 64_000, 40_960),
        ("max_tokens", -1, INFO.sampling.max_rows),
        ("seed", -2, 2**63 - 2),
        ("seed", -(2**63), 0),
        ("top_p", 0, 0.0),
        ("temperature", 1e-8, 0.0),
    ],
)
def test_what_openai_s_models_and_other_servers_take_is_taken(url, service, field, given, taken):
    assert post(url, **{field: given}).status_code == 200
    sampling = service.requests[-1].sampling
    values = {**vars(sampling), **vars(sampling.text), "max_tokens": sampling.max_rows}
    values["max_completion_tokens"] = sampling.max_rows
    assert values[field] == taken


def post(url: str, **fields) -> httpx.Response:
    body = {"model": MODEL, "messages": ASKED, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)


WITHOUT_EFFECT = {
    "frequency_penalty": 0.5, "store": True, "metadata": {"a": "b"}, "user": "me", "stop": "x",
    "prompt_cache_key": "k", "logit_bias": {}, "never heard of\r\nit": 1, "": 1,
}  # fmt: skip
NEUTRAL = {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "tools": [],
           "tool_choice": "auto", "service_tier": None, "modalities": None,
           "audio": None}  # fmt: skip


def test_what_has_no_effect_is_taken_and_named(url):
    neutral = post(url, **NEUTRAL, stream=True, stream_options={"include_usage": None})
    assert neutral.status_code == 200 and "x-moss-ignored" not in neutral.headers
    part = {"type": "text", "text": "Hi.", "cache_control": {}}
    for stream in (False, True):
        messages = [{"role": "user", "content": [part] * 2, "name": "Ann"}]
        answer = post(url, messages=messages, stream=stream, **WITHOUT_EFFECT)
        assert answer.status_code == 200
        names = answer.headers["x-moss-ignored"].split(", ")
        assert set(names) == {
            *list(WITHOUT_EFFECT)[:-2], "never?heard?of??it", "?", "messages[].name",
            "messages[].content[].cache_control",
        }  # fmt: skip
    assert len(post(url, **{f"x{n}": n for n in range(99)}).headers["x-moss-ignored"]) < 200


def test_text_and_recordings_of_a_message_come_in_their_order(client, service):
    said = [{"type": "text", "text": "What is this?"}, recording(), {"type": "text", "text": "And"}]
    ask(client, [{"role": "user", "content": said}])
    text, speech, last = (message.content for message in service.requests[-1].messages)
    assert text == Text("What is this?") and isinstance(speech, Speech) and last == Text("And")
    ask(client, [{"role": "user", "content": said[:2]}], **SPOKEN)
    assert service.requests[-1].mode == "listen"


def test_system_messages_become_one_and_are_taken_where_the_mode_has_its_own(client, service, url):
    messages = [
        {"role": "system", "content": "Be kind."},
        *ASKED,
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    ]
    answer = ask(client, [messages[0], messages[2], messages[1]], **SPOKEN)
    assert answer.choices[0].message.audio
    assert service.requests[-1].messages[0].content == Text("Be kind.\n\nBe brief.")
    modes = tuple(replace(mode, own_system=False) for mode in INFO.modes)
    with running(fixed := FakeService(Script(seconds=0.2), replace(INFO, modes=modes))) as other:
        answer = post(other, messages=messages[:2])
    assert (answer.status_code, answer.headers["x-moss-ignored"]) == (200, "system")
    assert [message.role for message in fixed.requests[-1].messages] == ["user"]


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}


@pytest.mark.parametrize("spoken", [False, True])
def test_a_chat_server_calls_functions_and_hears_of_their_results(thinking, spoken):
    chat, url = thinking
    fields = {"tools": [WEATHER], "parallel_tool_calls": False, **(SPOKEN if spoken else {})}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        system = {"role": "system", "content": "Be kind."}
        first = ask(client, [system, *ASKED], tool_choice="required", **fields).choices[0]
        calls = first.message.tool_calls
        assert first.finish_reason == "tool_calls" and first.message.content is None
        assert first.message.audio is None
        assert next((c.id, c.function.name, c.function.arguments) for c in calls) == (
            "c1", "get_weather", '{"city": "Rome"}',
        )  # fmt: skip
        assert len(calls) == 2 and calls[1].id.startswith("call_")
        asked = chat.asked[-1]
        assert asked["messages"] == [system, *ASKED] and asked["tool_choice"] == "required"
        assert asked["tools"][0]["function"]["parameters"] == WEATHER["function"]["parameters"]
        assert asked["parallel_tool_calls"] is False
        results = [{"role": "tool", "tool_call_id": c.id, "content": "It is sunny."} for c in calls]
        later = [*ASKED, first.message, *results]
        answer = ask(client, later, **fields)
        assert (answer.usage.prompt_tokens > 0) is spoken, "of the voice that says it"
        second = answer.choices[0]
        assert second.finish_reason == "stop"
        said = second.message.audio.transcript if spoken else second.message.content
        assert said == "It is sunny."
        told = chat.asked[-1]["messages"][1:]
        assert [m["role"] for m in told] == ["user", "assistant", "tool", "tool"]
        assert [c["id"] for c in told[1]["tool_calls"]] == [c.id for c in calls]
        assert told[2]["tool_call_id"] == "c1"


def test_calls_are_streamed(thinking):
    _, url = thinking
    named = {"type": "function", "function": {"name": "get_weather"}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(ask(client, tools=[WEATHER], tool_choice=named, stream=True))
    calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
    assert [(c.index, c.function.name) for c in calls] == [(0, "get_weather"), (1, "get_weather")]
    assert calls[0].function.arguments == '{"city": "Rome"}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_chat_server_that_breaks_off_in_a_call_ends_in_a_sentence_at_every_door(thinking):
    chat, url = thinking
    half = {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": '{"ci'}}

    def breaks_off(handler) -> None:
        chat.begin(handler)
        handler.wfile.write(event({"tool_calls": [half]}))

    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    aloud = SPOKEN | {"audio": {"voice": "default", "format": "pcm16"}}
    was, chat.script = chat.script, breaks_off
    try:
        for stream in (False, True):
            asked = {"model": MODEL, "input": "Weather?", "tools": [tool], "stream": stream}
            for answer in (
                post(url, tools=[WEATHER], stream=stream),
                post(url, tools=[WEATHER], stream=stream, **aloud),
                httpx.post(f"{url}/v1/responses", json=asked, timeout=20),
            ):
                assert answer.status_code == (200 if stream else 502)
                assert "broke off; ask again." in answer.text and "[DONE]" not in answer.text
                assert "arguments" not in answer.text
        with websockets.sync.client.connect(f"ws{url[4:]}/v1/realtime?model={MODEL}") as door:
            for kind in (["text"], ["audio"]):
                door.send(json.dumps({"type": "session.update", "session": {
                    "type": "realtime", "output_modalities": kind, "tools": [tool]}}))  # fmt: skip
                door.send(json.dumps({"type": "response.create"}))
                while (told := json.loads(door.recv(20)))["type"] != "response.done":
                    assert "function_call" not in told["type"]
                error = told["response"]["status_details"]["error"]
                assert "broke off; ask again." in error["message"]
    finally:
        chat.script = was


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [WEATHER]},
        {"messages": [*ASKED, {"role": "tool", "tool_call_id": "c1", "content": "Sunny."}]},
    ],
)
def test_functions_need_a_chat_server(url, service, fields):
    answer = post(url, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_tools")
    assert "--brain" in answer.json()["error"]["message"] and service.requests == []
    assert post(url, tools=[WEATHER], tool_choice="none").status_code == 200


def test_hanging_up_on_a_whole_answer_stops_it_too(url, service):
    service.script = Script(seconds=60.0, rtf=0.5)
    body = {"model": MODEL, "messages": ASKED, **SPOKEN}
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    assert until(lambda: service.open)
    connection.close()
    assert until(lambda: not service.open)
    assert len(service.cancelled) == 1
