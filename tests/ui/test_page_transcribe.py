"""With --transcribe the recogniser's words stand beside what a checkpoint of the published layout
hears by itself: a tiny one, that answers with noise."""

from __future__ import annotations

import pytest

from moss_engine.api.request import Speech
from moss_engine.build import build_talking_service
from moss_engine.config import EngineConfig, TalkConfig
from moss_engine.recogniser.base import Heard
from moss_engine.ui.config import PageConfig
from moss_engine.ui.server import launch
from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import free_port

browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
QUESTION = {"name": "question.flac", "mimeType": "audio/flac", "buffer": SAMPLE.read_bytes()}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("onnxruntime", reason="voices are made with onnxruntime")
    pytest.importorskip("moonshine_voice")
    from tests.fixtures.make_tiny_moss import make_tiny_moss

    folder = tmp_path_factory.mktemp("moss")
    make_tiny_moss(folder)
    config = EngineConfig(
        checkpoint=folder / "model", codec=folder / "codec", device="cpu", kv_rows=4096
    )
    service = build_talking_service(config, TalkConfig(transcribe=True))
    requests, submit = [], service.submit
    service.submit = lambda request: requests.append(request) or submit(request)
    service.start()
    port = free_port()
    page = launch(service, PageConfig(port=port))
    yield service, port, requests
    page.close(verbose=False)
    service.close()


def spoken(requests: list) -> list[Speech]:
    """What was asked by voice; the service itself asks something first, to be warm."""
    last = [request.messages[-1].content for request in requests]
    return [content for content in last if isinstance(content, Speech)]


@pytest.mark.browser
@pytest.mark.skipif(browsing.CHROMIUM is None, reason="chromium is not installed")
def test_the_page_shows_the_words_and_who_heard_them_and_the_checkpoint_gets_the_sound(
    served, visit, monkeypatch
):
    service, _, requests = served
    tab = visit(f"http://127.0.0.1:{served[1]}/")
    tab.page.wait_for_function("document.body.dataset.input === 'speech'")
    tab.page.locator(".rec-input").set_input_files(QUESTION)
    tab.wait("speaking", "done")
    asked = tab.page.locator("#chat .tr-user").first
    asked.wait_for()
    assert asked.locator(".tr-text").inner_text().lower().startswith("good morning")
    assert "Moonshine" in asked.locator(".tr-note").inner_text()
    assert asked.locator(".clip").count() == 1
    content = spoken(requests)[0]
    assert len(content.codes) > 40 and content.transcript.text.lower().startswith("good morning")
    tab.page.locator("#stop").click()
    tab.wait("stopped", "done")

    ear = (
        service._below._hearing._worker._recogniser
    )  # says of another language that it is not sure
    monkeypatch.setattr(ear, "transcribe", lambda wave: Heard("Knee how.", False))
    tab.page.locator(".rec-input").set_input_files(QUESTION)
    tab.page.wait_for_function("document.querySelectorAll('#chat .tr-user').length === 2")
    assert [content.transcript for content in spoken(requests)[1:]] == [None]
    last = tab.page.locator("#chat .tr-user").last
    assert last.locator(".clip").count() == 1 and "Knee" not in last.inner_text()
    assert tab.page.locator("#problem").inner_text() == "" and tab.problems == []
