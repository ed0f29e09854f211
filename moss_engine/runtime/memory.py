"""How much memory a device has to give, asked before anything large is read."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from moss_engine.api.errors import ConfigError
from moss_engine.models.config import ModelConfig

RESERVE_BYTES = 1 << 30
"""Left free for the codec, activations and the rest of the program."""
TO_FIT = "lower --kv-rows or free some"
TO_FIT_WITH_DTYPE = "lower --kv-rows, choose a smaller --dtype or free some"
"""Where weights are loaded in the number format that is asked for; an engine file has its own."""


def kv_row_bytes(model: ModelConfig, value_bytes: int = 2, *, int8: bool = False) -> int:
    """Keys and values of one row in all layers; in 8 bits each of a head with a scale of 16."""
    head_bytes = model.head_dim + 2 if int8 else model.head_dim * value_bytes
    return 2 * model.num_layers * model.num_key_value_heads * head_bytes


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device: for a CPU what system and container allow, None where that cannot be
    told."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [value for value in (_available_bytes(), _container_bytes()) if value is not None]
    return min(known, default=None)


def require_memory(
    device: torch.device, weight_bytes: int, kv_bytes: int, remedy: str = TO_FIT
) -> None:
    """Raise ConfigError with the numbers, and the remedy, unless weights, KV pool and a reserve fit
    into the device's free memory."""
    free = free_bytes(device)
    needed = weight_bytes + kv_bytes + RESERVE_BYTES
    if free is not None and needed > free:
        raise ConfigError(
            f"The model needs {_gib(needed)} on {device} (weights {_gib(weight_bytes)}, KV "
            f"{_gib(kv_bytes)}, reserve "
            f"{_gib(RESERVE_BYTES)}) and {_gib(free)} are free; {remedy}."
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _available_bytes() -> int | None:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _container_bytes() -> int | None:
    group = Path("/sys/fs/cgroup")
    files = (group / "memory.max", group / "memory.current")
    try:
        limit, used = (int(file.read_text(encoding="ascii")) for file in files)
    except (OSError, ValueError):  # no such group, or a limit of "max"
        return None
    return limit - used
