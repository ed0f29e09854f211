"""The endpoints for programs, as the page's options have them."""

from __future__ import annotations

from typing import Any

from moss_engine.api.info import ServiceInfo
from moss_engine.api.service import SpeechService
from moss_engine.endpoints.access import Access, read_keys
from moss_engine.endpoints.app import make_app
from moss_engine.endpoints.figures import Figures
from moss_engine.endpoints.server import Server
from moss_engine.endpoints.watched import WatchedService
from moss_engine.ui.config import PageConfig


def access_of(config: PageConfig) -> Access:
    """Who may call the endpoints; raises ConfigError for a file of keys that is none."""
    keys = read_keys(config.api_key_file) if config.api_key_file is not None else ()
    return Access(keys, open_to_all=config.local and config.auth is None)


def open_endpoints(
    service: SpeechService, info: ServiceInfo, model: str, access: Access, config: PageConfig
) -> tuple[WatchedService, Any]:
    """The service with its figures being noted, and the ASGI app that answers programs.

    Raises MissingPackageError or ConfigError for --mcp where it cannot be offered.
    """
    figures = Figures()
    watched = WatchedService(service, figures)
    server = Server(watched, info, model, access, figures)
    return watched, make_app(server, tool=config.mcp, origins=config.origins)
