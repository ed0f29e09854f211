"""The decode step of the torch runtime on a CPU, as a recording of its operations.

Of a step of a small model a third of the time is Python between operations, and Python's lock,
which the codec's thread waits for as well. A recording (TorchScript) runs the same operations in
the same order without either, on the network's own weights and KV pool.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from moss_engine.runtime.eager.gathered import DecodeRows, GatheredAttention, KVPool
from moss_engine.runtime.eager.packed import PackedNetwork

Forward = Callable[..., tuple[Tensor, Tensor]]


class RecordedDecode:
    """Decode rows of any number of sequences that attend in one call -> their logits.

    To record, two rows are run on the pool's first row, which must not be in use.
    """

    def __init__(self, network: PackedNetwork, pool: KVPool) -> None:
        self._pool = pool
        self._forwards = {
            text_logits: _record(network, pool, text_logits) for text_logits in (False, True)
        }

    def __call__(
        self, indices: Tensor, positions: Tensor, rows: DecodeRows, *, text_logits: bool
    ) -> tuple[Tensor, Tensor]:
        """See `PackedNetwork.forward`."""
        # an optimised recording would be made again for every length of a reply
        with torch.jit.optimized_execution(False):
            return self._forwards[text_logits](self._pool.tensor, indices, positions, *rows)


def _record(network: PackedNetwork, pool: KVPool, text_logits: bool) -> Forward:
    def forward(
        kv: Tensor, indices: Tensor, positions: Tensor, new: Tensor, live: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        # an input, as a recording drops what is written to a constant and not read again
        written = KVPool(kv, pool.block_size)
        attention = GatheredAttention.of_decode_rows(written, DecodeRows(new, live, mask))
        num_rows = indices.shape[0]
        return network.forward(
            indices, positions, attention, num_rows, None, text_logits=text_logits
        )

    two = torch.zeros(2, dtype=torch.long)
    live = torch.zeros(32, dtype=torch.long)
    example = (pool.tensor, two, two, two, live, torch.zeros(2, 1, 1, 16, dtype=pool.dtype))
    with torch.inference_mode(), warnings.catch_warnings():
        # that rows are decode rows alone holds for every run; torch would have newer tools used,
        # which compile at start-up
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return cast("Forward", torch.jit.trace(forward, example, check_trace=False))
