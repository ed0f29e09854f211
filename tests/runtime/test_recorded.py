"""The recorded decode step: the operations of the network, and what they write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moss_engine.api.tokens import Row
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import TorchRuntime, load_torch_runtime
from tests.runtime.runtime_contract import LIMITS

BLOCKS = LIMITS.num_blocks // 4


@pytest.fixture(params=["int8", torch.float32], ids=str)
def runtimes(
    request: pytest.FixtureRequest, tiny_checkpoint: Path
) -> tuple[TorchRuntime, TorchRuntime]:
    """With the recording, and without."""
    recorded, plain = (
        load_torch_runtime(
            tiny_checkpoint, LIMITS, device=torch.device("cpu"), dtype=request.param, threads=1
        )
        for _ in range(2)
    )
    plain._recorded = None
    return recorded, plain


def decode_step(lengths: list[int], text_logits: bool) -> ScheduledBatch:
    """One row each of sequences of so many rows before it."""
    return ScheduledBatch(
        tuple(
            ScheduledSequence(
                (Row(5 + i, 3),),
                length,
                tuple(range(i * BLOCKS, (i + 1) * BLOCKS)),
                True,
                text_logits,
            )
            for i, length in enumerate(lengths)
        )
    )


@pytest.mark.parametrize("text_logits", [False, True])
@pytest.mark.parametrize("lengths", [[0], [1, 2], [16, 3, 9]])
def test_a_recorded_step_is_the_network_s(
    runtimes: tuple[TorchRuntime, TorchRuntime], lengths: list[int], text_logits: bool
) -> None:
    recorded, plain = runtimes
    assert recorded._pool is not None and plain._pool is not None
    plain._pool.tensor.normal_()
    recorded._pool.tensor.copy_(plain._pool.tensor)
    batch = decode_step(lengths, text_logits)
    ours, theirs = recorded.forward(batch), plain.forward(batch)
    assert torch.equal(ours.audio, theirs.audio) and torch.equal(ours.text, theirs.text)
    assert torch.equal(recorded._pool.tensor, plain._pool.tensor)
