"""English sentences to be read aloud: two lists for judging speech, which are not in the text that
the built-in voice is trained on, and a made-up sentence for every number.

HARVARD is a part of the IEEE sentences for speech tests (1969); EVERYDAY, with figures and names,
was written for this project. Both are in sentences.txt, a sentence a line.
"""

from __future__ import annotations

from pathlib import Path

_LISTS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("== ")
HARVARD, EVERYDAY = (tuple(part.splitlines()[1:]) for part in _LISTS[1:])
CHOICES = [
    choices.split("|")
    for choices in (
        "My brother|The old doctor|Her neighbor|A young student|The captain|Our teacher|The baker",
        "carried|painted|found|sold|repaired|forgot|described",
        "a wooden chair|the blue folder|two silver keys|the broken radio|a basket of apples|a boat",
        "at the station|behind the house|near the old bridge|in the garden|beside the river|"
        "on the stairs",
        "this morning.|last spring.|before the rain.|after dinner.|on a cold day.|without a word.",
    )
]


def sentence(number: int) -> str:
    """A sentence of about twelve words. 10,584 of them differ, so that no prompt is cached."""
    words = []
    number *= 4999  # neighbours should not begin alike
    for choices in CHOICES:
        number, index = divmod(number, len(choices))
        words.append(choices[index])
    return " ".join(words)
