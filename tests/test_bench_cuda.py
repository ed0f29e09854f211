"""What a step of the full size must read, against the checkpoint's own tensors."""

from __future__ import annotations

import math

import pytest

from moss_engine.models.checkpoint import expected_tensors
from moss_engine.runtime.base import TextBranch
from scripts.bench_cuda import CONTEXT_ROWS, PUBLISHED, decode_limit_ms, kv_row_bytes, step_bytes, step_parameters
from scripts.bench_timing import Ceilings

CEILINGS = Ceilings(4.5e12, 4e12, 7e14, 1e15)
LAST_TEXT_LAYER = f"model.text_block.layers.{PUBLISHED.num_modality_layers - 1}."
UNREAD = {
    TextBranch.SAMPLED: lambda name: False,
    TextBranch.FILLED: lambda name: name.startswith("text_lm_head") or (
        name.startswith(LAST_TEXT_LAYER) and "k_proj" not in name and "v_proj" not in name),
    TextBranch.DEFERRED: lambda name: name.startswith(("text_lm_head", "model.text_block")),
}


def matrices(text: TextBranch, blocks: tuple[str, ...] = ("",)) -> int:
    """Weights of the products of a step, of those tensors whose names begin with one of `blocks`."""
    return sum(math.prod(shape) for name, shape in expected_tensors(PUBLISHED).items()
               if len(shape) == 2 and "embed" not in name and name.startswith(blocks) and not UNREAD[text](name))


@pytest.mark.parametrize("text", TextBranch)
def test_a_step_reads_the_weights_that_it_needs(text):
    assert step_parameters(PUBLISHED, text) == matrices(text)
    assert step_bytes(PUBLISHED, "none", text) == 2 * matrices(text)
    assert step_bytes(PUBLISHED, "all", text) == matrices(text)
    assert step_bytes(PUBLISHED, "trunk", text) == 2 * matrices(text) - matrices(text, ("model.shared_block",))


def test_the_limit_of_a_step_is_that_of_what_it_reads():
    limits = [decode_limit_ms(PUBLISHED, CEILINGS, 32, CONTEXT_ROWS, text=text) for text in TextBranch]
    assert limits == sorted(limits, reverse=True) and len(set(limits)) == 3
    seconds = (2 * matrices(TextBranch.SAMPLED) + 32 * CONTEXT_ROWS * kv_row_bytes(PUBLISHED)) / 4.5e12
    assert limits[0] == pytest.approx(1e3 * seconds)
    assert decode_limit_ms(PUBLISHED, None, 32, CONTEXT_ROWS) is None
