"""Random everyday sentences: patterns filled with words of WordNet, and with figures.

The tables of text are in files of sections, each of which begins with a line `== name`. A pattern
holds slots in braces. A slot is filled from a list of the same name, whose entries may hold slots
again; names that are in no table (nouns, verbs, adjectives by kind) come from WordNet, numbers from
ranges and from `figures`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from moss_engine.text.spoken.dates import MONTHS
from scripts.nano.text.packages import (
    KINDS,
    is_coarse,
    read_tables,
    scowl_words,
    word_counts,
    wordnet_senses,
)

TABLES = read_tables("grammar")
WORD_LISTS = ("first", "last", "city", "country", "tree", "feelz", "Pos", "day")
SLOTS: dict[str, list[str]] = {"month": list(MONTHS)}
SLOTS |= {name: " ".join(TABLES[name]).split() for name in WORD_LISTS}
SLOTS |= {
    name: [option.strip() for option in options.split(" | ")]
    for name, options in (line.split(": ", 1) for line in TABLES["slots"])
}
NUMBERS = {name: (low, high) for name, low, high in map(str.split, TABLES["numbers"])}
"""Ranges of numbers; zeros fill a number up to as many digits as the lower end has."""
IRREGULAR = {
    base: tuple(forms) for base, *forms in (line.split() for line in TABLES["irregular verbs"])
}
"""Verbs -> past, participle"""


class Grammar:
    """Random sentences from the patterns; forms of verbs and plurals are made here. `slots` are
    those that a call fills."""

    def __init__(self, sources: Path, rng: random.Random):
        self.rng = rng
        self.slots = figures(rng)
        counts = word_counts(sources)
        common = {word: i for i, word in enumerate(scowl_words(sources, 50))}
        kinds: dict[str, dict[str, None]] = {kind: {} for kind in KINDS.values()}
        verbs: dict[str, None] = {}
        adjectives: dict[str, None] = {}
        for sense in wordnet_senses(sources):
            usable = [
                w
                for w in sense.words[:2]
                if w in common and len(w) > 2 and w.islower() and not is_coarse(w)
            ]
            if sense.part == "noun" and sense.kind in KINDS:
                kinds[KINDS[sense.kind]].update(dict.fromkeys(usable))
            elif sense.part == "verb" and sense.is_transitive and usable:
                verbs.update(dict.fromkeys(w for w in usable if counts.get(w, 0) >= 2))
            elif sense.part == "adj" and usable:
                adjectives.update(dict.fromkeys(w for w in usable if counts.get(w, 0) >= 1))
        self.words = {
            kind: sorted(words, key=common.__getitem__)
            for kind, words in {**kinds, "wn_adj": adjectives}.items()
        }
        text = (sources / "usr/share/wordnet/verb.exc").read_text()
        exceptions = [line.split() for line in text.splitlines()]
        irregular = {base for _, base, *_ in exceptions}
        self.doubled = {base for form, base, *_ in exceptions if form == f"{base}{base[-1]}ed"}
        self.verbs = [v for v in verbs if v in IRREGULAR or v in self.doubled or v not in irregular]
        import inflect  # pyright: ignore[reportMissingImports]

        self.plural = inflect.engine().plural

    def sentence(self, table: str) -> str:
        """One of a table's patterns, filled."""
        text = self.expand(self.rng.choice(TABLES[table]))
        text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU](?!ni|se|ne|ur))", r"\1n ", text)
        return text[0].upper() + text[1:] if text[0] != '"' else '"' + text[1].upper() + text[2:]

    def expand(self, pattern: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda m: self._slot(m[1]), pattern)

    def _slot(self, name: str) -> str:
        rng = self.rng
        if name in SLOTS:
            return self.expand(rng.choice(SLOTS[name]))
        if name in self.words:
            words = self.words[name]
            return words[int(len(words) * rng.random() ** 1.7)]
        if name in ("plural", "plurals", "Plur", "Plural"):
            kind = rng.choice(("artifact", "animal", "person", "plant", "object"))
            word = self.plural(self._slot(kind))
            return word.capitalize() if name[0] == "P" else word
        if name in ("vt", "vtd", "vtp", "ving"):
            return self._verb(rng.choice(self.verbs), name)
        if name in NUMBERS:
            low, high = NUMBERS[name]
            return str(rng.randint(int(low), int(high))).zfill(len(low))
        return self.slots[name]()

    def _verb(self, base: str, form: str) -> str:
        if form == "vt":
            return base
        if form == "ving":
            stem = base + base[-1] if base in self.doubled else base
            if base.endswith("ie"):
                return base[:-2] + "ying"
            drop = base.endswith("e") and not base.endswith(("ee", "oe", "ye"))
            return (base[:-1] if drop else stem) + "ing"
        if base in IRREGULAR:
            return IRREGULAR[base][0 if form == "vtd" else 1]
        if base in self.doubled:
            return base + base[-1] + "ed"
        if base.endswith("e"):
            return base + "d"
        return base[:-1] + "ied" if re.search(r"[^aeiou]y$", base) else base + "ed"


def figures(rng: random.Random) -> dict[str, Callable[[], str]]:
    """Slots of numbers that are not drawn evenly from one of these ranges."""

    def digits() -> str:
        drawn = [digit for _ in range(rng.randint(2, 4)) for digit in [rng.randint(0, 9)] * 2]
        return rng.choice((", ", "")).join(
            str(rng.choice((digit, rng.randint(0, 9)))) for digit in drawn
        )

    return {
        "temp": lambda: str(rng.randint(-20, 104)),
        "big": lambda: f"{int(10 ** rng.uniform(3, 8)):,}",
        "dollars": lambda: str(int(10 ** rng.uniform(0, 3.6))),
        "tenths": lambda: str(rng.randint(10, 990) / 10),
        "decimal": lambda: f"{rng.uniform(0, 40):.{rng.randint(1, 2)}f}",
        "digits": digits,
    }
