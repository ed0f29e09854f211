"""Serving the page: Gradio's settings, the guard in front of it, and the end on a signal."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
import numpy as np
from gradio.route_utils import CustomCORSMiddleware as CORS
from starlette.middleware import Middleware

from moss_engine.api.errors import ConfigError, ContextError, EngineFaultError
from moss_engine.api.events import Failed
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Speech, Text
from moss_engine.api.service import SpeechService, stream
from moss_engine.ui import form
from moss_engine.ui.audio_in.ingest import open_ingest
from moss_engine.ui.config import LOOPBACK, SWITCH_S, PageConfig, require_address
from moss_engine.ui.document import HERE, TITLE, make_document
from moss_engine.ui.door import Door
from moss_engine.ui.entrance.connections import bounded
from moss_engine.ui.entrance.guard import Call, Guard
from moss_engine.ui.entrance.login import Login
from moss_engine.ui.entrance.process import make_cache, start_emptying
from moss_engine.ui.entrance.upload import Upload
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.page import build_page, page_html
from moss_engine.ui.parts.words import CACHE_AGE_S, CACHE_CHECK_S
from moss_engine.ui.programs import Outboxes, access_of, open_endpoints, panel_of

MORE_CALLS = 32  # than the service has places: they are refused in its words
SMALL_KV_ROWS = 1024
WARM_UP_ROWS = 64
WARM_UP_HZ = 16_000  # one second of silence for the encoder
Result = TypeVar("Result")

SPACE_FRAMES = ("https://huggingface.co",)
LOGIN_CSS = """
.login { margin: 0; min-height: 100dvh; display: grid; place-items: center; color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
.login .panel { width: min(320px, calc(100vw - 80px)); padding: 28px; border-radius: 20px;
  border: 1px solid var(--line); background: var(--card); display: grid; gap: 14px; }
.login h1 { margin: 0; font-size: 19px; }
.login p { margin: 0; color: var(--warn); }
.login p:empty { display: none; }
.login label { display: grid; gap: 4px; }
.login label span { color: var(--quiet); }
.login input { font: inherit; padding: 9px 12px; border-radius: 10px; color: var(--ink);
  border: 1px solid var(--faint); background: var(--field); }
.login button { font: inherit; font-weight: 600; padding: 10px; border: 0; border-radius: 999px;
  background: var(--moss); color: var(--on-moss); cursor: pointer; }
.login :focus-visible { outline: 2px solid var(--moss); outline-offset: 2px; }
"""


def calls_of(page: gr.Blocks) -> dict[str, Call]:
    """What may be called from outside, by name."""
    told = page.get_api_info()["named_endpoints"]
    return {
        str(fn.api_name): Call(
            index, len(fn.inputs), _defaults_of(told[f"/{fn.api_name}"]["parameters"])
        )
        for index, fn in page.fns.items()
        if f"/{fn.api_name}" in told
    }


def _defaults_of(parameters: Sequence[Any]) -> tuple[Any, ...]:
    """Of the last parameters that have any, as clients are told them."""
    last = takewhile(lambda one: one["parameter_has_default"], reversed(parameters))
    return tuple(one["parameter_default"] for one in last)[::-1]


def launch(
    service: SpeechService,
    config: PageConfig,
    *,
    model: str = "moss-speech",
    blocked_paths: Sequence[Path] = (),
) -> gr.Blocks:
    """Serve the page in a thread of its own; returns when it can be visited. `model` is what
    programs call it by; `blocked_paths` are never served.

    Raises ConfigError for an address that is taken or not this machine's, for keys that are none,
    for a certificate that is none, for --share where no link can be made, for --mcp with a model
    that reads nothing aloud, and for a pool too small to speak with; MissingPackageError for --mcp
    without its package; EngineFaultError if the service cannot speak.
    """
    require_address(config.host, config.port)
    require_certificate(config)
    access = access_of(config)
    cache = make_cache()
    start_emptying(cache, CACHE_CHECK_S, CACHE_AGE_S)
    info = _run(service.describe())
    ingest = open_ingest(service, info) if info.hears else None
    try_out(service, info)
    service, endpoints = open_endpoints(service, info, model, access, config)
    handlers = Handlers(service, info, wav_folder=cache, ingest=ingest, figures=service.figures)
    page = build_page(handlers)

    async def state() -> str:
        return (await service.stats()).state

    css = (HERE / "page.css").read_text(encoding="utf-8") + LOGIN_CSS
    login = Login(config.auth, title=TITLE, css=css) if config.auth is not None else None
    shown = page_html(info, ingest and ingest.no_hands_free, panel_of(access, config, info, model))
    document = make_document(shown)
    guard = Middleware(
        Guard,
        calls=calls_of(page),
        state=state,
        hosts=frozenset(LOOPBACK) if config.local else None,
        frames=SPACE_FRAMES if "SPACE_ID" in os.environ else (),
        login=login,
        upload=Upload(ingest, handlers.sessions.secret) if ingest is not None else None,
        door=Door(handlers),
        files=document.files,
        rewrite=document.rewrite,
        endpoints=endpoints,
        is_session=Outboxes(page).knows,
    )
    calls = info.max_sessions + info.max_waiting + MORE_CALLS
    serve(page, config, gradio_settings(config, guard, blocked_paths, calls))
    return page


def try_out(service: SpeechService, facts: ServiceInfo) -> None:
    """Speak before anybody visits; raises ConfigError for a pool too small for that."""
    try:
        _run(warm_up(service, facts))
    except ContextError:
        raise ConfigError(
            f"--kv-rows {facts.kv_rows} is too small to speak with; give {SMALL_KV_ROWS} or more."
        ) from None


def serve(page: gr.Blocks, config: PageConfig, settings: dict[str, Any]) -> None:
    """Launch the page; raises ConfigError where that cannot be done."""
    sys.setswitchinterval(SWITCH_S)
    try:
        with bounded():
            page.launch(**settings)
    except OSError as error:
        raise ConfigError(
            f"The page cannot be served on port {config.port} ({error}); give another with --port, "
            "or start again when the machine is less busy: Gradio waits 5 s for it."
        ) from None
    stay_alone(page)
    if config.share and not page.share_url:
        page.close(verbose=False)
        raise ConfigError(
            "No public link could be made, as Gradio says above; check the network, or omit "
            "--share."
        )


async def warm_up(service: SpeechService, facts: ServiceInfo) -> None:
    """Speak twice before anybody visits: the first use of every part is slow, and a part that does
    not work should be known now."""
    values = {**form.defaults(facts), "max_rows": min(WARM_UP_ROWS, facts.sampling.max_rows)}
    said: Text | Speech = Text("Hello.")
    if facts.recogniser is not None:
        await service.transcribe_partial(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
    if facts.encodes:
        codes = await service.encode(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
        said = Speech(codes) if facts.default_mode.input == "speech" else said
    for _ in range(2):
        request = form.request_of(values, facts, 0, (), said, "warm-up")
        async for event in stream(service, request):
            if isinstance(event, Failed):
                raise EngineFaultError(event.message)


def stay_alone(page: gr.Blocks) -> None:
    """Take back the leave that Gradio gives to pages of other local servers: this page is asked by
    itself and by programs only."""
    page.app.user_middleware = [
        middleware for middleware in page.app.user_middleware if middleware.cls is not CORS
    ]
    page.app.middleware_stack = page.app.build_middleware_stack()


def gradio_settings(
    config: PageConfig, guard: Middleware, blocked_paths: Sequence[Path], calls: int
) -> dict[str, Any]:
    """Everything that `Blocks.launch` is told; it works on so many `calls` at a time."""
    return {
        "server_name": config.host,
        "server_port": config.port,
        "share": config.share,
        "ssl_certfile": config.tls_cert and str(config.tls_cert),
        "ssl_keyfile": config.tls_key and str(config.tls_key),
        "ssl_verify": False,  # of its own address, which nobody else can be
        "quiet": True,
        "prevent_thread_lock": True,
        "theme": gr.themes.Base(font="system-ui", font_mono="ui-monospace"),  # none from elsewhere
        "footer_links": [],
        "favicon_path": HERE / "icon.png",
        "show_error": False,
        "max_file_size": "8mb",
        "allowed_paths": [],
        "blocked_paths": [str(path) for path in (*blocked_paths, config.tls_key) if path],
        "enable_monitoring": False,
        "run_history": False,
        "strict_cors": True,
        "ssr_mode": False,
        "mcp_server": False,
        "num_workers": 0,  # they would give files to anybody, on ports of their own
        "pwa": False,
        "max_threads": calls,
        "state_session_capacity": 200,
        "app_kwargs": {"middleware": [guard]},
    }


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Wait for `work`; the caller may be inside an event loop, as in a notebook."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def require_certificate(config: PageConfig) -> None:
    """Raise ConfigError unless --tls-cert and --tls-key, where they are given, fit each other."""
    if config.tls_cert is None or config.tls_key is None:
        return
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(config.tls_cert, config.tls_key, password=lambda: "")
    except (OSError, ValueError):  # also ssl.SSLError
        raise ConfigError(
            f"--tls-cert {config.tls_cert} and --tls-key {config.tls_key} are no certificate and "
            "its key; give PEM files of both, the key without a password."
        ) from None
