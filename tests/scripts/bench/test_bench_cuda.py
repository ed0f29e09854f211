"""What a step of the full size must read, against the checkpoint's own tensors."""

from __future__ import annotations

import math

import pytest

from moss_engine.models.checkpoint import expected_tensors
from moss_engine.models.config import PUBLISHED
from scripts.bench.common.timing import Ceilings
from scripts.bench.lm.cuda import (
    CONTEXT_ROWS,
    decode_limit_ms,
    kv_row_bytes,
    step_bytes,
    step_parameters,
)

CEILINGS = Ceilings(4.5e12, 4e12, 7e14, 1e15)
LAST_TEXT_LAYER = f"model.text_block.layers.{PUBLISHED.num_modality_layers - 1}."


def is_read(name: str, *, text_logits: bool) -> bool:
    """Whether a step needs a tensor."""
    is_key_or_value = "k_proj" in name or "v_proj" in name
    return text_logits or not (
        name.startswith("text_lm_head")
        or (name.startswith(LAST_TEXT_LAYER) and not is_key_or_value)
    )


def matrices(text_logits: bool, blocks: tuple[str, ...] = ("",)) -> int:
    """Weights of the products of a step, of those tensors whose names begin with one of
    `blocks`."""
    return sum(
        math.prod(shape)
        for name, shape in expected_tensors(PUBLISHED).items()
        if len(shape) == 2
        and "embed" not in name
        and name.startswith(blocks)
        and is_read(name, text_logits=text_logits)
    )


@pytest.mark.parametrize("text_logits", [True, False])
def test_a_step_reads_the_weights_that_it_needs(text_logits):
    all_read, trunk = matrices(text_logits), matrices(text_logits, ("model.shared_block",))
    assert step_parameters(PUBLISHED, text_logits=text_logits) == all_read
    for float8, num_bytes in (
        ("none", 2 * all_read),
        ("all", all_read),
        ("trunk", 2 * all_read - trunk),
    ):
        assert step_bytes(PUBLISHED, float8, text_logits=text_logits) == num_bytes


def test_the_limit_of_a_step_is_that_of_what_it_reads():
    limits = [
        decode_limit_ms(PUBLISHED, CEILINGS, 32, CONTEXT_ROWS, text_logits=text_logits)
        for text_logits in (True, False)
    ]
    assert limits[0] > limits[1]
    seconds = (2 * matrices(True) + 32 * CONTEXT_ROWS * kv_row_bytes(PUBLISHED)) / 4.5e12
    assert limits[0] == pytest.approx(1e3 * seconds)
    assert decode_limit_ms(PUBLISHED, None, 32, CONTEXT_ROWS) is None
