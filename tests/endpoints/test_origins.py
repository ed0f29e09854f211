"""Web pages of other addresses: those that the operator names may call with a key."""

from __future__ import annotations

import httpx
import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.endpoints.access import Access, Key, digest_of
from moss_engine.ui.config import PageConfig
from tests.endpoints.endpoint_support import running
from tests.ui.page_support import FakeService

KEY = "k" * 20
APP = "https://app.example"


@pytest.fixture(scope="module")
def url():
    access = Access((Key("ann", digest_of(KEY)),))
    with running(FakeService(), access, origins=(APP,)) as url:
        yield f"{url}/v1/models"


def ask_first(url: str, origin: str) -> httpx.Response:
    """A browser's question before a call with a key."""
    wanted = {"Access-Control-Request-Method": "POST"}
    headers = "authorization, content-type, x-stainless-lang"
    wanted |= {"Access-Control-Request-Headers": headers}
    return httpx.options(url, headers={"Origin": origin, **wanted})


def test_a_named_page_may_call_and_read(url):
    asked = ask_first(url, APP)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == APP
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    answer = httpx.get(url, headers={"Origin": APP, "Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == APP


def test_its_refusals_can_be_read_too(url):
    answer = httpx.get(url, headers={"Origin": APP})
    assert answer.status_code == 401 and answer.headers["access-control-allow-origin"] == APP


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.evil"])
def test_other_pages_may_not(url, origin):
    assert ask_first(url, origin).status_code == 400
    answer = httpx.get(url, headers={"Origin": origin, "Authorization": f"Bearer {KEY}"})
    assert "access-control-allow-origin" not in answer.headers


def test_without_the_option_no_page_may():
    with running(FakeService(), Access((Key("ann", digest_of(KEY)),))) as url:
        answer = ask_first(f"{url}/v1/models", APP)
    assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers


def test_the_option_is_a_list_of_origins(tmp_path):
    keys = tmp_path / "keys"
    config = PageConfig(api_key_file=keys, api_origins=f"{APP}/, http://localhost:3000")
    assert config.origins == (APP, "http://localhost:3000")


@pytest.mark.parametrize("origins", ["*", "app.example", "https://app.example/path", "null"])
def test_what_is_no_origin_is_refused(tmp_path, origins):
    with pytest.raises(ConfigError, match="write origins like https://app"):
        PageConfig(api_key_file=tmp_path / "keys", api_origins=origins)


def test_origins_need_keys():
    with pytest.raises(ConfigError, match="add --api-key-file"):
        PageConfig(api_origins=APP)
