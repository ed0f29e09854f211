"""A scripted page in Chromium, whose microphone hears a sentence over and over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.ui.config import PageConfig
from tests.audio.test_turn_taking import SAMPLE
from tests.ui.page_support import INFO, FakeService, free_port


@pytest.fixture(scope="session")
def serve():
    """Serves a service until the tests are over; gives its address."""
    from moss_engine.ui.server import launch

    pages = []

    def serve(service, **options) -> str:
        pages.append(launch(service, PageConfig(port=free_port(), **options)))
        return pages[-1].local_url

    yield serve
    for page in pages:
        page.close(verbose=False)


@pytest.fixture(scope="session")
def scripted():
    return FakeService(
        info=replace(INFO, run_ahead_s=100.0, max_text_chars=1000, max_speech_s=20.0)
    )


@pytest.fixture(scope="session")
def url(scripted, serve):
    return serve(scripted)


@pytest.fixture(scope="session")
def insecure_url(scripted, serve):
    """The same service by a name for which browsers give neither worklets nor microphones."""
    scripted.reset()  # it speaks before anybody visits
    return serve(scripted, host="0.0.0.0").replace("localhost", "speech.test")


@pytest.fixture
def service(scripted):
    scripted.reset()
    return scripted


@pytest.fixture(scope="session")
def microphone(tmp_path_factory):
    """The file that it plays."""
    browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
    path = tmp_path_factory.mktemp("microphone") / "question.wav"
    browsing.write_microphone(SAMPLE, path)
    return path


@pytest.fixture(scope="module")
def browser(microphone):
    """Of a module, as its driver keeps an event loop, in which no other test could start one."""
    from tests.ui import page_browser

    if page_browser.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    flags = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}",
        "--host-resolver-rules=MAP speech.test 127.0.0.1",
    )
    with page_browser.chromium(*flags) as browser:
        yield browser


@pytest.fixture
def visit(browser, url):
    """Opens tabs: of the scripted service, unless told otherwise."""
    from tests.ui.page_browser import Visit

    yield lambda at=url, **options: Visit(browser, at, **options)
    for context in browser.contexts:
        context.close()


@pytest.fixture
def tab(visit):
    return visit()
