"""Who is answered: keys and their limits, web pages of other addresses, and names that programs
have built in."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.endpoints.access import Access, Caller, digest_of, read_keys
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.names import OPENAI_VOICES, Names
from moss_engine.endpoints.server import Server
from moss_engine.ui.config import PageConfig
from tests.endpoints.endpoint_support import MODEL, running
from tests.ui.page_support import INFO, FakeService, Script, until

KEY, OTHER = "a" * 20, "b" * 20
BEARER = {"Authorization": f"Bearer {KEY}"}
APP = "https://app.example"


def scope(**headers: str):
    return {"headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]}


@pytest.fixture(scope="module")
def served():
    """With one key, one page of another address, and two names for what is here."""
    service = FakeService()
    access = Access(((digest_of(KEY), Caller("ann", places=1)),), open_to_all=True)
    names = {"tts-1": MODEL, "alloy": "default"}
    with running(service, access, names, strict_names=True, origins=(APP,)) as url:
        yield service, url


def speak(url: str, model: str = MODEL, voice: str | dict = "default") -> httpx.Response:
    body = {"model": model, "voice": voice, "input": "Hi.", "response_format": "pcm"}
    return httpx.post(f"{url}/v1/audio/speech", json=body, headers=BEARER)


def test_a_file_names_keys_and_their_limits(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# of the team\n\nann {KEY} places=2 per_minute=30\nbob {OTHER}\n")
    (digest, ann), (_, bob) = read_keys(path)
    assert digest == digest_of(KEY)
    assert (ann.name, ann.places, ann.per_minute) == ("ann", 2, 30)
    assert (bob.name, bob.places, bob.per_minute) == ("bob", None, None)
    with pytest.raises(ConfigError, match=r"--api-key-file .*nothing cannot be read"):
        read_keys(tmp_path / "nothing")


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
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_keys(tmp_path / "keys")
    assert KEY not in str(caught.value)


def test_a_key_comes_in_a_header_or_a_subprotocol():
    access = Access(((digest_of(KEY), Caller("ann")),))
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
    for origin in ("https://evil.example", "http://["):
        with pytest.raises(ApiError, match="Pages of other addresses") as caught:
            local.caller(scope(host="localhost:7860", origin=origin))
        assert caught.value.status == 403


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


def test_keys_and_places_over_http(url, service):
    service.script = Script(seconds=20.0, rtf=0.5)
    speech, asked = f"{url}/v1/audio/speech", {"model": MODEL, "input": "Hello."}
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/v1/models?key={KEY}").status_code == 401
    assert httpx.get(f"{url}/v1/models", headers=BEARER).status_code == 200
    with httpx.stream("POST", speech, json=asked, headers=BEARER) as first:
        assert first.status_code == 200
        second = httpx.post(speech, json=asked, headers=BEARER)
        assert second.status_code == 429 and second.headers["retry-after"] == "1"
        assert second.json()["error"]["type"] == "rate_limit_error"
    assert until(lambda: not service.open)
    service.script = Script(seconds=0.4)
    assert until(lambda: speak(url).status_code == 200)
    assert asyncio.run(service.stats()).engine.blocks_used == 0


def asked_first(url: str, origin: str, path: str = "models") -> httpx.Response:
    """What a browser is told before a call with a key."""
    wanted = {"Access-Control-Request-Method": "POST"}
    wanted |= {"Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang"}
    return httpx.options(f"{url}/v1/{path}", headers={"Origin": origin, **wanted})


ALLOWED = "access-control-allow-origin"


def test_a_named_page_may_call_and_read_refusals_too(url):
    asked = asked_first(url, APP)
    assert (asked.status_code, asked.headers[ALLOWED]) == (200, APP)
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    for headers, status in ((BEARER, 200), ({}, 401)):
        answer = httpx.get(f"{url}/v1/models", headers={"Origin": APP, **headers})
        assert (answer.status_code, answer.headers[ALLOWED]) == (status, APP)


def test_other_pages_may_not_and_none_without_the_option(url):
    for origin in ("https://evil.example", "null", "https://app.example.evil"):
        assert asked_first(url, origin).status_code == 400
        answer = httpx.get(f"{url}/v1/models", headers={"Origin": origin, **BEARER})
        assert ALLOWED not in answer.headers
    with running(FakeService()) as closed:
        answer = asked_first(closed, APP)
        assert answer.status_code == 405 and ALLOWED not in answer.headers
        for served in (closed, url):  # but for calls, which a short-lived key opens from anywhere
            call = asked_first(served, "https://any.example", "realtime/calls")
            assert (call.status_code, call.headers[ALLOWED]) == (200, "*")


def test_origins_are_a_list_and_need_keys(tmp_path):
    keys = tmp_path / "keys"
    config = PageConfig(api_key_file=keys, api_origins=f"{APP}/, http://localhost:3000")
    assert config.origins == (APP, "http://localhost:3000")
    for wrong in ("*", "app.example", "https://app.example/path", "null"):
        with pytest.raises(ConfigError, match="write origins like https://app"):
            PageConfig(api_key_file=keys, api_origins=wrong)
    with pytest.raises(ConfigError, match="add --api-key-file"):
        PageConfig(api_origins=APP)


def test_a_name_stands_for_what_is_here_and_for_nothing_else(url, service):
    """Given names, and with --strict-names no others."""
    for voice in ("alloy", {"id": "alloy"}):
        assert speak(url, "tts-1", voice).status_code == 200
    assert service.requests[-1].voice == "default"
    assert httpx.get(f"{url}/v1/models/tts-1", headers=BEARER).json()["id"] == MODEL
    for model in ("tts-1-hd", "alloy"):
        answer = speak(url, model, "alloy")
        assert answer.status_code == 404 and answer.json()["error"]["param"] == "model"


OPENAI_MODELS = (
    "tts-1", "tts-1-hd", "tts-1-1106", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15",
    "whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-4o-transcribe-diarize",
    "gpt-realtime", "gpt-realtime-mini", "gpt-4o-realtime-preview-2025-06-03", "gpt-audio",
    "gpt-4o-audio-preview", "gpt-4o", "gpt-4.1-mini", "gpt-5", "o3-mini", "gpt-transcribe",
    "gpt-live-transcribe",
)  # fmt: skip
OTHERS = ("text-embedding-3-small", "dall-e-3", "gpt-image-1", "gpt", "ada", "", "o3x", "tts-1\n")


def test_openai_s_names_stand_for_what_is_here():
    names = Names("nano", ("ada", "ben"))
    assert [name for name in (*OPENAI_MODELS, "nano") if not names.is_model(name)] == []
    assert [name for name in OTHERS if names.is_model(name)] == []
    meant = [names.voice(name) for name in ("alloy", "ash", "ballad", "ben", "bob")]
    assert meant == ["ada", "ben", "ada", "ben", None]
    assert None not in [names.voice(name) for name in OPENAI_VOICES]
    given = Names("nano", ("ada", "ben"), {"alloy": "ben", "gpt-4o": "ada"})
    assert given.voice("alloy") == "ben" and not given.is_model("gpt-4o")
    strict = Names("nano", ("nova",), strict=True)
    assert (strict.voice("nova"), strict.voice("alloy"), strict.is_model("tts-1")) == (
        "nova", None, False,
    )  # fmt: skip


def test_names_are_a_list_of_what_is_here():
    assert PageConfig(api_names="tts-1=nano, alloy=ada").names == {"tts-1": "nano", "alloy": "ada"}
    for wrong in ("alloy", "alloy=", "=ada"):
        with pytest.raises(ConfigError, match="write it like"):
            PageConfig(api_names=wrong)
    with pytest.raises(ConfigError, match="gives 'ada' another name, 'alloy'"):
        Server(FakeService(), INFO, MODEL, Access(), names={"alloy": "ada"})
