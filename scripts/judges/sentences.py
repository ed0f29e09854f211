"""Sentences that speech is judged by; the text that the built-in voice is trained on holds none.

HARVARD is a part of the IEEE sentences for speech tests (1969); EVERYDAY, with figures and names,
was written for this project. They stand in sentences.txt, a line each.
"""

from __future__ import annotations

from pathlib import Path

_LISTS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("== ")
HARVARD, EVERYDAY = (tuple(part.splitlines()[1:]) for part in _LISTS[1:])
