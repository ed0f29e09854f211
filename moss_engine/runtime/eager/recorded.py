"""The decode step of the torch runtime on a CPU, as a recording of its operations."""

from __future__ import annotations

import torch
from torch import Tensor

from moss_engine.models.recording import Recording
from moss_engine.runtime.eager.gathered import DecodeRows, GatheredAttention, KVPool
from moss_engine.runtime.eager.packed import PackedNetwork


class RecordedDecode:
    """Decode rows of any number of sequences that attend in one call -> their logits.

    To record, two rows are run on the pool's first row, which must not be in use.
    """

    def __init__(self, network: PackedNetwork, pool: KVPool) -> None:
        self._pool = pool
        self._recordings = {
            text_logits: _record(network, pool, text_logits) for text_logits in (False, True)
        }

    def __call__(
        self, indices: Tensor, positions: Tensor, rows: DecodeRows, *, text_logits: bool
    ) -> tuple[Tensor, Tensor]:
        """See `PackedNetwork.forward`."""
        return self._recordings[text_logits](self._pool.tensor, indices, positions, *rows)


def _record(network: PackedNetwork, pool: KVPool, text_logits: bool) -> Recording:
    def forward(
        kv: Tensor, indices: Tensor, positions: Tensor, new: Tensor, live: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, num_rows = DecodeRows(new, live, mask), indices.shape[0]
        attention = GatheredAttention.of_decode_rows(KVPool(kv, pool.block_size), rows)
        return network.forward(
            indices, positions, attention, num_rows, None, text_logits=text_logits
        )

    two, live = torch.zeros(2, dtype=torch.long), torch.zeros(32, dtype=torch.long)
    mask = torch.zeros(2, 1, 1, 16, dtype=pool.dtype)
    return Recording(forward, (pool.tensor, two, two, two, live, mask))
