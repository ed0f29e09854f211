"""A scripted page in Chromium, for tests that need nothing else of either."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.ui.config import PageConfig
from tests.ui.page_support import INFO, FakeService, free_port


@pytest.fixture(scope="module")
def served():
    from moss_engine.ui.server import launch

    service = FakeService(info=replace(INFO, run_ahead_s=100.0, max_text_chars=1000))
    port = free_port()
    page = launch(service, PageConfig(port=port))
    yield service, port
    page.close(verbose=False)


@pytest.fixture
def service(served):
    served[0].reset()
    return served[0]


@pytest.fixture(scope="module")
def browser():
    browsing = pytest.importorskip("tests.ui.page_browser", reason="playwright is not installed")
    if browsing.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser, served):
    from tests.ui.page_browser import Visit

    visits = []

    def make(**options) -> Visit:
        visits.append(Visit(browser, f"http://127.0.0.1:{served[1]}/", **options))
        return visits[-1]

    yield make
    for opened in visits:
        opened.close()


@pytest.fixture
def tab(visit):
    return visit()
