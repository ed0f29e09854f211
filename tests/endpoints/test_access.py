"""Keys: their file, their limits, and who is answered without one."""

from __future__ import annotations

import asyncio
import secrets

import httpx
import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.endpoints.access import Access, Caller, Key, digest_of, read_keys
from moss_engine.endpoints.errors import ApiError
from tests.endpoints.endpoint_support import MODEL, running
from tests.ui.page_support import FakeService, Script, until

KEY, OTHER = "a" * 20, "b" * 20
ASKED = {"model": MODEL, "input": "Hello."}


def scope(**headers: str):
    return {"headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]}


def write(tmp_path, text: str):
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_names_keys_and_their_limits(tmp_path):
    text = f"# of the team\n\nann {KEY} places=2 per_minute=30\nbob {OTHER}\n"
    ann, bob = read_keys(write(tmp_path, text))
    assert ann == Key("ann", digest_of(KEY), 2, 30)
    assert (bob.places, bob.per_minute) == (None, None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no key; write lines of NAME KEY"),
        ("ann", "line 1 is incomplete"),
        ("ann short", "line 1 is short enough to be guessed"),
        (f"ann {KEY} places=0", "line 1 has a limit that is none"),
        (f"ann {KEY} seats=2", "line 1 has a limit that is none"),
        (f"ann {KEY}\nann {OTHER}", "the same name twice"),
        (f"ann {KEY}\nbob {KEY}", "the same key twice"),
    ],
)
def test_a_file_that_is_none_is_refused_without_telling_a_key(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_keys(write(tmp_path, text))
    assert KEY not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--api-key-file .*nothing cannot be read"):
        read_keys(tmp_path / "nothing")


def test_a_key_comes_in_a_header_or_a_subprotocol():
    access = Access((Key("ann", digest_of(KEY)),))
    protocols = f"realtime, openai-insecure-api-key.{KEY}"
    for known in (scope(authorization=f"Bearer {KEY}"), scope(sec_websocket_protocol=protocols)):
        assert access.caller(known).name == "ann"
    for unknown in (scope(), scope(authorization=f"Bearer {OTHER}"), scope(authorization=KEY)):
        with pytest.raises(ApiError, match="missing or unknown; send the header") as caught:
            access.caller(unknown)
        assert caught.value.status == 401


def test_without_keys_only_this_machine_is_answered():
    with pytest.raises(ApiError, match="--api-key-file"):
        Access().caller(scope())
    local = Access(open_to_all=True)
    assert local.caller(scope()).name == "local"
    same = scope(host="localhost:7860", origin="http://localhost:7860")
    assert local.caller(same).name == "local"
    with pytest.raises(ApiError, match="Pages of other addresses") as caught:
        local.caller(scope(host="localhost:7860", origin="https://evil.example"))
    assert caught.value.status == 403
    with pytest.raises(ApiError, match="Pages of other addresses"):
        local.caller(scope(host="localhost:7860", origin="http://["))


def test_calls_a_minute_are_counted():
    now_s = 0.0
    caller = Caller("ann", per_minute=2, clock=lambda: now_s)
    caller.call()
    now_s = 20.0
    caller.call()
    with pytest.raises(ApiError, match="2 calls a minute; try again in 40 s") as caught:
        caller.call()
    assert (caught.value.status, caught.value.retry_after_s) == (429, 40)
    now_s = 60.0
    caller.call()


def test_places_are_held_while_a_reply_is_open():
    caller = Caller("ann", places=1)
    with caller.place(), pytest.raises(ApiError, match="1 replies at a time"), caller.place():
        pass
    with caller.place():
        pass
    assert caller.num_open == 0


def test_keys_and_places_over_http():
    service, key = FakeService(Script(seconds=20.0, rtf=0.5)), secrets.token_hex(16)
    access = Access((Key("ann", digest_of(key), places=1),), open_to_all=True)
    bearer = {"Authorization": f"Bearer {key}"}
    with running(service, access) as url:
        speech = f"{url}/v1/audio/speech"
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models?key={key}").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=bearer).status_code == 200
        with httpx.stream("POST", speech, json=ASKED, headers=bearer) as first:
            assert first.status_code == 200
            second = httpx.post(speech, json=ASKED, headers=bearer)
            assert second.status_code == 429 and second.headers["retry-after"] == "1"
            assert second.json()["error"]["type"] == "rate_limit_error"
        assert until(lambda: not service.open)
        service.script = Script(seconds=0.4)
        assert until(lambda: httpx.post(speech, json=ASKED, headers=bearer).status_code == 200)
    assert asyncio.run(service.stats()).engine.blocks_used == 0
