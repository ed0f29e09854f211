"""The program `moss-speech-live`, which app.py runs, too: options -> service -> page."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import getproxies_environment

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.options import add_options, from_args
from moss_engine.ui.config import PageConfig, require_address
from moss_engine.ui.entrance.process import BROKEN_OFF, breakable, make_cache, serve_until_signal

if TYPE_CHECKING:
    import gradio as gr

    from moss_engine.talk.service import TalkingService

LOG_BYTES = 10 * 1024 * 1024


def parse_configs() -> tuple[EngineConfig, TalkConfig, ClusterConfig, PageConfig]:
    """The options of the command line; in a Hugging Face Space the page is open to all hosts."""
    parser = argparse.ArgumentParser(
        description="MOSS-Speech Live: type a sentence, hear it while it is being made."
    )
    for config in (EngineConfig, TalkConfig, ClusterConfig, PageConfig):
        add_options(parser, config)
    if "SPACE_ID" in os.environ:
        parser.set_defaults(host="0.0.0.0")
    args = parser.parse_args()
    return (
        from_args(EngineConfig, args),
        from_args(TalkConfig, args),
        from_args(ClusterConfig, args),
        from_args(PageConfig, args),
    )


def open_log(path: Path) -> None:
    """Log what the service says about replies to a file, which is rotated when it is full."""
    try:
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--reply-log {path} cannot be written ({error.strerror}); name another file."
        ) from None
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("moss_engine.service.reply_log")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)


def shield_gradio(page: PageConfig) -> None:
    """Remove proxy variables that would keep Gradio, which is not yet imported, from starting.

    Gradio checks its own page by an HTTP client that uses the environment's proxies, and that
    cannot be imported when these include SOCKS. Only the link of --share needs a proxy: raises
    ConfigError if that is wanted and a SOCKS proxy is named.
    """
    os.environ.pop("GRADIO_DEBUG", None)  # its launch would wait for ever
    os.environ["no_proxy"] = f"localhost,{page.host.strip('[]')}" if page.share else "*"
    proxies = getproxies_environment().values()
    if page.share and any(proxy.lower().startswith("socks") for proxy in proxies):
        raise ConfigError(
            "A public link cannot be made through a SOCKS proxy, as the environment names one; "
            "unset ALL_PROXY and all_proxy, or omit --share."
        )


def keep_nohup() -> None:
    """Go on ignoring SIGHUP if this process was started so, as by `nohup`, even once a handler for
    it is installed."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def main() -> None:
    engine, talk, cluster, page = parse_configs()
    keep_nohup()
    with breakable() as check:
        service, blocks = start(engine, talk, cluster, page, check)
        serve_until_signal(blocks, service)
        service.close()


def start(
    engine: EngineConfig,
    talk: TalkConfig,
    cluster: ClusterConfig,
    page: PageConfig,
    check: Callable[[], None],
) -> tuple[TalkingService, gr.Blocks]:
    """Start the service and open its page; `check` is called wherever the start may be ended."""
    if sys.stderr.isatty():
        print(f"Loading {engine.checkpoint.name}.", file=sys.stderr, flush=True)
    if page.reply_log is not None:
        open_log(page.reply_log)
    shield_gradio(page)
    make_cache()  # Gradio makes folders in it, else in one that may be another user's
    from moss_engine.build import build_talking_service
    from moss_engine.heap import freeze_gc_heap, tune_malloc
    from moss_engine.ui.server import launch

    check()
    require_address(page.host, page.port)
    tune_malloc()
    if cluster.is_wanted:
        from moss_engine.cluster.build import build_cluster_service

        service = build_cluster_service(engine, talk, cluster, clones_voices=page.own_voice)
    else:
        service = build_talking_service(engine, talk, clones_voices=page.own_voice)
    check()
    service.start()
    name, blocked_paths = engine.checkpoint.resolve().name, (engine.checkpoint,)
    try:
        blocks = launch(service, page, model=name, blocked_paths=blocked_paths)
    except BaseException:
        service.close()  # its threads must not outlive the interpreter
        raise
    freeze_gc_heap()
    runtime = asyncio.run(service.describe()).runtime
    print(
        f"Serving {engine.checkpoint.name} at {blocks.share_url or blocks.local_url} "
        f"({runtime.name} {runtime.version}, {runtime.device}, {runtime.dtype}). "
        "Press Ctrl+C to stop.",
        flush=True,
    )
    return service, blocks


def run() -> None:
    """The program `moss-speech-live`; an error ends it in a sentence."""
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # just before there is anything to end
        sys.exit(BROKEN_OFF)
