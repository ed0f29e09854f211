"""Tune how long to wait for the end of a turn, given its melody and words, on the turns of `data`.

    python -m scripts.turns tune FOLDER

Every turn is heard up to where the service would find that its pause, or its end, begins, within
SILENCE_S of silence; the recogniser writes down its words. What was heard stays in
FOLDER/heard.jsonl. Weights and table are chosen on the tuning half alone, by the rule of `best`,
and judged once on the other half. `audio.turn_judge` holds them; a test compares them.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from moss_engine.audio.follower import Follower
from moss_engine.audio.pitch import Ending, ending
from moss_engine.audio.rate import Downsampler
from moss_engine.audio.smart_turn import load_melody
from moss_engine.audio.turn_judge import LEVELS, MELODY, log_odds, said, sounded, weighed
from moss_engine.audio.turn_judge import WAITS_S as WAITS
from moss_engine.audio.turn_taking import FRAME_S, Change
from moss_engine.audio.turn_taking import RATE_HZ as LOW_HZ
from moss_engine.audio.voice_activity import Detector, load_detector
from moss_engine.recogniser.load import load_recogniser
from scripts.bench.common import Report
from scripts.turns.data import (
    HESITATES,
    ORDINARY,
    PAUSES_S,
    RATE_HZ,
    SOFTEST,
    TEST,
    TUNE,
    WHOLE,
    Turn,
    load,
    room,
    with_noise,
)

SILENCE_S = 0.4
ALONE_S = 0.2
"""Seconds of silence after which Pipecat asks Smart Turn."""
BEHIND_S = (0.057, 0.073, 0.082, 0.091, 0.1)
"""From the last word to the first sound, without the silence that is waited for, as it is in each
fifth of the whole turns of assets/bench/turns.json. Most of it is the detector, which takes time to
be sure and looks once a frame."""
WAITS_S = (0.19, 0.2, 0.3, 0.38, 0.5, 0.6, 0.64, 0.67, 0.7, 0.8, 0.9)
NOISES_DB = (20, 10)
LATEST_S = {0.45: 0.5, 0.04: 0.8}
"""At most this share of whole turns may wait longer than so many seconds. Where melody and words
judge together, the first entry must hold for the ordinary turns of the tuning half, too."""
COUNTS = {SOFTEST: 0.3, ORDINARY: 2.0}
"""The weight of a kind of turn, otherwise 1: nobody can know of a pause at the softest place, and
most of what people say is ordinary."""
WORTH = 0.1
"""The cost of waiting one more second, where that of interrupting every hesitation is 1; ordinary
turns make up half of the waiting."""
BOUND_Z = 1.645
"""So that the true share exceeds its upper bound for one in 20 such samples of turns."""


def heard(folder: Path, turns: list[Turn]) -> list[dict]:
    path = folder / "heard.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = {(e["name"], e["kind"], e["noise"]): e for e in map(json.loads, lines)}
    recogniser, _ = load_recogniser("moonshine")
    melody = load_melody()
    detector = load_detector()
    assert recogniser is not None and melody is not None, "install moonshine-voice and pipecat-ai"
    with path.open("a") as file:
        for at, turn in enumerate(turns):
            noises = (None, *NOISES_DB) if turn.half == TEST and at % 3 == 0 else (None,)
            for noise in noises:
                if (turn.name, turn.kind, noise) in found:
                    continue
                pcm = turn.before_pause(folder, SILENCE_S)
                pcm = pcm if noise is None else with_noise(pcm, noise, at)
                low = Downsampler().push(np.concatenate([room(RATE_HZ // 4), pcm]))
                later = low[: len(low) - round((SILENCE_S - ALONE_S) * LOW_HZ)]
                low = at_its_pause(detector, low)
                text = recogniser.transcribe(low.astype(np.float32) / 32768.0).text
                entry = {
                    "name": turn.name, "kind": turn.kind, "noise": noise, "half": turn.half,
                    "text": text, "melody": melody.log_odds(low), "pitch": ending(low),
                    "alone": melody.log_odds(later),
                }  # fmt: skip
                found[turn.name, turn.kind, noise] = entry
                file.write(json.dumps(entry) + "\n")
                file.flush()
    return list(found.values())


def at_its_pause(detector: Detector, pcm: np.ndarray) -> np.ndarray:
    """int16 [n] at LOW_HZ: what the service has heard when it finds that nobody speaks any more."""
    follower = Follower(detector.open(), len(pcm) / LOW_HZ)
    heard = follower.take(pcm, answering=False)
    paused = [one.pcm for one in heard if one.change is Change.PAUSED and one.pcm is not None]
    return paused[-1] if paused else pcm


def fitted(given: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Weights of a logistic regression for `kinds` being whole turns, by Newton's method."""
    weights, whole = np.zeros(given.shape[1]), np.isin(kinds, (WHOLE, ORDINARY))
    counts = np.array([COUNTS.get(kind, 1.0) for kind in kinds])
    for _ in range(30):
        sure = 1 / (1 + np.exp(-given @ weights))
        bend = (given * (counts * sure * (1 - sure))[:, None]).T @ given
        slope = given.T @ (counts * (whole - sure)) - 1e-3 * weights
        weights += np.linalg.solve(bend + 1e-3 * np.eye(given.shape[1]), slope)
    return weights


Table = tuple[tuple[float, ...], tuple[float, ...]]
"""(levels of the log-odds, waits in seconds above, between and below them)."""


def tuned(entries: list[dict]) -> tuple[dict[str, np.ndarray], Table, Judged]:
    """The weights of each judge, the table that all share, and the entries as melody and words
    together judge them. The judges by one of the two alone are scaled so that the table fits."""
    kinds = np.array([entry["kind"] for entry in entries])
    sound = np.array([sound_of(entry) for entry in entries])
    text = np.array([said(entry["text"]) for entry in entries])
    melody, words = fitted(sound, kinds), fitted(text, kinds)
    both = fitted(np.column_stack([sound @ melody, text]), kinds)
    judged = Judged(entries, np.column_stack([sound @ melody, text]) @ both)
    levels, waits = table_of(judged, list(itertools.combinations(WAITS_S, 3)), max(LATEST_S))
    alone = {
        name: scaled(found, table_of(Judged(entries, given @ found), [waits])[0], levels)
        for name, found, given in (("melody", melody, sound), ("words", words, text))
    }
    given = np.column_stack([sound @ alone["melody"], text])
    both = fitted(given, kinds)
    return {**alone, "both": both}, (levels, waits), Judged(entries, given @ both)


def scaled(weights: np.ndarray, levels: tuple[float, ...], wanted: tuple[float, ...]) -> np.ndarray:
    """The same weights, scaled and shifted so that their log-odds `levels` become `wanted`."""
    slope = (wanted[0] - wanted[1]) / (levels[0] - levels[1])
    return slope * weights + [*[0.0] * (len(weights) - 1), wanted[0] - slope * levels[0]]


def table_of(judged: Judged, waits: list[tuple[float, ...]], most: float = 1.0) -> Table:
    found = best(judged, waits, most)
    if found is None:
        raise SystemExit(f"No table keeps to {LATEST_S}; turns that are judged better are needed.")
    return found


def sound_of(entry: dict) -> tuple[float, ...]:
    return sounded(entry["melody"], Ending(*entry["pitch"]))


class Judged:
    """The log-odds that a judge gives to entries, by their kind."""

    def __init__(self, entries: list[dict], odds: np.ndarray):
        self.kinds = np.array([entry["kind"] for entry in entries])
        kinds = WHOLE, ORDINARY, HESITATES, SOFTEST
        self.odds = {kind: odds[self.kinds == kind] for kind in kinds}

    def figures(self, levels: tuple[float, ...], waits: tuple[float, ...]) -> dict[str, float]:
        """How long whole turns wait, and which share of the pauses outlasts the wait, by a table:
        `waits[i]` applies above `levels[i]`, the last one below all."""
        delays = {kind: delay_s(odds, levels, waits) for kind, odds in self.odds.items()}
        figures = {}
        for before, kind in (("", WHOLE), ("ordinary_", ORDINARY)):
            p50, p95 = np.percentile(delays[kind], [50, 95])
            mean = delays[kind].mean()
            figures |= {f"{before}mean": mean, f"{before}p50": p50, f"{before}p95": p95}
        return figures | {kind: outlasted(delays[kind]).mean() for kind in (HESITATES, SOFTEST)}


def delay_s(odds: np.ndarray, levels: tuple[float, ...], waits: tuple[float, ...]) -> np.ndarray:
    """float [n, 5]: seconds from the last word to the first sound, for each of BEHIND_S."""
    place = (odds[:, None] < np.array(levels)).sum(axis=1)
    silence_s = np.ceil(np.array(waits) / FRAME_S - 1e-6) * FRAME_S
    return silence_s[place, None] + np.array(BEHIND_S)


def outlasted(delay_s: np.ndarray) -> np.ndarray:
    """The share of the pauses that `data` makes which are longer than such a delay."""
    least, most = PAUSES_S
    return np.clip((most - delay_s) / (most - least), 0.0, 1.0)


def upper_bound(share: float, num: int) -> float:
    """Wilson's upper bound of a share that was found among `num`."""
    z2 = BOUND_Z**2 / num
    spread = BOUND_Z * np.sqrt(share * (1 - share) / num + z2 / (4 * num))
    return (share + z2 / 2 + spread) / (1 + z2)


def best(judged: Judged, tables: list[tuple[float, ...]], most: float = 1.0) -> Table | None:
    """The table, of these triples of waits and any levels, that costs least: early sounds where
    people hesitate, and waiting times WORTH. Its upper bounds must keep to LATEST_S, and at most a
    share of `most` of the ordinary turns may wait longer than its first. None if no table does."""
    whole, ordinary, hesitating = (judged.odds[kind] for kind in (WHOLE, ORDINARY, HESITATES))
    steps = np.percentile(whole, np.arange(0.5, 100, 0.5)).round(2).tolist()
    delays = np.array([delay_s(np.array([1.0, 0.0, -1.0]), (0.5, -0.5), waits) for waits in tables])
    early, mean = outlasted(delays).mean(axis=-1), delays.mean(axis=-1)
    late = {share: (delays > at_s).mean(axis=-1) for share, at_s in LATEST_S.items()}
    first, found, least = max(LATEST_S), None, np.inf
    for low, high in itertools.combinations(sorted(set(steps)), 2):
        shares = split(whole, high, low)
        of_ordinary = split(ordinary, high, low)
        waited = mean @ (shares + of_ordinary) / 2
        costs = early @ split(hesitating, high, low) + WORTH * waited
        for share, here in late.items():
            costs[upper_bound(here @ shares, len(whole)) > share] = np.inf
        costs[late[first] @ of_ordinary > most] = np.inf
        if costs.min() < least:
            found, least = ((high, low), tables[costs.argmin()]), costs.min()
    return found


def split(odds: np.ndarray, high: float, low: float) -> np.ndarray:
    """The shares of `odds` that lie above `high`, between the two, and below `low`."""
    above, not_below = (odds >= high).mean(), (odds >= low).mean()
    return np.array([above, not_below - above, 1.0 - not_below])


def make(folder: Path, out: Path | None) -> None:
    report = Report(out)
    entries = heard(folder, load(folder))
    quiet = [entry for entry in entries if entry["noise"] is None]
    tuning = [entry for entry in quiet if entry["half"] == TUNE]
    weights, (levels, waits), judged = tuned(tuning)
    figures = judged.figures(levels, waits)
    num = len(judged.odds[HESITATES])
    report.add(
        turns=len(quiet),
        weights={name: np.round(found, 3).tolist() for name, found in weights.items()},
        levels=levels, waits_s=waits, tuning=rounded(figures),
        hesitates_at_most=round(float(upper_bound(figures[HESITATES], num)), 3),
    )  # fmt: skip
    report.add(judges=judged_alike(entries))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), 3) for name, value in figures.items()}


def judged_alike(entries: list[dict]) -> dict[str, dict[str, float]]:
    """Figures of the testing half, as the program judges it, and as Pipecat does by Silero and
    Smart Turn: over after 0.2 s of silence, or after 3 s if Smart Turn takes the turn for open."""
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
                log_odds(
                    entry["text"] if words else None,
                    weighed(MELODY, sound_of(entry)) if melody else None,
                )
                for entry in heard
            ]
            shipped = Judged(heard, np.array(odds)).figures(LEVELS, WAITS)
            figures[f"{judge}{name}"] = shipped
    return {name: rounded(values) for name, values in figures.items()}
