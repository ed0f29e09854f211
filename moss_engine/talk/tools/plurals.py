"""Plurals of English nouns. Pure."""

from __future__ import annotations

import re

from moss_engine.talk.tools.wording import bare, unquoted

_IRREGULAR = {
    "mouse": "mice", "child": "children", "man": "men", "woman": "women", "foot": "feet",
    "tooth": "teeth", "goose": "geese", "person": "people", "ox": "oxen", "louse": "lice",
    "sheep": "sheep", "fish": "fish", "deer": "deer", "series": "series", "species": "species",
    "aircraft": "aircraft", "moose": "moose", "salmon": "salmon", "cactus": "cacti",
    "phenomenon": "phenomena", "criterion": "criteria", "analysis": "analyses", "crisis": "crises",
    "thesis": "theses", "axis": "axes", "die": "dice", "datum": "data", "fungus": "fungi",
    "nucleus": "nuclei", "stimulus": "stimuli", "index": "indices", "appendix": "appendices",
    "leaf": "leaves", "knife": "knives", "life": "lives", "wife": "wives", "wolf": "wolves",
    "half": "halves", "calf": "calves", "shelf": "shelves", "thief": "thieves", "loaf": "loaves",
    "scarf": "scarves", "self": "selves", "elf": "elves", "potato": "potatoes",
    "tomato": "tomatoes", "hero": "heroes", "echo": "echoes", "veto": "vetoes",
    "torpedo": "torpedoes", "quiz": "quizzes",
}  # fmt: skip
_IN_COMPOUNDS = ("man", "child", "wife", "wolf", "shelf", "tooth")
_NO_MEN = frozenset("human german roman norman shaman ottoman talisman caiman brahman".split())
_SPOKEN_K = frozenset("monarch patriarch matriarch oligarch stomach epoch eunuch loch".split())
_ONE = frozenset("lens summons gallows news yes".split())
_MANY = frozenset(_IRREGULAR.values()) - frozenset(_IRREGULAR)
_ASKED = re.compile(
    r"(?:what is )?(?:the )?plural(?: form)? (?:of|for) (?:the word |a |an |one )?(?P<noun>[a-z]+)"
)


def plural(noun: str) -> str:
    """mouse -> mice, city -> cities, box -> boxes, dog -> dogs"""
    for ending, many in _IRREGULAR.items():
        is_compound = ending in _IN_COMPOUNDS and noun.endswith(ending) and noun not in _NO_MEN
        if noun == ending or is_compound:
            return noun.removesuffix(ending) + many
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    hisses = re.search(r"(?:s|x|z|ch|sh)$", noun) and noun not in _SPOKEN_K
    return f"{noun}es" if hisses else f"{noun}s"


def _is_plural(noun: str) -> bool:
    """Whether a word means several already, as far as its ending tells."""
    ends_so = re.search(r"[^aiosu]s$", noun) is not None
    return noun in _MANY or (ends_so and noun not in _ONE and noun not in _IRREGULAR)


def answer(question: str) -> str | None:
    """The plural of the noun that is asked for."""
    found = _ASKED.fullmatch(unquoted(bare(question)))
    if found is None:
        return None
    noun = found["noun"]
    if _is_plural(noun):
        return f"The word {noun} is a plural already."
    return f"The plural of {noun} is {plural(noun)}."
