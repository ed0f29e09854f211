"""What the stages share: their options, the device, and the learning rate."""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.runtime.make import resolve_device
from scripts.command import make_parser

Result = TypeVar("Result")


def stage_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the work folder, which every stage has."""
    parser = make_parser(f"nano.{name}", description)
    parser.add_argument("--work", type=Path, required=True, help="work folder of all stages")
    return parser


def begin_training(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, torch.device]:
    """The arguments of a stage that trains, from its seed on, and the device."""
    parser.add_argument("--seed", type=int, default=0, help="of first weights and batches")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N; auto is a GPU, where there is one"
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    return args, resolve_device(args.device)


def make_shards(
    folder: Path,
    prompts: list[dict[str, Any]],
    per_shard: int,
    make: Callable[[tuple[Path, int, list[dict[str, Any]]]], Result],
    processes: int,
) -> Iterator[Result]:
    """Have so many processes make the numbered shards of a folder that is not there yet; what
    `make` gives for each. Raises CheckpointError."""
    if folder.exists():
        raise CheckpointError(f"{folder} is there already; remove it to have it made anew.")
    folder.mkdir()
    count = -(-len(prompts) // per_shard)
    tasks = [(folder, k, prompts[k::count]) for k in range(count)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(make, tasks)


def one_cycle(progress: float, peak: float, *, warm_up: float, floor: float = 0.01) -> float:
    """Learning rate: a linear rise over `warm_up` of the training, then a cosine down to `floor` of
    the peak."""
    if progress < warm_up:
        return peak * max(floor, progress / warm_up)
    fall = (progress - warm_up) / (1 - warm_up)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * fall)) / 2)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
