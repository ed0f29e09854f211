"""MOSS-Speech Live: options -> service -> page. `python app.py --help` lists the options."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.config import ClusterConfig, EngineConfig, TalkConfig
from moss_engine.options import add_options, from_args
from moss_engine.ui.config import PageConfig

LOG_BYTES = 10 * 1024 * 1024


def parse_configs(
    arguments: list[str] | None = None,
) -> tuple[EngineConfig, TalkConfig, ClusterConfig, PageConfig]:
    """The options of the command line; a Hugging Face Space wants to be reached from outside."""
    parser = argparse.ArgumentParser(
        description="MOSS-Speech Live: type a sentence, hear it while it is being made."
    )
    for config in (EngineConfig, TalkConfig, ClusterConfig, PageConfig):
        add_options(parser, config)
    if "SPACE_ID" in os.environ:
        parser.set_defaults(host="0.0.0.0")
    args = parser.parse_args(arguments)
    return (
        from_args(EngineConfig, args),
        from_args(TalkConfig, args),
        from_args(ClusterConfig, args),
        from_args(PageConfig, args),
    )


def open_log(path: Path) -> None:
    """Write the service's lines about replies to a file, which is renamed when it is full."""
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


def main() -> None:
    engine, talk, cluster, page = parse_configs()
    if sys.stderr.isatty():
        print(f"Loading {engine.checkpoint.name}.", file=sys.stderr, flush=True)
    if page.reply_log is not None:
        open_log(page.reply_log)
    from scripts.install_vocoder import ensure_vocoder_package

    ensure_vocoder_package()
    from moss_engine.build import build_talking_service
    from moss_engine.ui.entrance.ending import serve_until_signal
    from moss_engine.ui.server import launch

    if cluster.is_wanted:
        from moss_engine.cluster.build import build_cluster_service

        service = build_cluster_service(engine, talk, cluster, clones_voices=page.own_voice)
    else:
        service = build_talking_service(engine, talk, clones_voices=page.own_voice)
    service.start()
    blocks = launch(
        service, page, model=engine.checkpoint.resolve().name, blocked_paths=(engine.checkpoint,)
    )
    runtime = asyncio.run(service.describe()).runtime
    print(
        f"Serving {engine.checkpoint.name} at {blocks.share_url or blocks.local_url} "
        f"({runtime.name} {runtime.version}, {runtime.device}, {runtime.dtype}). "
        "Press Ctrl+C to stop.",
        flush=True,
    )
    serve_until_signal(blocks, service)
    service.close()


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # before there was anything to end
        sys.exit(130)
