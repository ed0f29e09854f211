"""What stock clients send on their own, and what they need: settings, greetings, functions, the
telephone's sound, sessions that only transcribe, keys for pages."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import soxr
import websockets

from moss_engine.api.request import Text, ToolCall
from moss_engine.audio import g711
from moss_engine.audio.pcm import to_pcm16
from moss_engine.endpoints import access, server
from moss_engine.endpoints.access import Access, Caller, digest_of
from moss_engine.endpoints.realtime import connection as connections
from moss_engine.talk.answer import Say
from moss_engine.talk.modes import talking_modes
from moss_engine.talk.service import TalkingService
from tests.endpoints.endpoint_support import running
from tests.endpoints.realtime.realtime_support import (
    MANUAL,
    QUESTION,
    ask,
    base64_of,
    connected,
    pcm_of,
    respond,
    until,
)
from tests.talk.talk_support import READER, Written
from tests.ui.page_support import INFO, PATIENCE_S, FakeService, Script, signal

SETTINGS = json.loads(Path(__file__).with_name("clients.json").read_text(encoding="utf-8"))
"""What clients set at first, which of it has no effect, and how turns are found then."""


@pytest.mark.parametrize(("settings", "warnings", "vad"), SETTINGS.values(), ids=SETTINGS)
async def test_what_clients_set_at_first_is_taken(connect, monkeypatch, settings, warnings, vad):
    monkeypatch.setattr(server, "find_melody", lambda: Path("melody.onnx"))
    async with connect() as connection:
        await connection.send({"type": "session.update", "session": settings})
        told = (await until(connection, "session.updated", "error"))[-1]
        assert told.type == "session.updated"
        assert (told.model_extra or {}).get("warnings") == warnings
        session = told.session
        assert session.output_modalities == ["audio"]
        found, said = session.audio.input.turn_detection, settings.get("audio", {}).get("input", {})
        assert (found and found.type) == vad
        eagerness = (said.get("turn_detection") or {}).get("eagerness", "auto")
        assert found is None or found.eagerness == eagerness
        assert session.instructions == settings.get("instructions", "")
        assert (await respond(connection))[-1].type == "response.done"


async def test_one_field_that_cannot_be_had_leaves_the_others(connect):
    wrong = {
        "instructions": "Be brief.", "tools": [{"type": "function", "name": "look"}], "model": "x",
        "audio": {
            "input": {"turn_detection": {"type": "server_vad", "threshold": 7,
                                         "silence_duration_ms": 900}},
            "output": {"voice": "bob"},
        },
    }  # fmt: skip
    async with connect() as connection:
        await connection.send({"type": "session.update", "event_id": "mine", "session": wrong})
        session = (await until(connection, "session.updated"))[-1].session
        assert session.instructions == "Be brief." and session.tools == []
        assert session.audio.input.turn_detection.silence_duration_ms == 900
        params = [(await until(connection, "error"))[-1].error for _ in range(4)]
        assert {error.event_id for error in params} == {"mine"}
        assert {error.param for error in params} == {
            "session.audio.input.turn_detection.threshold", "session.model", "session.tools",
            "session.audio.output.voice",
        }  # fmt: skip


async def test_what_is_wrong_is_told_once_by_its_place(connect):
    wrong = {
        "output_modalities": ["video"],
        "tools": [{"type": "function"}, {"type": "function", "name": "look"}, {"type": "mcp"}],
        "audio": {
            "input": {"format": {"type": "audio/x"}},
            "output": {"format": {"type": "audio/pcm", "rate": 8000}},
        },
    }
    async with connect() as connection:
        await connection.session.update(session=wrong)
        await connection.input_audio_buffer.clear()
        told = await until(connection, "input_audio_buffer.cleared")
        errors = {event.error.param: event.error for event in told if event.type == "error"}
        assert [event.type for event in told].count("error") == len(errors)
        assert errors.keys() == {
            "session.output_modalities[0]", "session.tools[0].name", "session.tools[2].name",
            "session.tools[2].type", "session.tools", "session.audio.input.format.type",
            "session.audio.output.format",
        }  # fmt: skip
        assert "must be audio/pcm of 24000 Hz" in errors["session.audio.output.format"].message
        assert "calls no functions" in errors["session.tools"].message


async def test_a_reply_is_made_by_instructions_before_anything_was_said(connect, service):
    async with connect({**MANUAL, "instructions": "You are kind."}) as connection:
        for instructions in ("Greet the user.", "Say that it rains."):
            asked = {"instructions": instructions, "metadata": {"client_event_id": "1"}}
            done = (await respond(connection, response=asked))[-1].response
            assert done.status == "completed" and done.metadata == {"client_event_id": "1"}
            said = [message.content for message in service.requests[-1].messages]
            assert said[0] == Text("You are kind.") and said[-1] == Text(instructions)
        await ask(connection, response={"instructions": "Be brief."})
        first, *_, last = service.requests[-1].messages
        assert first.content == Text("Be brief.") and last.content == Text("How are you?")


async def test_small_talk_greets_whoever_asks_it_to(service):
    """It knows no instructions, says so, and answers a greeting; system items change nothing."""
    fixed = tuple(replace(mode, own_system=False) for mode in INFO.modes)
    small = FakeService(Script(seconds=0.4, rtf=0.02), replace(INFO, modes=fixed))
    with running(small) as url:
        async with connected(url) as connection:
            content = [{"type": "input_text", "text": "x"}]
            item = {"type": "message", "role": "system", "content": content}
            await connection.send({"type": "conversation.item.create", "item": item})
            told = (await until(connection, "conversation.item.added"))[-1]
            assert told.model_extra["warnings"] == ["system"]
            asked = {"instructions": "Greet the user.", "tool_choice": "auto"}
            await connection.send({"type": "response.create", "response": asked})
            created = (await until(connection, "response.created"))[-1]
            assert created.model_extra["warnings"] == ["instructions"]
            assert (await until(connection, "response.done"))[-1].response.status == "completed"
    assert [m.content for m in small.requests[-1].messages] == [Text("Hello.")]


TOOL = {"type": "function", "name": "look", "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}  # fmt: skip


async def test_functions_are_called_and_what_they_gave_is_spoken_about():
    brain = Written([ToolCall("call_1", "look", '{"at": "sky"}')])
    info = replace(READER, brain="scripted brain")
    info = replace(info, modes=talking_modes(info))
    below = FakeService(Script(seconds=0.4, first_s=0.01, rtf=0.01), READER)
    with running(TalkingService(below, info, brain)) as url:
        async with connected(
            url, {**MANUAL, "instructions": "Help.", "tools": [TOOL]}
        ) as connection:
            events = await ask(connection, "What is up there?")
            assert [e.type for e in events if "conversation" not in e.type] == [
                "response.created", "response.output_item.added",
                "response.function_call_arguments.delta", "response.function_call_arguments.done",
                "response.output_item.done", "response.done",
            ]  # fmt: skip
            (call,) = events[-1].response.output
            assert (call.type, call.name, call.call_id) == ("function_call", "look", "call_1")
            assert json.loads(call.arguments) == {"at": "sky"}
            brain.parts = [Say("A bird.")]
            output = {"type": "function_call_output", "call_id": "call_1", "output": "bird"}
            await connection.conversation.item.create(item=output)
            await until(connection, "conversation.item.done")
            events = await respond(connection)
            assert events[-1].response.output[0].content[0].transcript == "A bird."
            assert len(pcm_of(events)) > 0
    assert brain.asked[0].tools.functions[0].name == "look" and brain.asked[0].system == "Help."
    user, called, gave = brain.asked[1].before
    assert called.calls == (ToolCall("call_1", "look", '{"at": "sky"}'),)
    assert (gave.role, gave.call_id, gave.content) == ("tool", "call_1", Text("bird"))
    assert user.content == Text("What is up there?")


def snr_db(heard: np.ndarray, sent: np.ndarray) -> float:
    """Of int16 [n], at the delay and loudness that fit best."""
    places = range(200)
    sent = sent[: len(heard) - 200].astype(float)
    errors = [np.square(heard[at : at + len(sent)] - sent).mean() for at in places]
    return 10 * np.log10(np.square(sent).mean() / min(errors))


@pytest.mark.parametrize(("kind", "law"), [("audio/pcmu", "ULAW"), ("audio/pcma", "ALAW")])
async def test_a_telephone_hears_and_is_heard(connect, service, kind, law):
    tone = to_pcm16(0.5 * np.sin(2 * np.pi * 700 * np.arange(24_000) / 24_000))
    called = g711.encode(soxr.resample(tone, 24_000, 8000), law)
    format = {"format": {"type": kind}}
    audio = {"input": {**format, "turn_detection": None}, "output": format}
    async with connect({"audio": audio}) as connection:
        for start in range(0, len(called), 160):
            block = base64.b64encode(called[start : start + 160]).decode()
            await connection.input_audio_buffer.append(audio=block)
        await connection.input_audio_buffer.commit()
        await until(connection, "conversation.item.done")
        events = await respond(connection)
    assert events[-1].response.audio.output.format.type == f"audio/pcm{law[0].lower()}"
    wave, rate_hz = service.encoded[-1]
    assert abs(len(wave) / rate_hz - 1) < 0.01
    assert snr_db(np.pad(wave * 32768, (0, 400)), tone) > 25
    deltas = [e.delta for e in events if e.type == "response.output_audio.delta"]
    heard = g711.decode(b"".join(map(base64.b64decode, deltas)), law)
    sent = to_pcm16(signal(1.2, seed=service.requests[-1].sampling.seed % 50))
    assert abs(len(heard) - len(sent) / 3) < 10
    assert snr_db(np.pad(heard, (0, 200)), soxr.resample(sent, 24_000, 8000)) > 25


async def told_up_to(socket, last: str) -> dict[str, dict]:
    """The latest event of each type, up to one of the last."""
    told = {}
    while last not in told:
        event = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S))
        told[event["type"]] = event
    return told


async def test_a_session_may_only_write_down_what_is_said():
    ears = FakeService(Script(), replace(INFO, recogniser="Scripted"))
    with running(ears) as url:
        address = f"{url.replace('http', 'ws')}/v1/realtime"
        async with websockets.connect(f"{address}?intent=transcription") as socket:
            created = json.loads(await socket.recv())
            assert created["session"]["type"] == "transcription"
            settings = {**MANUAL, "type": "transcription"}
            await socket.send(json.dumps({"type": "session.update", "session": settings}))
            assert json.loads(await socket.recv())["type"] == "session.updated"
            for event in (
                {"type": "input_audio_buffer.append", "audio": base64_of(QUESTION)},
                {"type": "input_audio_buffer.commit"},
            ):
                await socket.send(json.dumps(event))
            done = "conversation.item.input_audio_transcription.completed"
            told = await told_up_to(socket, done)
            for name, field in (("delta", "delta"), ("completed", "transcript")):
                event = told[f"conversation.item.input_audio_transcription.{name}"]
                assert event[field] == "What time is it?"
            await socket.send(json.dumps({"type": "response.create"}))
            refused = (await told_up_to(socket, "error"))["error"]
            assert "writes down what is said" in refused["error"]["message"]
    assert ears.requests == []


KEY = "k" * 32


async def test_a_page_gets_a_key_of_its_own_for_a_while(service, monkeypatch):
    keys = Access(((digest_of(KEY), Caller("ann")),))
    with running(service, keys) as url:
        body = {
            "expires_after": {"anchor": "created_at", "seconds": 60},
            "session": {"type": "realtime", "model": "gpt-realtime", "instructions": "Be brief."},
        }
        path = f"{url}/v1/realtime/client_secrets"
        assert httpx.post(path, json=body).status_code == 401
        by_ann = {"Authorization": f"Bearer {KEY}"}
        told = httpx.post(path, json=body, headers=by_ann).json()
        assert told["value"].startswith("ek_") and told["session"]["instructions"] == "Be brief."
        bob = {"audio": {"output": {"voice": "bob"}}}
        wrong = httpx.post(path, json={"session": bob}, headers=by_ann)
        assert wrong.status_code == 400 and "no voice 'bob'" in wrong.text
        by_key = {"Authorization": f"Bearer {told['value']}"}
        assert httpx.get(f"{url}/v1/models", headers=by_key).status_code == 401
        address = f"{url.replace('http', 'ws')}/v1/realtime?model=gpt-realtime"
        page = {
            "subprotocols": ["realtime", f"openai-insecure-api-key.{told['value']}"],
            "origin": "https://elsewhere.example",
        }
        async with websockets.connect(address, **page) as socket:
            session = json.loads(await socket.recv())["session"]
            assert session["instructions"] == "Be brief."
        now_s = access.time.time()
        monkeypatch.setattr(access.time, "time", lambda: now_s + 61)
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(address, **page)
        assert b"has ended" in refused.value.response.body


async def test_clients_of_the_beta_hear_that_it_is_over(served):
    address = f"{served[1].replace('http', 'ws')}/v1/realtime"
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(address, additional_headers={"OpenAI-Beta": "realtime=v1"})
    assert refused.value.response.status_code == 400
    assert b"leave OpenAI-Beta out" in refused.value.response.body


async def test_who_says_nothing_for_long_is_asked(connect, service, monkeypatch):
    pytest.importorskip("silero_vad")
    service.script = Script(seconds=1.0, first_s=0.5, rtf=0.02)
    detection = {"type": "server_vad", "idle_timeout_ms": 1000}
    async with connect({"audio": {"input": {"turn_detection": detection}}}) as connection:
        begun_s = asyncio.get_running_loop().time()
        await ask(connection)
        events = await until(connection, "response.created")
        waited_s = asyncio.get_running_loop().time() - begun_s
        assert events[0].type == "input_audio_buffer.timeout_triggered"
        # 0.5 s to the first sound, 1 s of sound and 1 s of silence.
        assert waited_s > 2.4, "the silence is counted from the end of what was heard"
        done = (await until(connection, "response.done"))[-1].response
        assert done.output[0].content[0].transcript.strip() == connections.STILL_THERE
    assert service.requests[-1].mode == "read"


async def test_words_of_an_answer_come_with_their_times(connect, service):
    async with connect(MANUAL) as connection:
        events = await ask(connection, "One two three four five six.")
    deltas = [e for e in events if e.type == "response.output_audio_transcript.delta"]
    starts = [e.model_extra["start_ms"] for e in deltas]
    assert starts == sorted(starts) and starts[0] == 0 and starts[-1] < 1200
    (done,) = (e for e in events if e.type == "response.output_audio_transcript.done")
    words = done.model_extra["words"]
    assert [word["word"] for word in words] == ["One", "two", "three", "four", "five", "six"]
    times = [word[name] for word in words for name in ("start", "end")]
    assert times == sorted(times) and times[0] == 0 and times[-1] < 1.2


async def test_what_is_set_and_sent_back_is_bounded(connect):
    long = "x" * 600_000
    async with connect() as connection:
        for event, sentence in (
            ({"type": "response.create", "response": {"instructions": long}}, "has too many"),
            ({"type": "session.update", "session": {str(n): n for n in range(99)}}, None),
            ({"type": "session.update", "session": {"tools": list(range(99))}}, "must be"),
            ({"type": "response.create", "response": {"metadata": {"a": long}}}, "send 512 at"),
        ):  # fmt: skip
            await connection.send(event)
            told = (await until(connection, "session.updated", "error"))[-1]
            if sentence is None:
                assert len(told.model_extra["warnings"]) == 16
            else:
                assert sentence in told.error.message
