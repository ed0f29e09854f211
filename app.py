"""MOSS-Speech Live: options -> service -> page -> launch. `python app.py --help` lists the options."""

from __future__ import annotations

import argparse
import os
import sys

from moss_engine.config import EngineConfig, add_options, config_from_args
from moss_engine.errors import MossError


def parse_config(arguments: list[str] | None = None) -> EngineConfig:
    """The options of the command line; a Hugging Face Space wants to be reached from outside."""
    parser = argparse.ArgumentParser(description="MOSS-Speech Live: type a sentence, hear it while it is being made.")
    add_options(parser)
    if "SPACE_ID" in os.environ:
        parser.set_defaults(host="0.0.0.0")
    return config_from_args(parser.parse_args(arguments))


def main() -> None:
    config = parse_config()
    if sys.stderr.isatty():
        print(f"Loading {config.checkpoint.name}.", file=sys.stderr, flush=True)
    from scripts.install_vocoder import ensure_vocoder_package

    ensure_vocoder_package()
    from moss_engine.build import build_service
    from moss_engine.ui.server import launch, serve_until_signal

    service = build_service(config)
    service.start()
    page = launch(service, config)
    info = service.engine.runtime.info
    print(f"{page.share_url or page.local_url} speaks with {config.checkpoint.name}: {info.name} {info.version}, "
          f"{info.device}, {info.dtype}. Press Ctrl+C to stop.", flush=True)
    serve_until_signal(page, service)


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # before there was anything to end
        sys.exit(130)
