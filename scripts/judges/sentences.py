"""Sentences that speech is judged by; the text that the built-in voice is trained on holds none.

HARVARD is a part of the IEEE sentences for speech tests (1969); the others were written for this
project: EVERYDAY with figures and names, STRESS with repetitions and long sentences, HARD with rare
names, letters, units and contractions. They stand in sentences.txt, a line each.
"""

from __future__ import annotations

from pathlib import Path

_LISTS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("== ")
HARVARD, EVERYDAY, STRESS, HARD = (tuple(part.splitlines()[1:]) for part in _LISTS[1:])
