"""The rows that the language model is trained on: chunks, layout, batches, attention."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_engine.api.tokens import (
    Modality,
    Row,
    initial_modality,
    is_stop,
    next_modality,
    spoken_codes,
)
from moss_engine.models.network import MossSpeech, causal_attend
from scripts.nano.lm.batches import IGNORE, WIDTHS, Shape, assemble
from scripts.nano.lm.sequences import (
    AUDIO_TARGET,
    NO_TARGET,
    TEXT_TARGET,
    Chunk,
    cut_chunks,
    lay_out,
    nano_config,
)
from scripts.nano.train_lm import cell_attention

IDS = nano_config().special
PROMPT = [0, 30, 31, 1]


@st.composite
def utterances(draw: st.DrawFn) -> tuple[list[str], list[int], int]:
    """Words, their starts in codes (first 0, not falling, all inside), and the number of codes."""
    word = st.sampled_from(["a", "the", "house,", "is", "old.", "lighthouse", "I"])
    words = draw(st.lists(word, min_size=1, max_size=30))
    num_codes = draw(st.integers(1, 200))
    starts = sorted(
        draw(st.lists(st.integers(0, num_codes - 1), min_size=len(words), max_size=len(words)))
    )
    return words, [0, *starts[1:]], num_codes


@given(utterances(), st.integers(0, 1000))
@settings(deadline=None)
def test_layout_follows_the_token_machine(
    utterance: tuple[list[str], list[int], int], seed: int
) -> None:
    words, starts, num_codes = utterance
    codes = np.arange(num_codes) % IDS.num_codes
    chunks = cut_chunks(words, starts, num_codes, random.Random(seed))
    assert all(chunk.first_code == starts[chunk.first_word] for chunk in chunks)
    assert all(c.first_word < c.end_word and c.first_code < c.end_code for c in chunks)
    word_ids = [[40 + i, 41 + i] for i in range(len(words))]
    laid = lay_out(PROMPT, word_ids, codes, chunks, IDS)
    rows = [Row(*row) for row in laid.rows.tolist()]
    assert rows[:4] == [Row(i, IDS.audio_pad) for i in PROMPT]
    assert laid.target[:3].tolist() == [NO_TARGET] * 3 and laid.target[-1] == NO_TARGET
    modality = initial_modality(rows[3], IDS)
    for i in range(3, len(rows) - 1):
        modality = next_modality(modality, rows[i], IDS)
        assert laid.target[i] == (AUDIO_TARGET if modality is Modality.AUDIO else TEXT_TARGET)
        assert (rows[i + 1].text == IDS.modality_pad) == (modality is Modality.AUDIO)
    assert is_stop(rows[-1], IDS) and not any(is_stop(row, IDS) for row in rows[4:-1])
    assert spoken_codes(rows[4:], IDS) == codes.tolist()
    said = [row.text for row in rows[4:] if row.text >= 40]
    assert said == [i for pieces in word_ids for i in pieces]


def test_batch_keeps_sequences_apart() -> None:
    laid = [
        lay_out(PROMPT, [[40 + k], [50]], np.full(9, k), [Chunk(0, 2, 0, 9)], IDS) for k in range(3)
    ]
    shape = Shape(cells=(1, 2, *[0] * (len(WIDTHS) - 2)), text_targets=32, audio_targets=64)
    groups = [[laid[0]], [laid[1], laid[2]], *[[] for _ in WIDTHS[2:]]]
    batch = assemble(groups, shape, IDS.text_pad, IDS.audio_pad)
    assert batch.rows.shape == (shape.num_rows, 2) == (64 + 2 * 96, 2)
    for start, sequence in zip((0, 64, 160), laid):
        assert (batch.rows[start : start + len(sequence.rows)] == sequence.rows).all()
    for at, target, channel, kind in (
        (batch.text_at, batch.text_target, 0, TEXT_TARGET),
        (batch.audio_at, batch.audio_target, 1, AUDIO_TARGET),
    ):
        used = target != IGNORE
        assert used.sum() == sum((sequence.target == kind).sum() for sequence in laid)
        assert (batch.rows[at[used] + 1, channel] == target[used]).all()


@torch.inference_mode()
def test_cells_attend_as_sequences_alone() -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(
        nano_config(), hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_shared_layers=1, num_modality_layers=1,
    )  # fmt: skip
    model = MossSpeech(config).eval()
    shape = Shape(cells=(2, 1, *[0] * (len(WIDTHS) - 2)), text_targets=1, audio_targets=1)
    rows = torch.stack(
        [torch.randint(5, 1024, (shape.num_rows,)), torch.randint(0, 4096, (shape.num_rows,))], -1
    )
    positions = torch.cat([torch.arange(64), torch.arange(64), torch.arange(96)])
    together = model(rows, positions, cell_attention(shape, torch.float32))
    for start, width in ((0, 64), (64, 64), (128, 96)):
        here = slice(start, start + width)
        alone = model(rows[here], positions[here], causal_attend)
        torch.testing.assert_close(together.text[here], alone.text)
        torch.testing.assert_close(together.audio[here], alone.audio)
