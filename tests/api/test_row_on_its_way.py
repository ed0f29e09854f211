"""A sampled row on its way between processes."""

from __future__ import annotations

import pickle
from dataclasses import fields

from moss_engine.api.events import Sampled
from moss_engine.api.tokens import Modality, Row


def test_a_row_arrives_whole():
    row = Sampled("r", 1.5, 7, Row(3, 9), Modality.TEXT, 0.25, (5, 6), 2)
    differing = [f.name for f in fields(Sampled) if getattr(row, f.name) != f.default]
    assert len(differing) == len(fields(Sampled))
    assert pickle.loads(pickle.dumps(row)) == row
