"""Chromium on the page, for benches: the page tests' browser, and the page in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moss_engine.api.errors import MissingPackageError
from moss_engine.ui.config import PageConfig

try:
    from tests.ui import page_browser, page_support
except ImportError as error:
    raise MissingPackageError(
        f"{error.name} is not installed; run: bash scripts/test.sh --version"
    ) from None

__all__ = ["page_browser", "page_support", "served"]


@contextmanager
def served(service: Any, *, scripted: bool = False) -> Iterator[str]:
    """Serve the page in front of a service and give its address; both end with the block. Raises
    MissingPackageError where there is no Chromium to visit it."""
    from moss_engine.ui.server import launch

    if page_browser.CHROMIUM is None:
        raise MissingPackageError(
            "Chromium is not installed; on Debian and Ubuntu: apt-get install chromium"
        )
    if not scripted:
        service.start()
    page = launch(service, PageConfig(port=page_support.free_port()))
    try:
        yield str(page.local_url)
    finally:
        page.close(verbose=False)
        if not scripted:
            service.close()
