"""A scripted service behind the endpoints."""

from __future__ import annotations

import pytest

from tests.endpoints.endpoint_support import running
from tests.ui.page_support import FakeService, Script


@pytest.fixture(scope="module")
def served():
    service = FakeService()
    with running(service) as url:
        yield service, url


@pytest.fixture
def service(served):
    served[0].reset(Script(seconds=1.2, first_s=0.02, rtf=0.02))
    return served[0]


@pytest.fixture
def url(served, service):
    return served[1]
