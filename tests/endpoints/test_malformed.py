"""Refusals as programs are told of them, and bodies that are none."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import replace

import httpx
import pytest
import websockets.sync.client

from moss_engine.api.errors import BrainError, BusyError, MossError, ParameterError, error_of
from moss_engine.api.validation import check_sampling
from moss_engine.endpoints.bodies import parse
from moss_engine.endpoints.errors import ApiError, of_failure, of_moss
from moss_engine.endpoints.speech import SpeechBody
from tests.endpoints.endpoint_support import running
from tests.endpoints.malformed import http_call, realtime_event, tool_message
from tests.ui.page_support import INFO, FakeService, Script, until

SAMPLING = INFO.sampling
HOT, NARROW = replace(SAMPLING.text, temperature=3.0), replace(SAMPLING.text, top_p=0.0)


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        (replace(SAMPLING, text=HOT), "temperature is 3; give a number from 0 to 2."),
        (replace(SAMPLING, text=NARROW), "top_p is 0; give a number from 0.01 to 1."),
        (
            replace(SAMPLING, seed=2**63),
            f"seed is {2**63}; give a whole number from 0 to {2**63 - 1}.",
        ),
    ],
)
def test_a_sentence_names_the_field_that_the_program_sent(sampling, sentence):
    with pytest.raises(ParameterError) as caught:
        check_sampling(sampling)
    refusal = of_moss(caught.value)
    assert (refusal.message, refusal.param) == (sentence, sentence.partition(" ")[0])


def test_a_long_name_of_an_unknown_field_is_not_repeated_whole():
    with pytest.raises(ApiError) as caught:
        parse('{"model": "m", "input": "i", "' + "x" * 100_000 + '": 1}', SpeechBody)
    assert caught.value.code == "unknown_field"
    assert len(str(caught.value.value())) < 500 and "xxx is not served" in caught.value.message


@pytest.mark.parametrize(
    ("code", "kind"),
    [("E_BUSY", BusyError), ("E_BRAIN", BrainError), ("E_PARAM", ParameterError),
     ("E_MOSS", MossError), ("E_LATER", MossError)],
)  # fmt: skip
def test_a_failure_is_the_error_of_its_code(code, kind):
    error = error_of(code, "It is so; ask again.")
    assert type(error) is kind and str(error) == "It is so; ask again."
    told = of_failure(code, str(error))
    assert (told.code, told.message) == (kind.code, "It is so; ask again.")


NUM_CALLS = int(os.environ.get("MALFORMED_CALLS", "300"))
PER_SOCKET = 20


@pytest.fixture(scope="module")
def served():
    service = FakeService()
    with running(service, tool=True) as url:
        yield service, url


def test_http_calls_are_refused_and_nothing_is_left(url, service, caplog):
    service.script = Script(seconds=0.2, first_s=0.0, rtf=0.0)
    draw, seen = random.Random(17), set()
    with httpx.Client(base_url=f"{url}/v1", timeout=20) as http:
        for _ in range(NUM_CALLS):
            call = http_call(draw)
            try:
                request = http.build_request(**call)
            except (httpx.InvalidURL, UnicodeEncodeError):
                continue
            answer = http.send(request)
            seen.add(answer.status_code)
            assert answer.status_code < 500, (call, answer.text)
            if answer.status_code >= 400 and call["method"] != "HEAD":
                error = answer.json()["error"]
                assert error["message"].endswith((".", "python -m scripts.download")), error
                assert "Traceback" not in error["message"] and error["code"]
    assert {200, 400, 404, 405} <= seen
    assert until(lambda: not service.open)
    assert not [record for record in caplog.records if record.exc_info]


def test_realtime_events_are_refused_and_nothing_is_left(url, service, caplog):
    service.script = Script(seconds=0.2, first_s=0.0, rtf=0.0)
    draw, errors = random.Random(18), 0
    address = f"{url.replace('http', 'ws')}/v1/realtime"
    for _ in range(NUM_CALLS // PER_SOCKET):
        with websockets.sync.client.connect(address) as socket:
            for _ in range(PER_SOCKET):
                socket.send(realtime_event(draw))
            # Last, what is answered whatever came before.
            socket.send(json.dumps({"type": "input_audio_buffer.clear", "event_id": "last"}))
            kind = ""
            while kind != "input_audio_buffer.cleared":
                event = json.loads(socket.recv(timeout=20))
                kind = event["type"]
                if kind == "error":
                    errors += 1
                    assert event["error"]["type"] != "server_error", event
                    assert event["error"]["message"].endswith("."), event
    assert errors > NUM_CALLS // 4
    assert until(lambda: not service.open)
    assert not [record for record in caplog.records if record.exc_info]
    assert asyncio.run(service.stats()).engine.blocks_used == 0


def test_messages_to_the_tool_are_refused_and_nothing_is_left(url, service, caplog):
    service.script = Script(seconds=0.2, first_s=0.0, rtf=0.0)
    draw, seen = random.Random(19), set()
    kind = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with httpx.Client(headers=kind, timeout=20) as http:
        for _ in range(NUM_CALLS // 4):
            message = tool_message(draw)
            answer = http.post(f"{url}/mcp", content=message)
            seen.add(answer.status_code)
            assert answer.status_code < 500, (message, answer.text)
            assert "Traceback" not in answer.text
    assert {200, 400} <= seen
    assert until(lambda: not service.open)
    assert not [record for record in caplog.records if record.exc_info]
