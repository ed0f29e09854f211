"""How the kernels are launched: programmatic dependent launch where the device has it.

A kernel launched that way starts while the one before it is still finishing. It may read constants
(weights) at once, and everything else after `wait_for_previous`; so the memory system is not idle
between two kernels.
"""

from __future__ import annotations

import functools
import os

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def start_next(OVERLAP: tl.constexpr):
    """Let the next kernel load its constants, where this one has constants to wait for."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Programmatic launch: let the next kernel begin, then wait for the previous one."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@functools.cache
def overlaps() -> bool:
    """Whether kernels are launched dependently (compute capability 9.0 and later)."""
    return not interpreted() and torch.cuda.get_device_capability() >= (9, 0)


def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, statement by statement (its own switch for tests)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def options(num_warps: int, num_stages: int = 2) -> dict[str, int | bool]:
    """Launch options shared by all kernels; OVERLAP goes to the kernel, the rest to the compiler.
    """
    if interpreted():
        return {"OVERLAP": False}
    return {
        "OVERLAP": overlaps(),
        "launch_pdl": overlaps(),
        "num_warps": num_warps,
        "num_stages": num_stages
    }


def next_power_of_2(value: int) -> int:
    return triton.next_power_of_2(value)


@functools.cache
def num_multiprocessors() -> int:
    return 4 if interpreted() else torch.cuda.get_device_properties(
        torch.cuda.current_device()).multi_processor_count


@functools.cache
def shared_memory_bytes() -> int:
    """Shared memory of one program: 99 KB on GeForce cards, 163 KB on A100, 227 KB on H100."""
    if interpreted():
        return 1 << 30
    return torch.cuda.get_device_properties(
        torch.cuda.current_device()).shared_memory_per_block_optin
