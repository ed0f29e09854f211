"""What melody and words tell of the turns of `data`, and the wait that follows.

    python -m scripts.turns tune FOLDER

Every turn is heard up to its pause or its end and SILENCE_S of silence, as the service hears it:
the recogniser writes the words. What was heard is kept in FOLDER/heard.jsonl. Weights and table are
found on the tuning half and reported on the other one; both go into `audio.turn_judge` by hand.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from moss_engine.audio.rate import Downsampler
from moss_engine.audio.turn_judge import LEVELS, ends_with_a_mark, load_melody, load_words, log_odds
from moss_engine.audio.turn_judge import WAITS_S as WAITS
from moss_engine.audio.turn_taking import RATE_HZ as LOW_HZ
from moss_engine.recogniser.load import load_recogniser
from scripts.bench.common import Report
from scripts.turns.data import HESITATES, RATE_HZ, SOFTEST, TEST, TUNE, WHOLE, Turn, load, room
from scripts.turns.data import with_noise as noisy

SILENCE_S = 0.1
ALONE_S = 0.2
"""Of silence, behind which Pipecat asks Smart Turn."""
SOONEST_S = 0.36
"""From the last word to the first sound where nothing is waited for: words, then the answer."""
BEHIND_S = 0.08
"""From the last word to the first frame that the detector takes for silence."""
WAITS_S = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
NOISES_DB = (20, 10)
MOST = {HESITATES: 0.02, SOFTEST: 0.12}
LATEST_S = 0.8
"""From the last word to the first sound in 19 of 20 whole turns."""


def heard(folder: Path, turns: list[Turn]) -> list[dict]:
    path = folder / "heard.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = {(e["name"], e["kind"], e["noise"]): e for e in map(json.loads, lines)}
    recogniser, _ = load_recogniser("moonshine")
    melody = load_melody()
    assert recogniser is not None and melody is not None, "install moonshine-voice and pipecat-ai"
    with path.open("a") as file:
        for at, turn in enumerate(turns):
            noises = (None, *NOISES_DB) if turn.half == TEST and at % 3 == 0 else (None,)
            for noise in noises:
                if (turn.name, turn.kind, noise) in found:
                    continue
                pcm = turn.before_pause(folder, SILENCE_S)
                pcm = pcm if noise is None else noisy(pcm, noise, at)
                low = Downsampler().push(np.concatenate([room(RATE_HZ // 4), pcm]))
                later = np.concatenate([low, room(round((ALONE_S - SILENCE_S) * LOW_HZ))])
                text = recogniser.transcribe(low.astype(np.float32) / 32768.0).text
                entry = {
                    "name": turn.name, "kind": turn.kind, "noise": noise, "half": turn.half,
                    "pause_s": turn.pause_s, "text": text, "melody": melody.log_odds(low),
                    "alone": melody.log_odds(later),
                }  # fmt: skip
                found[turn.name, turn.kind, noise] = entry
                file.write(json.dumps(entry) + "\n")
                file.flush()
    return list(found.values())


def columns(entries: list[dict]) -> np.ndarray:
    """[n, 4]: melody, words, whether there is a mark behind them, 1."""
    words = load_words()
    rows = [
        (e["melody"], words.log_odds(e["text"]), ends_with_a_mark(e["text"]), 1.0) for e in entries
    ]
    return np.array(rows).reshape(-1, 4)


def fitted(given: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Logistic regression by Newton's steps."""
    weights = np.zeros(given.shape[1])
    for _ in range(30):
        sure = 1 / (1 + np.exp(-given @ weights))
        bend = (given * (sure * (1 - sure))[:, None]).T @ given + 1e-3 * np.eye(given.shape[1])
        weights += np.linalg.solve(bend, given.T @ (whole - sure) - 1e-3 * weights)
    return weights


class Judged:
    """Entries with their log-odds."""

    def __init__(self, entries: list[dict], odds: np.ndarray):
        self.odds = odds
        self.kinds = np.array([entry["kind"] for entry in entries])
        self.pauses = np.array([entry["pause_s"] for entry in entries])

    def figures(self, levels: tuple[float, ...], waits: tuple[float, ...]) -> dict[str, float]:
        """`waits[i]` holds above `levels[i]`, the last one below all."""
        place = (self.odds[:, None] < np.array(levels)).sum(axis=1)
        delay = np.maximum(np.array(waits)[place] + BEHIND_S, SOONEST_S)
        whole = delay[self.kinds == WHOLE]
        early = {kind: (self.pauses > delay)[self.kinds == kind].mean() for kind in MOST}
        p50, p95 = np.percentile(whole, [50, 95])
        return {"mean": whole.mean(), "p50": p50, "p95": p95, **early}


def best(judged: Judged, most: dict[str, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    steps = np.unique(np.percentile(judged.odds, range(5, 100, 5)).round(1))
    found, least = None, np.inf
    for low, high in itertools.combinations(steps, 2):
        for waits in itertools.combinations_with_replacement(WAITS_S, 3):
            figures = judged.figures((high, low), waits)
            fits = all(figures[kind] <= share for kind, share in most.items())
            if fits and figures["p95"] <= LATEST_S and figures["mean"] < least:
                found, least = ((float(high), float(low)), waits), figures["mean"]
    assert found is not None, f"no table keeps to these shares and {LATEST_S} s"
    return found


def make(folder: Path, out: Path | None) -> None:
    report = Report(out)
    turns = load(folder)
    entries = heard(folder, turns)
    quiet = [entry for entry in entries if entry["noise"] is None]
    halves = {half: [e for e in quiet if e["half"] == half] for half in (TUNE, TEST)}
    whole = np.array([entry["kind"] == WHOLE for entry in halves[TUNE]])
    given = {half: columns(found) for half, found in halves.items()}
    report.add(turns=len(quiet), soonest_s=SOONEST_S, judges=judged_alike(entries))
    for name, used in (("melody", [0, 3]), ("words", [1, 2, 3]), ("both", [0, 1, 2, 3])):
        weights = fitted(given[TUNE][:, used], whole)
        print(f"{name}: weights {np.round(weights, 3).tolist()}")
        judged = {half: Judged(halves[half], given[half][:, used] @ weights) for half in halves}
        for factor in (1, 2, 4):
            most = {kind: factor * share for kind, share in MOST.items()}
            try:
                levels, waits = best(judged[TUNE], most)
            except AssertionError as error:
                print(f"  {most}: {error}")
                continue
            print(f"  {most}: above {levels} wait {waits}")
            for half in halves:
                print(f"    {half}", rounded(judged[half].figures(levels, waits)))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), 3) for name, value in figures.items()}


def judged_alike(entries: list[dict]) -> dict[str, dict[str, float]]:
    """The testing half, as the program judges it, and as Pipecat joins Silero and Smart Turn: over
    behind 0.2 s of silence, or behind 3 s where it takes the turn for open."""
    found = [entry for entry in entries if entry["half"] == TEST]
    figures = {}
    for noise in (None, *NOISES_DB):
        heard = [entry for entry in found if entry["noise"] == noise]
        name = "" if noise is None else f", {noise} dB of noise"
        alone = Judged(heard, np.array([entry["alone"] for entry in heard]))
        figures[f"Smart Turn alone{name}"] = alone.figures((0.0,), (ALONE_S, 3.0))
        for judge, words, melody in (
            ("words and melody", True, True),
            ("words", True, False),
            ("melody", False, True),
        ):
            odds = [
                log_odds(entry["text"] if words else None, entry["melody"] if melody else None)
                for entry in heard
            ]
            shipped = Judged(heard, np.array(odds)).figures(LEVELS, WAITS)
            figures[f"{judge}{name}"] = shipped
    return {name: rounded(values) for name, values in figures.items()}
