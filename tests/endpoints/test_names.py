"""Names that programs have built in stand for what the operator says, and for nothing else."""

from __future__ import annotations

import httpx
import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.endpoints.access import Access
from moss_engine.endpoints.server import Server
from moss_engine.ui.config import PageConfig
from tests.endpoints.endpoint_support import MODEL, running
from tests.ui.page_support import INFO, FakeService

NAMES = {"tts-1": MODEL, "alloy": "default"}


@pytest.fixture(scope="module")
def served():
    service = FakeService()
    with running(service, names=NAMES) as url:
        yield service, url


def ask(url: str, model: str, voice: str) -> httpx.Response:
    body = {"model": model, "voice": voice, "input": "Hi.", "response_format": "pcm"}
    return httpx.post(f"{url}/v1/audio/speech", json=body)


def test_a_name_stands_for_what_is_here(url, service):
    assert ask(url, "tts-1", "alloy").status_code == 200
    assert service.requests[-1].voice == "default"
    assert httpx.get(f"{url}/v1/models/tts-1").json()["id"] == MODEL


@pytest.mark.parametrize(("model", "voice"), [("tts-1-hd", "alloy"), ("alloy", "alloy")])
def test_any_other_model_is_refused(url, model, voice):
    answer = ask(url, model, voice)
    assert answer.status_code == 404 and answer.json()["error"]["param"] == "model"


def test_the_option_is_a_list_of_names():
    assert PageConfig(api_names="tts-1=nano, alloy=ada").names == {"tts-1": "nano", "alloy": "ada"}
    for wrong in ("alloy", "alloy=", "=ada"):
        with pytest.raises(ConfigError, match="write it like"):
            PageConfig(api_names=wrong)


def test_a_name_for_nothing_here_is_refused():
    with pytest.raises(ConfigError, match="gives 'ada' another name, 'alloy'"):
        Server(FakeService(), INFO, MODEL, Access(), names={"alloy": "ada"})
