"""Train how sentences end: a logistic regression on whole sentences and their beginnings.

    apt-get download wordnet-base fortunes fortunes-min     # and `dpkg -x` each into SOURCES
    git clone https://github.com/clinc/oos-eval SOURCES/oos-eval
    python -m scripts.turns words SOURCES

WordNet's examples, Debian's fortunes, what people said to assistants (CLINC150), questions.txt and
short.txt are the whole sentences; each of them, cut at a random place, is one that goes on.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moss_engine.audio.turn_judge import NUM_WEIGHTS, traits, weight_of, words_of
from scripts.nano.text.packages import wordnet_senses
from scripts.turns.data import filled

OUT = Path(__file__).resolve().parents[2] / "assets" / "turns" / "words.npz"
QUESTIONS = Path(__file__).with_name("questions.txt")
ROUNDS, BATCH, RATE, DECAY = 4, 256, 0.5, 1e-6
SHORT = Path(__file__).with_name("short.txt")
"""What people say in a few words; its slots are filled like those of requests.txt."""
SHORT_AGAIN = 50
QUESTIONS_AGAIN, ASSISTANTS_AGAIN = 6, 2
"""How often such sentences count: questions, and what assistants are asked, are said to a voice
more often than they occur in these texts."""
COMMON = 1500
"""How many of the most frequent words are kept; others are replaced by their kind."""
RARE = 5
"""Traits of fewer examples than this are left out."""
HESITATES, HESITATIONS = 0.1, "um uh em er erm hm".split()
"""This share of the beginnings is used once more, with one of these words after it."""


def sentences(sources: Path) -> Iterator[str]:
    for sense in wordnet_senses(sources):
        yield from sense.examples
    for file in sorted((sources / "usr/share/games/fortunes").iterdir()):
        if file.suffix == "":
            text = re.sub(r"\s+", " ", file.read_text(errors="replace"))
            for found in re.findall(r"[A-Z][A-Za-z0-9 ,;:'\-]+[.?!]", text):
                yield found
                if found.endswith("?"):
                    yield from [found] * (QUESTIONS_AGAIN - 1)
    for line in QUESTIONS.read_text().splitlines():
        for asked in line.split(" | "):
            yield from [asked] * QUESTIONS_AGAIN
    asked = json.loads((sources / "oos-eval/data/data_full.json").read_text())
    for part in ("train", "val", "test"):
        for utterance, _ in asked[part]:
            yield from [utterance] * ASSISTANTS_AGAIN
    rng = random.Random(3)
    for pattern in SHORT.read_text().replace("\n", " | ").split(" | "):
        yield from [filled(pattern, rng) for _ in range(SHORT_AGAIN * bool(pattern))]


def is_usable(text: str) -> bool:
    words = text.split()
    return 0 < len(words) <= 25 and (len(words) > 2 or text == text.lower())


def examples(texts: list[str], common: set[str]) -> list[tuple[list[str], int]]:
    """Traits and label: 1 for whole texts, 0 for beginnings, some of which end in a hesitation."""
    rng, found = random.Random(1), []
    for text in texts:
        words = text.split()
        found.append((traits(text, common), 1))
        if len(words) > 1:
            begun = " ".join(words[: rng.randrange(1, len(words))])
            found.append((traits(begun, common), 0))
            if rng.random() < HESITATES:
                found.append((traits(f"{begun} {rng.choice(HESITATIONS)}", common), 0))
    rng.shuffle(found)
    return found


def trained(data: list[tuple[list[int], int]]) -> tuple[np.ndarray, float]:
    """Weights and bias, trained by AdaGrad over ROUNDS."""
    weights, seen, bias = np.zeros(NUM_WEIGHTS), np.full(NUM_WEIGHTS, 1e-2), 0.0
    for _ in range(ROUNDS):
        for start in range(0, len(data), BATCH):
            batch = data[start : start + BATCH]
            rows = np.repeat(np.arange(len(batch)), [len(found) for found, _ in batch])
            places = np.array([place for found, _ in batch for place in found], np.int64)
            odds = bias + np.bincount(rows, weights[places], len(batch))
            wrong = 1 / (1 + np.exp(-odds)) - np.array([whole for _, whole in batch])
            slope = np.bincount(places, wrong[rows], NUM_WEIGHTS) / 16
            seen += slope**2
            weights -= RATE * slope / np.sqrt(seen) + DECAY * weights
            bias -= 0.1 * wrong.mean()
    return weights, bias


def make(sources: Path) -> None:
    texts = [text for text in sentences(sources) if is_usable(text)]
    heard = Counter(word for text in texts for word in words_of(text))
    common = {word for word, _ in heard.most_common(COMMON)}
    told = examples(texts, common)
    times = Counter(trait for found, _ in told for trait in found)
    data = [
        ([weight_of(trait) for trait in found if times[trait] >= RARE], whole)
        for found, whole in told
    ]
    held = len(data) // 20
    weights, bias = trained(data[held:])
    scale = np.abs(weights).max() / 127
    weights = np.rint(weights / scale).astype(np.int8)
    OUT.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        OUT, weights=weights, scale=np.float32(scale), bias=np.float32(bias),
        common=" ".join(sorted(common)),
    )  # fmt: skip
    odds = np.array([bias + weights[found].sum() * scale for found, _ in data[:held]])
    whole = np.array([whole for _, whole in data[:held]])
    print(
        f"{len(data)} examples, AUC {area(odds[whole == 1], odds[whole == 0]):.3f} on a 20th kept"
    )


def area(positive: np.ndarray, negative: np.ndarray) -> float:
    """Area under the curve: the share of pairs of a 1 and a 0 that are ranked rightly."""
    order = np.concatenate([positive, negative]).argsort().argsort() + 1
    num = len(positive)
    return float((order[:num].sum() - num * (num + 1) / 2) / (num * len(negative)))
