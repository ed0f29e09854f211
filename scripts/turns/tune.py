"""What melody and words tell of the turns of `data`, and the wait that follows.

    python -m scripts.turns tune FOLDER

Every turn is heard up to where the service finds that its pause or its end begins, in SILENCE_S of
silence: the recogniser writes the words. What was heard is kept in FOLDER/heard.jsonl. Weights and
table are found on the tuning half alone by the rule of `best`, and judged once on the other one.
They are those of `audio.turn_judge`, which a test compares with the report.
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
"""Of silence, behind which Pipecat asks Smart Turn."""
BEHIND_S = (0.057, 0.073, 0.082, 0.091, 0.1)
"""From the last word to the first sound, without the silence that is waited for: what is found in
each fifth of the whole turns of assets/bench/turns.json. The detector takes most of it to be sure,
and looks once in a frame."""
WAITS_S = (0.19, 0.2, 0.3, 0.38, 0.5, 0.6, 0.64, 0.67, 0.7, 0.8, 0.9)
NOISES_DB = (20, 10)
LATEST_S = {0.45: 0.5, 0.04: 0.8}
"""No more than such a share of whole turns waits longer; where melody and words judge together, the
first holds for the ordinary ones of the tuning half, too."""
COUNTS = {SOFTEST: 0.3, ORDINARY: 2.0}
"""So much a turn counts, 1 otherwise: at the softest places nobody can know, and most of what
people say is ordinary."""
WORTH = 0.1
"""One hesitation in ten that is spoken into weighs what a second does that everybody waits, half
of them for ordinary turns."""
BOUND_Z = 1.645
"""With which what is true of all turns exceeds the upper bound in one of 20 such halves."""


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
    """int16 [n] at LOW_HZ, as much as the service has when it finds that nobody speaks."""
    follower = Follower(detector.open(), len(pcm) / LOW_HZ)
    heard = follower.take(pcm, answering=False)
    paused = [one.pcm for one in heard if one.change is Change.PAUSED and one.pcm is not None]
    return paused[-1] if paused else pcm


def fitted(given: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Logistic regression by Newton's steps."""
    weights, whole = np.zeros(given.shape[1]), np.isin(kinds, (WHOLE, ORDINARY))
    counts = np.array([COUNTS.get(kind, 1.0) for kind in kinds])
    for _ in range(30):
        sure = 1 / (1 + np.exp(-given @ weights))
        bend = (given * (counts * sure * (1 - sure))[:, None]).T @ given
        slope = given.T @ (counts * (whole - sure)) - 1e-3 * weights
        weights += np.linalg.solve(bend + 1e-3 * np.eye(given.shape[1]), slope)
    return weights


Table = tuple[tuple[float, ...], tuple[float, ...]]
"""Levels and waits."""


def tuned(entries: list[dict]) -> tuple[dict[str, np.ndarray], Table, Judged]:
    """The weights of each judge, the table of all, and the entries as melody and words judge them
    together. Each of the two alone is scaled so that its own levels are those of the table."""
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
    """Weights whose log-odds are `wanted` where those of `weights` are `levels`."""
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
    """Entries with their log-odds."""

    def __init__(self, entries: list[dict], odds: np.ndarray):
        self.kinds = np.array([entry["kind"] for entry in entries])
        kinds = WHOLE, ORDINARY, HESITATES, SOFTEST
        self.odds = {kind: odds[self.kinds == kind] for kind in kinds}

    def figures(self, levels: tuple[float, ...], waits: tuple[float, ...]) -> dict[str, float]:
        """`waits[i]` holds above `levels[i]`, the last one below all. A pause counts as often as
        one of its kind, which may be as long as any, outlasts the wait."""
        delays = {kind: delay_s(odds, levels, waits) for kind, odds in self.odds.items()}
        figures = {}
        for before, kind in (("", WHOLE), ("ordinary_", ORDINARY)):
            p50, p95 = np.percentile(delays[kind], [50, 95])
            mean = delays[kind].mean()
            figures |= {f"{before}mean": mean, f"{before}p50": p50, f"{before}p95": p95}
        return figures | {kind: outlasted(delays[kind]).mean() for kind in (HESITATES, SOFTEST)}


def delay_s(odds: np.ndarray, levels: tuple[float, ...], waits: tuple[float, ...]) -> np.ndarray:
    """[n, 5]: from the last word to the first sound, as often as each of BEHIND_S is."""
    place = (odds[:, None] < np.array(levels)).sum(axis=1)
    silence_s = np.ceil(np.array(waits) / FRAME_S - 1e-6) * FRAME_S
    return silence_s[place, None] + np.array(BEHIND_S)


def outlasted(delay_s: np.ndarray) -> np.ndarray:
    """The share of pauses, as long as `data` makes them, that go on behind so long a wait."""
    least, most = PAUSES_S
    return np.clip((most - delay_s) / (most - least), 0.0, 1.0)


def upper_bound(share: float, num: int) -> float:
    """Wilson's, of what was found in `num`."""
    z2 = BOUND_Z**2 / num
    spread = BOUND_Z * np.sqrt(share * (1 - share) / num + z2 / (4 * num))
    return (share + z2 / 2 + spread) / (1 + z2)


def best(judged: Judged, tables: list[tuple[float, ...]], most: float = 1.0) -> Table | None:
    """The table, with these waits, of the fewest early sounds where people hesitate and the least
    waiting, as WORTH weighs them, among those of which the upper bounds keep to LATEST_S, and of
    ordinary turns no more than `most` wait longer than the first of it. None where none does."""
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
    """The shares that lie above, between and below."""
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
                log_odds(
                    entry["text"] if words else None,
                    weighed(MELODY, sound_of(entry)) if melody else None,
                )
                for entry in heard
            ]
            shipped = Judged(heard, np.array(odds)).figures(LEVELS, WAITS)
            figures[f"{judge}{name}"] = shipped
    return {name: rounded(values) for name, values in figures.items()}
