"""Serving the page: Gradio's settings, the guard in front of it, and the end on a signal."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import gradio as gr
import numpy as np
from starlette.middleware import Middleware

from moss_engine.config import LOOPBACK, EngineConfig
from moss_engine.errors import ConfigError, ContextError, EngineFaultError, MissingPackageError
from moss_engine.events import Failed
from moss_engine.request import Speech, Text
from moss_engine.service import Service
from moss_engine.ui import form
from moss_engine.ui.facts import Facts, facts_of
from moss_engine.ui.guard import Calls, Guard
from moss_engine.ui.handlers import Handlers
from moss_engine.ui.hearing import Hearing
from moss_engine.ui.own_voice import load_own_voices
from moss_engine.ui.page import HERE, TITLE, build_page
from moss_engine.ui.recorder import Recorder
from moss_engine.ui.theme import make_theme
from moss_engine.ui.voice_sample import VoiceSample
from moss_engine.voice_activity import Detector, load_detector

REHEARSAL_ROWS = 64
REHEARSAL_S = 30.0
REHEARSAL_HZ = 16_000  # one second of silence for the encoder
SMALL_KV_ROWS = 1024
SAME_SIGNAL_S = 1.0  # supervisors send a signal to a process and to its group: that is one signal
FAREWELL_S = 1.0  # for the last messages to leave after the last reply ended

KINDS = {gr.State: "state", gr.Textbox: "text", gr.Radio: "text", gr.Dropdown: "text", gr.Slider: "number",
         gr.Number: "number", gr.Checkbox: "flag", Recorder: "text",
         VoiceSample: "text"}


def calls_of(page: gr.Blocks) -> Calls:
    """What may be called from outside: the page's functions, without those that the server calls itself."""
    own = {index for index, fn in page.fns.items() if any(event == "unload" for _, event in fn.targets)}
    fns = {index: fn for index, fn in page.fns.items() if fn.fn and index not in own}
    return Calls(
        kinds={index: tuple(KINDS.get(type(block), "any") for block in fn.inputs) for index, fn in fns.items()},
        names={fn.api_name: index for index, fn in fns.items() if fn.api_name and fn.api_visibility == "public"},
        unqueued=frozenset(index for index, fn in fns.items() if not fn.queue),
    )


def launch(service: Service, config: EngineConfig) -> gr.Blocks:
    """Serve the page in a thread of its own; returns when it can be visited.

    Raises ConfigError for an address that is taken or not this machine's, for --share where no link can be made, and
    for a pool too small to speak with; EngineFaultError if the service cannot speak.
    """
    require_address(config.host, config.port)
    cache = Path(tempfile.mkdtemp(prefix="moss-speech-"))  # mode 0700, emptied by Gradio as files grow old
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    os.environ.update(GRADIO_TEMP_DIR=str(cache), GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
    facts, hearing = facts_of(service, config), None
    own_voices = load_own_voices(service.codec, config) if config.own_voice else None
    if facts.hears:
        detector, no_hands_free = hands_free()
        facts = replace(facts, no_hands_free=no_hands_free, own_voice=config.own_voice)
        hearing = Hearing(service.codec.encode, detector, max_s=config.max_speech_s)
    with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop, as in a notebook
        try:
            thread.submit(asyncio.run, rehearse(service, facts)).result()
        except ContextError:
            raise ConfigError(f"--kv-rows {config.kv_rows} is too small to speak with; give {SMALL_KV_ROWS} or more.") \
                from None
    handlers = Handlers(service, facts, run_ahead_s=config.run_ahead_s, wav_folder=cache, hearing=hearing,
                        own_voices=own_voices)
    page = build_page(handlers, max_sessions=config.max_sessions, max_waiting=config.max_waiting)
    hosts = frozenset(LOOPBACK) if config.host in LOOPBACK and not config.share else None
    guard = Middleware(Guard, calls=calls_of(page), ready=lambda: service.stats().ready, hosts=hosts,
                       hearing=hearing)
    try:
        page.launch(
            server_name=config.host, server_port=config.port, share=config.share, quiet=True,
            auth=_auth(config), auth_message=login_message(),
            prevent_thread_lock=True, theme=make_theme(), css_paths=[HERE / "page.css"], footer_links=[],
            favicon_path=HERE / "icon.png", show_error=False,
            max_file_size="8mb", allowed_paths=[], blocked_paths=[str(config.checkpoint)], enable_monitoring=False,
            run_history=False, strict_cors=True, ssr_mode=False, mcp_server=False, pwa=False, max_threads=40,
            state_session_capacity=200, app_kwargs={"middleware": [guard]},
        )
    except OSError:
        raise ConfigError(f"Port {config.port} is taken; give another with --port.") from None
    if config.share and not page.share_url:
        page.close(verbose=False)
        raise ConfigError("No public link could be made, as Gradio says above; check the network, or leave "
                          "--share away.")
    rehearse_gradio(page)
    return page


def require_address(host: str, port: int) -> None:
    """Raise ConfigError unless this machine can listen there."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"Port {port} is taken; give another with --port.") from None
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"{host} is no address of this machine; give --host 127.0.0.1 for visitors on it alone, "
                              "or 0.0.0.0 for all.") from None
        raise ConfigError(f"Port {port} of {host} cannot be opened ({error.strerror}); give another with --port.") \
            from None


def hands_free() -> tuple[Detector | None, str | None]:
    """What finds the end of a turn, or the sentence that says why it has to be ended by hand."""
    try:
        return load_detector(), None
    except MissingPackageError as error:
        return None, str(error)


async def rehearse(service: Service, facts: Facts) -> None:
    """Say a word to nobody: the first use of every part is slow, and a part that does not work should be known now."""
    values = {**form.defaults(facts), "max_rows": min(REHEARSAL_ROWS, facts.sampling.max_rows)}
    said: Text | Speech = Text("Hello.")
    if facts.hears:
        codes = service.codec.encode(np.zeros(REHEARSAL_HZ, np.float32), REHEARSAL_HZ)
        said = Speech(tuple(codes)) if facts.default_mode.input == "speech" else said
    async for event in service.stream(form.request_of(values, facts, 0, (), said, "rehearsal")):
        if isinstance(event, Failed):
            raise EngineFaultError(event.message)


def rehearse_gradio(page: gr.Blocks) -> bool:
    """Call the lightest function: Gradio imports at its first call what it can find, which may take a second.

    False if that was not let in, as behind a password.
    """
    stop = next(index for index, fn in page.fns.items() if fn.api_name == "stop")
    body = json.dumps({"fn_index": stop, "data": ["", None], "session_hash": "rehearsal"}).encode()
    call = Request(f"{page.local_url}gradio_api/run/stop", body, {"Content-Type": "application/json"})
    with contextlib.suppress(OSError):
        build_opener(ProxyHandler({})).open(call, timeout=REHEARSAL_S).close()
        return True
    return False


def serve_until_signal(page: gr.Blocks, service: Service) -> None:
    """Wait for SIGTERM or SIGINT, then let the open replies end and stop; a second signal ends the process at once."""
    asked = threading.Event()
    asked_s = 0.0

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked_s
        if asked.is_set() and time.monotonic() - asked_s > SAME_SIGNAL_S:
            os._exit(1)
        asked_s = asked_s or time.monotonic()
        asked.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, ask)
    while not asked.wait(3600.0):
        pass
    print("Stopping: open replies may end, new ones are refused.", flush=True)
    service.drain()
    time.sleep(FAREWELL_S)
    page.close(verbose=False)
    service.close()


def login_message() -> str:
    """HTML above the form for the password: the program's name, and the page's look, which Gradio leaves out there."""
    return f"<style>{(HERE / 'page.css').read_text(encoding='utf-8')}</style><b>{TITLE}</b>"


def _auth(config: EngineConfig) -> Any:
    if config.auth is None:
        return None
    user, _, password = config.auth.partition(":")
    return (user, password)
