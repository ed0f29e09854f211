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
_ASKED = re.compile(
    r"(?:what is )?(?:the )?plural(?: form)? (?:of|for) (?:the word |a |an |one )?(?P<noun>[a-z]+)"
)


def plural(noun: str) -> str:
    """mouse -> mice, city -> cities, box -> boxes, dog -> dogs"""
    for ending, many in _IRREGULAR.items():
        if noun == ending or (ending == "man" and noun.endswith("man") and noun != "human"):
            return noun.removesuffix(ending) + many
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if re.search(r"(?:s|x|z|ch|sh)$", noun) else f"{noun}s"


def answer(question: str) -> str | None:
    """The plural of the noun that is asked for."""
    found = _ASKED.fullmatch(unquoted(bare(question)))
    return f"The plural of {found['noun']} is {plural(found['noun'])}." if found else None
