"""What the listeners of `scripts.bench.cluster.gpus` ask."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from scripts.sentences import sentence


def make_request(
    args: argparse.Namespace, info: ServiceInfo, crowd: int, listener: int, number: int
) -> Request:
    """One of this process; no two have the same id. At full size every reply has `args.codes`."""
    name, seed = f"{os.getpid()}-{crowd}-{listener}", 1000 * listener + number
    sampling = replace(info.sampling, seed=seed)
    if args.checkpoint is None:
        sampling = replace(sampling, max_rows=args.codes, min_rows=args.codes + 2)
    messages = (Message("user", Text(sentence(seed))),)
    return Request(f"{name}-{number}", name, messages, info.default_mode.name, sampling)
