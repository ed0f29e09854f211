"""What the stages share: their options, the device, and the learning rate."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from moss_engine.runtime.make import resolve_device
from scripts.command import make_parser


def stage_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the option --work, which every stage has."""
    parser = make_parser(f"nano.{name}", description)
    parser.add_argument("--work", type=Path, required=True, help="work folder of all stages")
    return parser


def begin_training(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, torch.device]:
    """Read the options of a stage that trains, set its seed, and choose the device."""
    parser.add_argument("--seed", type=int, default=0, help="of first weights and batches")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N; auto is a GPU, where there is one"
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    return args, resolve_device(args.device)


def one_cycle(progress: float, peak: float, *, warm_up: float) -> float:
    """Learning rate: a linear rise over `warm_up` of the training, then a cosine down to 1 % of the
    peak."""
    floor = 0.01
    if progress < warm_up:
        return peak * max(floor, progress / warm_up)
    fall = (progress - warm_up) / (1 - warm_up)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * fall)) / 2)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
