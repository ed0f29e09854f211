"""Chromium on the page, for benches: the page tests' browser, and the page in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from moss_engine.api.errors import MissingPackageError
from moss_engine.config import REPO_ROOT
from moss_engine.ui.config import PageConfig


def tools() -> tuple[Any, Any]:
    """The page tests' browser and scripted service; raises MissingPackageError without them."""
    sys.path.insert(0, str(REPO_ROOT))
    try:
        browsing = import_module("tests.ui.page_browser")
        support = import_module("tests.ui.page_support")
    except ImportError as error:
        raise MissingPackageError(
            f"{error.name} is not installed; run: bash scripts/test.sh --version"
        ) from None
    if browsing.CHROMIUM is None:
        raise MissingPackageError(
            "Chromium is not installed; on Debian and Ubuntu: apt-get install chromium"
        )
    return browsing, support


@contextmanager
def served(service: Any, *, scripted: bool = False) -> Iterator[str]:
    """The page in front of a service; its address. Both are ended afterwards."""
    from moss_engine.ui.server import launch

    if not scripted:
        service.start()
    page = launch(service, PageConfig(port=tools()[1].free_port()))
    try:
        yield str(page.local_url)
    finally:
        page.close(verbose=False)
        if not scripted:
            service.close()
