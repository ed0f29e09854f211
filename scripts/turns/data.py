"""Turns for tuning and testing the judge that finds a turn's end: how to make the sound, not the
sound itself.

    python -m scripts.turns data FOLDER

The built-in voices say requests from requests.txt. Half of them stay whole; the other half get a
pause of 0.25 to 0.9 s: half of these where people hesitate, which a comma (and every third time an
"um") tells the voice, half at the softest place in the middle of a sentence said without one. Every
voice also says what is ordinary, short and whole, from ordinary.txt. Every other line of both files
is for tuning, the rest for testing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from moss_engine.client import open_service

RATE_HZ = 24_000
STEP = RATE_HZ // 100
PAUSES_S = (0.25, 0.9)
FILLS = {
    "name": "Anna Peter Laura David Emma Robert Julia Thomas Sarah Daniel Alice Henry",
    "place": "Vienna Paris London Boston Berlin Madrid Denver Dublin Oslo Rome Chicago Geneva",
    "number": "two three four five six seven eight nine ten twelve twenty thirty forty fifty",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday tomorrow",
    "thing": "bicycle camera guitar piano table garden radio lamp carpet coat clock bottle",
    "food": "rice cheese butter garlic honey chicken spinach pasta chocolate salmon ginger pepper",
    "animal": "dog cat horse rabbit parrot goat spider monkey tiger donkey turtle hamster",
    "music": "jazz blues folk rock opera techno reggae gospel",
    "language": "French Spanish German Italian Japanese Russian Polish Greek",
}
LEAST_SILENCE, NEAR = 10, 0.15
"""Fewest steps of a pause (a consonant may be silent for shorter), and how far from its expected
place, as a share of the sound, it may be: speech is not even."""
TUNE, TEST = "tune", "test"
WHOLE, ORDINARY, HESITATES, SOFTEST = "whole", "ordinary", "hesitates", "softest"


@dataclass(frozen=True)
class Turn:
    """The sound of `name`.npy, int16 at RATE_HZ without silence at its ends, with `pause_s` of
    silence put in at sample `cut`; both are 0 for a whole turn."""

    name: str
    half: str
    kind: str
    voice: str
    text: str
    pattern: str
    cut: int = 0
    pause_s: float = 0.0

    def sound(self, folder: Path) -> np.ndarray:
        """int16 [n]: the turn with its pause, in which the room's faint noise goes on."""
        wave = np.load(folder / f"{self.name}.npy")
        if not self.cut:
            return wave
        pause = room(round(self.pause_s * RATE_HZ))
        return np.concatenate([wave[: self.cut], pause, wave[self.cut :]])

    def before_pause(self, folder: Path, silence_s: float) -> np.ndarray:
        """int16 [n]: the turn up to its pause or its end, and `silence_s` of silence."""
        wave = np.load(folder / f"{self.name}.npy")[: self.cut or None]
        silence = room(round(silence_s * RATE_HZ))
        return np.concatenate([wave[: np.flatnonzero(is_loud(wave))[-1] + 1], silence])


def room(num: int) -> np.ndarray:
    return np.rint(np.random.default_rng(num).normal(0.0, 6.0, num)).astype(np.int16)


def with_noise(pcm: np.ndarray, ratio_db: float, seed: int = 0) -> np.ndarray:
    """Add noise that is `ratio_db` below the speech, which is all above a tenth of the peak."""
    wave = pcm.astype(np.float32)
    loud = wave[np.abs(wave) > 0.1 * np.abs(wave).max()]
    level = float(np.sqrt((loud**2).mean())) * 10 ** (-ratio_db / 20)
    noise = np.random.default_rng(seed).normal(0.0, level, len(wave))
    return np.clip(np.rint(wave + noise), -32768, 32767).astype(np.int16)


def patterns_of(name: str) -> list[str]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def filled(pattern: str, rng: random.Random) -> str:
    for slot, words in FILLS.items():
        while f"{{{slot}}}" in pattern:
            pattern = pattern.replace(f"{{{slot}}}", rng.choice(words.split()), 1)
    return pattern


def sentence(pattern: str, rng: random.Random, *, hesitate: bool) -> tuple[str, float]:
    """A filled pattern, and after which share of its letters somebody hesitates, if asked to."""
    pattern = filled(pattern, rng)
    before, behind = pattern.replace(" | ", " "), ""
    if hesitate:
        parts = pattern.split(" | ")
        place = rng.randrange(1, len(parts))
        before = " ".join(parts[:place]) + ("," if rng.randrange(3) else ", um,")
        behind = " " + " ".join(parts[place:])
    text = before + behind
    text = text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")
    return text, len(before) / len(text)


def is_loud(pcm: np.ndarray) -> np.ndarray:
    """bool [n]: which samples are not silence."""
    return np.abs(pcm.astype(np.int32)) > 0.01 * 32768


def trimmed(wave: np.ndarray) -> np.ndarray:
    """float32 [n] -> int16 [n], without the silence at its ends."""
    pcm = np.rint(np.clip(wave, -1, 1) * 32767).astype(np.int16)
    loud = np.flatnonzero(is_loud(pcm))
    return pcm[loud[0] : loud[-1] + 1]


def levels(pcm: np.ndarray) -> np.ndarray:
    """The loudness of every step of 10 ms, smoothed over three."""
    steps = pcm[: len(pcm) // STEP * STEP].astype(np.float32).reshape(-1, STEP)
    return np.convolve((steps**2).mean(axis=1), np.ones(3) / 3, "same")


def softest(pcm: np.ndarray, first: float, last: float) -> int:
    found = levels(pcm)
    begin, end = int(first * len(found)), int(last * len(found))
    return (begin + int(found[begin:end].argmin())) * STEP


def silent_place(pcm: np.ndarray, near: float) -> int:
    """The sample in the middle of the longest silence near a share of the sound; 0 if none lasts
    LEAST_SILENCE."""
    found = levels(pcm)
    quiet, best, place, run = found < 0.001 * found.max(), 0, 0, 0
    for at, silent in enumerate(quiet):
        run = run + 1 if silent and abs(at / len(found) - near) < NEAR else 0
        if run > best:
            best, place = run, at - run // 2
    return place * STEP if best >= LEAST_SILENCE else 0


def make(folder: Path, turns: int) -> None:
    """Make `turns` with a pause and as many without, half of each kind for tuning."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_service() as client, (folder / "turns.jsonl").open("w") as file:

        def said(name: str, text: str, voice: str) -> np.ndarray:
            pcm = trimmed(client.say(text, voice=voice).samples)
            np.save(folder / f"{name}.npy", pcm)
            return pcm

        voices = client.info.voices
        for turn in chain(_turns(turns, voices, said), _ordinary(voices, said)):
            file.write(json.dumps(asdict(turn)) + "\n")
            file.flush()


def _turns(num, voices, said) -> Iterator[Turn]:
    rng, patterns = random.Random(33), patterns_of("requests.txt")
    for at in range(num):
        half, voice = (TUNE, TEST)[at % 2], voices[at // 2 % len(voices)]
        found = patterns[at % 2 :: 2]
        open_ones = [pattern for pattern in found if " | " in pattern]
        soft, pause_s = at // 4 % 2, rng.uniform(*PAUSES_S)
        pattern = rng.choice(open_ones if soft else found)
        text, _ = sentence(pattern, rng, hesitate=False)
        whole = said(f"{at:04}", text, voice)
        yield Turn(f"{at:04}", half, WHOLE, voice, text, pattern)
        if soft:
            cut = softest(whole, 0.35, 0.7)
            yield Turn(f"{at:04}", half, SOFTEST, voice, text, pattern, cut, pause_s)
            continue
        for _ in range(8):  # a comma is not always a silence
            pattern = rng.choice(open_ones)
            text, share = sentence(pattern, rng, hesitate=True)
            cut = silent_place(said(f"{at:04}h", text, voice), share)
            if cut:
                yield Turn(f"{at:04}h", half, HESITATES, voice, text, pattern, cut, pause_s)
                break


def _ordinary(voices, said) -> Iterator[Turn]:
    rng = random.Random(34)
    for at, pattern in enumerate(patterns_of("ordinary.txt")):
        for voice in voices:
            text, _ = sentence(pattern, rng, hesitate=False)
            name = f"{at:04}{voice}"
            said(name, text, voice)
            yield Turn(name, (TUNE, TEST)[at % 2], ORDINARY, voice, text, pattern)


def load(folder: Path) -> list[Turn]:
    lines = (folder / "turns.jsonl").read_text().splitlines()
    return [Turn(**json.loads(line)) for line in lines]
