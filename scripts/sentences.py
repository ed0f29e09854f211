"""English sentences to be read aloud, a different one for every number."""

from __future__ import annotations

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
    """A sentence of about twelve words; 10,584 differ, so that no prompt is in the cache."""
    words = []
    number *= 4999  # neighbours should not begin alike
    for choices in CHOICES:
        number, index = divmod(number, len(choices))
        words.append(choices[index])
    return " ".join(words)
