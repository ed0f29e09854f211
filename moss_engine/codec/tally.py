"""How much a codec's runs had to do: the products of its layers, counted, and the weights read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass
class Tally:
    """Of all runs so far: `operations`, two for each multiplication with its addition, of
    convolutions and matrices, and `weight_bytes`, which a run reads once for all its replies;
    `size_bytes` are the weights that there are.

    Written by the thread that runs the codec.
    """

    size_bytes: int = 0
    operations: float = 0.0
    weight_bytes: float = 0.0

    def add(self, cost: Cost, steps: int, replies: int = 1) -> None:
        """One run over so many steps of each of `replies`."""
        self.note(replies * cost.operations(steps), cost.weight_bytes)

    def note(self, operations: float, weight_bytes: float) -> None:
        """One run."""
        self.operations += operations
        self.weight_bytes += weight_bytes


@dataclass(frozen=True)
class Cost:
    """Operations of a network's run for one reply: `fixed`, and `per_step` for each of its steps;
    and the bytes of its weights."""

    per_step: float
    fixed: float
    weight_bytes: int

    def operations(self, steps: int) -> float:
        """Of a run for one reply."""
        return self.fixed + steps * self.per_step


def cost_of(run: Callable[[int], object], few: int, many: int, *weights: Tensor) -> Cost:
    """The cost of `run(steps)`, counted for two numbers of steps: a network that goes over its
    input step by step does as much more for each step more."""
    base = operations_of(lambda: run(few))
    per_step = (operations_of(lambda: run(many)) - base) / (many - few)
    num_bytes = sum(weight.nbytes for weight in weights)
    return Cost(per_step, base - few * per_step, num_bytes)


def tensors_of(weights: Any) -> Iterator[Tensor]:
    """Every tensor in dataclasses and tuples of weights."""
    if isinstance(weights, Tensor):
        yield weights
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from tensors_of(getattr(weights, field.name))
    elif isinstance(weights, tuple):
        for part in weights:
            yield from tensors_of(part)


class Tallied:
    """A network's run over [replies, ..., steps], noted in a tally."""

    def __init__(self, run: Callable[[Tensor], Tensor], cost: Cost, tally: Tally) -> None:
        self._run, self._cost, self._tally = run, cost, tally

    def __call__(self, x: Tensor) -> Tensor:
        self._tally.add(self._cost, x.shape[-1], x.shape[0])
        return self._run(x)


def operations_of(run: Callable[[], object]) -> float:
    """Multiplications and additions of the convolutions and matrix products in a run, which calls
    them from Python: no recording and no graph."""
    with torch.inference_mode(), _Counting() as counting:
        run()
    return counting.operations


class _Counting(TorchFunctionMode):
    """Sees every function of PyTorch that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        count = PRODUCTS.get(getattr(func, "__name__", ""))
        if count is not None:
            self.operations += 2 * count(args, result)
        return result


def _convolution(args: Sequence[Tensor], result: Tensor) -> int:
    """Each weight of a filter meets every place of the output."""
    return args[1].numel() * result.shape[0] * math.prod(result.shape[2:])


def _transposed(args: Sequence[Tensor], _result: Tensor) -> int:
    """Each weight of a filter meets every place of the input."""
    return args[1].numel() * args[0].shape[0] * math.prod(args[0].shape[2:])


def _product(args: Sequence[Tensor], result: Tensor) -> int:
    return result.numel() * args[0].shape[-1]


def _attention(args: Sequence[Tensor], result: Tensor) -> int:
    """Queries meet keys, and what comes of it values."""
    return (args[0].numel() + result.numel()) * args[1].shape[-2]


PRODUCTS: Mapping[str, Callable[[Sequence[Tensor], Tensor], int]] = {
    **dict.fromkeys(("conv1d", "conv2d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d"), _transposed),
    **dict.fromkeys(("linear", "matmul", "__matmul__", "mm", "bmm"), _product),
    "scaled_dot_product_attention": _attention,
}
