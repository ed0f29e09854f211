"""Recordings of functions that run on a CPU again and again, so that they run without Python.

A run of many small operations spends a third of its time in Python and holds Python's lock, for
which the program's other threads wait. A recording (TorchScript) runs the same operations in the
same order without either.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor


class Recording:
    """Repeats with other tensors what `function` does with `example`.

    The tensors may have other sizes unless an `if` of the function depends on them. Whatever the
    function writes to must be among the tensors; all else is constant.
    """

    def __init__(self, function: Callable[..., Any], example: tuple[Tensor, ...]) -> None:
        with torch.inference_mode(), warnings.catch_warnings():
            # that no `if` depends on a size is the caller's word; and torch recommends newer tools,
            # which compile at start-up
            warnings.simplefilter("ignore")
            recorded = torch.jit.trace(function, example, check_trace=False)
        self._run = cast("Callable[..., Any]", recorded)

    def __call__(self, *tensors: Tensor) -> Any:
        # an optimised recording would be made again for every new size
        with torch.jit.optimized_execution(False):
            return self._run(*tensors)
