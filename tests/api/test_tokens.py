"""The token machine: the rules of the published generation loop."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_engine.api.tokens import (
    Modality,
    Row,
    SpecialIds,
    code_of,
    effective_id,
    initial_modality,
    is_audio_row,
    is_stop,
    next_modality,
    settle_row,
)

MOSS = SpecialIds(
    sosp=151646, eosp=16384, modality_pad=151667, audio_pad=512, im_end=151645, text_pad=151643
)
PAD = MOSS.modality_pad


def run(
    prompt_end: Row, samples: list[Row], ids: SpecialIds = MOSS
) -> tuple[list[Row], list[Modality]]:
    """The machine over a list of raw samples of both heads, as the generation loop drives it."""
    last, modality = prompt_end, initial_modality(prompt_end, ids)
    rows, modalities = [], []
    for sample in samples:
        modality = next_modality(modality, last, ids)
        last = settle_row(modality, sample, ids)
        rows.append(last)
        modalities.append(modality)
    return rows, modalities


def test_an_ignored_eosp_in_a_sosp_row_does_not_close_the_span():
    _, modalities = run(Row(198, 512), [Row(MOSS.sosp, MOSS.eosp), Row(0, 3)])
    assert modalities == [Modality.TEXT, Modality.AUDIO]


def test_after_a_prompt_that_ends_in_speech_the_reply_begins_in_the_mode_of_its_last_row():
    assert run(Row(PAD, 3), [Row(0, 4)])[1] == [Modality.AUDIO]
    assert run(Row(PAD, MOSS.eosp), [Row(40, 4)])[1] == [Modality.TEXT]


@pytest.mark.parametrize(
    ("row", "stops"),
    [
        (Row(MOSS.im_end, 3), True),
        (Row(MOSS.text_pad, 3), True),
        (Row(PAD, MOSS.eosp), False),
        (Row(40, 3), False),
    ],
)
def test_stop_rows(row: Row, stops: bool):
    assert is_stop(row, MOSS) is stops


def test_the_pad_that_is_a_legal_code_counts_by_its_row():
    assert code_of(Row(PAD, 512), MOSS) == 512
    assert code_of(Row(40, 512), MOSS) is None
    assert code_of(Row(PAD, MOSS.eosp), MOSS) is None


IDS = SpecialIds(sosp=1, eosp=6, modality_pad=2, audio_pad=7, im_end=3, text_pad=4)
ROWS = st.builds(Row, st.integers(0, 9), st.integers(0, 8))


@given(ROWS, ROWS)
def test_rows_are_equal_to_the_network_exactly_when_their_effective_ids_are(a: Row, b: Row):
    same = (is_audio_row(a, IDS), a[is_audio_row(a, IDS)]) == (
        is_audio_row(b, IDS),
        b[is_audio_row(b, IDS)],
    )
    assert (effective_id(a, IDS) == effective_id(b, IDS)) is same


@given(ROWS, st.lists(ROWS, min_size=1, max_size=30))
def test_every_row_is_read_in_the_mode_it_was_sampled_in(prompt_end: Row, samples: list[Row]):
    samples = [Row(5 if row.text == IDS.modality_pad else row.text, row.audio) for row in samples]
    rows, modalities = run(prompt_end, samples, IDS)
    assert [is_audio_row(row, IDS) for row in rows] == [m is Modality.AUDIO for m in modalities]
    changes = [
        (row, before)
        for row, (before, after) in zip(rows[:-1], pairwise(modalities), strict=True)
        if before is not after
    ]
    assert all(
        row.text == IDS.sosp if before is Modality.TEXT else row.audio == IDS.eosp
        for row, before in changes
    )
