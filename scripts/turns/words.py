"""How sentences end: a logistic regression over whole sentences and their beginnings.

    apt-get download wordnet-base fortunes fortunes-min     # and `dpkg -x` each into SOURCES
    python -m scripts.turns words SOURCES

WordNet's examples, Debian's fortunes and the questions of the built-in small talk are whole; each
cut at random places is not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moss_engine.audio.turn_judge import NUM_WEIGHTS, Words, endings
from scripts.nano.text.packages import wordnet_senses

OUT = Path(__file__).resolve().parents[2] / "assets" / "turns" / "words.npz"
SMALL_TALK = Path(__file__).resolve().parents[1] / "nano" / "text" / "small_talk.txt"
ROUNDS, BATCH, RATE, DECAY = 4, 256, 0.5, 1e-6
SHORT = (
    "yes|no|okay|sure|thanks|thank you|stop|maybe|please|right|exactly|not really|of course|go on|"
    "why|when|who|how many|tomorrow|today|never|always|nothing|both|all of them|me too|not yet|"
    "hello|hi|hi there|hey|good morning|good evening|good night|goodbye|bye|see you|how are you|"
    "who are you|what time is it|what's the time|what day is it|what is the date|tell me a joke|"
    "another one|tell me another joke|tell me something|what can you do|what else|say it again|"
    "can you hear me|are you there|how do you work|what is your name|never mind|go ahead"
)
SHORT_AGAIN = 600
QUESTIONS_AGAIN = 6
"""Questions are said to a voice more often than these texts have them."""


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
    for line in SMALL_TALK.read_text().splitlines():
        if " => " in line:
            for asked in line.split(" => ")[0].split(" | "):
                yield from [asked] * QUESTIONS_AGAIN
    for answer in SHORT.split("|"):
        yield from [answer] * SHORT_AGAIN


def examples(sources: Path) -> list[tuple[list[int], int]]:
    rng, found = random.Random(1), []
    for text in sentences(sources):
        words = text.split()
        if not words or len(words) > 25 or (len(words) < 3 and text != text.lower()):
            continue
        found.append((endings(text), 1))
        if len(words) > 1:
            found.append((endings(" ".join(words[: rng.randrange(1, len(words))])), 0))
    rng.shuffle(found)
    return found


def trained(data: list[tuple[list[int], int]]) -> tuple[np.ndarray, float]:
    """AdaGrad over ROUNDS."""
    weights, seen, bias = np.zeros(NUM_WEIGHTS), np.full(NUM_WEIGHTS, 1e-2), 0.0
    for _ in range(ROUNDS):
        for start in range(0, len(data), BATCH):
            batch = data[start : start + BATCH]
            rows = np.repeat(np.arange(len(batch)), [len(names) for names, _ in batch])
            names = np.concatenate([names for names, _ in batch])
            odds = bias + np.bincount(rows, weights[names], len(batch))
            wrong = 1 / (1 + np.exp(-odds)) - np.array([whole for _, whole in batch])
            slope = np.bincount(names, wrong[rows], NUM_WEIGHTS) / 16
            seen += slope**2
            weights -= RATE * slope / np.sqrt(seen) + DECAY * weights
            bias -= 0.1 * wrong.mean()
    return weights, bias


def make(sources: Path) -> None:
    data = examples(sources)
    held = len(data) // 20
    weights, bias = trained(data[held:])
    scale = np.abs(weights).max() / 127
    weights = np.rint(weights / scale).astype(np.int8)
    OUT.parent.mkdir(exist_ok=True)
    np.savez_compressed(OUT, weights=weights, scale=np.float32(scale), bias=np.float32(bias))
    odds = np.array([bias + weights[names].sum() * scale for names, _ in data[:held]])
    whole = np.array([whole for _, whole in data[:held]])
    print(
        f"{len(data)} examples, AUC {area(odds[whole == 1], odds[whole == 0]):.3f} on a 20th kept"
    )
    words = Words(weights.astype(np.float32) * scale, bias)
    for text in ("What time is it", "What is the", "I would like to", "Tell me a joke"):
        print(f"  {words.log_odds(text):5.1f}  {text}")


def area(positive: np.ndarray, negative: np.ndarray) -> float:
    """The share of pairs that are in order."""
    order = np.concatenate([positive, negative]).argsort().argsort() + 1
    num = len(positive)
    return float((order[:num].sum() - num * (num + 1) / 2) / (num * len(negative)))
