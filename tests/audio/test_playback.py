"""An answer is what was heard of it."""

from __future__ import annotations

from dataclasses import replace

from moss_engine.api.tokens import Row
from moss_engine.audio.playback import Answered
from tests.ui.page_support import CODE_SAMPLES, IDS, INFO


def test_the_silence_that_nobody_was_sent_belongs_to_the_first_code():
    cut = replace(INFO, lead_samples=CODE_SAMPLES)
    assert [INFO.num_codes(count) for count in (0, 1, CODE_SAMPLES)] == [0, 1, 1]
    assert [cut.num_codes(count) for count in (0, 1, CODE_SAMPLES)] == [0, 2, 2]
    rows = tuple(Row(IDS.modality_pad, code) for code in range(5))
    for info, heard in ((INFO, rows[:1]), (cut, rows[:2])):
        answer = Answered(rows=rows, num_samples=5 * CODE_SAMPLES)
        answer.cut(CODE_SAMPLES, info)
        assert answer.rows == heard
