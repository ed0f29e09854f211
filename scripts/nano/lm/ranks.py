"""Data-parallel training: one process a GPU, gradients averaged over all of them.

Started once for every GPU with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does;
without them there is one process and nothing to average.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """This process's place among all; rank 0 keeps the clock, shows figures and saves."""

    def __init__(self, device: torch.device):
        self.rank, self.count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self.count > 1:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
            self.hosts = dist.new_group(backend="gloo")

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def average(self, gradients: list[Tensor]) -> None:
        if self.count == 1:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.div_(self.count).split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients)])

    def agree(self, progress: float, running: bool) -> tuple[float, bool]:
        """What rank 0 says, so that all do the same steps."""
        if self.count == 1:
            return progress, running
        said = torch.tensor([progress, float(running)], dtype=torch.float64)
        dist.broadcast(said, 0, group=self.hosts)  # pyright: ignore[reportArgumentType]
        return float(said[0]), bool(said[1])

    def close(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()
