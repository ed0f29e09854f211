"""Weight and bias of one operation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Affine:
    """weight [outputs, inputs], bias [outputs]; of a norm both [size]"""

    weight: Tensor
    bias: Tensor
