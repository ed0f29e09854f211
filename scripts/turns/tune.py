"""What melody and words tell of the turns of `data`, and the wait that follows.

    python -m scripts.turns tune FOLDER

Every turn is heard up to its pause or its end and SILENCE_S of silence, as the service hears it:
the recogniser writes the words. What was heard is kept in FOLDER/heard.jsonl. Weights and table are
found on the tuning half alone by the rule of `best`, and judged once on the other one. They are
those of `audio.turn_judge`, which a test compares with the report.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from moss_engine.audio.rate import Downsampler
from moss_engine.audio.turn_judge import LEVELS, ends_with_a_mark, load_melody, load_words, log_odds
from moss_engine.audio.turn_judge import WAITS_S as WAITS
from moss_engine.audio.turn_taking import FRAME_S
from moss_engine.audio.turn_taking import RATE_HZ as LOW_HZ
from moss_engine.recogniser.load import load_recogniser
from scripts.bench.common import Report
from scripts.turns.data import (
    HESITATES,
    PAUSES_S,
    RATE_HZ,
    SOFTEST,
    TEST,
    TUNE,
    WHOLE,
    Turn,
    load,
    room,
)
from scripts.turns.data import with_noise as noisy

SILENCE_S = 0.1
ALONE_S = 0.2
"""Of silence, behind which Pipecat asks Smart Turn."""
SOONEST_S = 0.36
"""From the last word to the first sound where nothing is waited for: words, then the answer."""
BEHIND_S = 0.08
"""From the last word to the first frame that the detector takes for silence."""
WAITS_S = (0.2, 0.3, 0.38, 0.5, 0.6, 0.7, 0.8, 0.9)
NOISES_DB = (20, 10)
LATEST_S = {0.5: 0.5, 0.05: 0.8}
"""No more than such a share of whole turns waits longer."""
BOUND_Z = 1.645
"""With which what is true of all turns exceeds the upper bound in one of 20 such halves."""
WORDS_WEIGHT = 0.6
"""Of words beside melody: a free one trusts them for the sentences that tuned it, and judges those
of the tuning half that are held out of it, pattern by pattern, worse than this."""


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


def fitted(given: np.ndarray, whole: np.ndarray, fixed: np.ndarray | float = 0.0) -> np.ndarray:
    """Logistic regression by Newton's steps, beside log-odds that are `fixed`."""
    weights = np.zeros(given.shape[1])
    for _ in range(30):
        sure = 1 / (1 + np.exp(-given @ weights - fixed))
        bend = (given * (sure * (1 - sure))[:, None]).T @ given + 1e-3 * np.eye(given.shape[1])
        weights += np.linalg.solve(bend, given.T @ (whole - sure) - 1e-3 * weights)
    return weights


def fused(given: np.ndarray, whole: np.ndarray) -> dict[str, np.ndarray]:
    """The weights of `columns` for each judge."""
    melody, words, mark, one = given.T
    rest = fitted(np.stack([melody, mark, one], 1), whole, WORDS_WEIGHT * words)
    return {
        "melody": fitted(np.stack([melody, one], 1), whole),
        "words": fitted(np.stack([words, mark, one], 1), whole),
        "both": np.insert(rest, 1, WORDS_WEIGHT),
    }


class Judged:
    """Entries with their log-odds."""

    def __init__(self, entries: list[dict], odds: np.ndarray):
        self.kinds = np.array([entry["kind"] for entry in entries])
        self.odds = {kind: odds[self.kinds == kind] for kind in (WHOLE, HESITATES, SOFTEST)}

    def figures(self, levels: tuple[float, ...], waits: tuple[float, ...]) -> dict[str, float]:
        """`waits[i]` holds above `levels[i]`, the last one below all. A pause counts as often as
        one of its kind, which may be as long as any, outlasts the wait."""
        delays = {kind: delay_s(odds, levels, waits) for kind, odds in self.odds.items()}
        whole = delays[WHOLE]
        early = {kind: outlasted(delays[kind]).mean() for kind in (HESITATES, SOFTEST)}
        p50, p95 = np.percentile(whole, [50, 95])
        return {"mean": whole.mean(), "p50": p50, "p95": p95, **early}


def delay_s(odds: np.ndarray, levels: tuple[float, ...], waits: tuple[float, ...]) -> np.ndarray:
    """From the last word to the first sound."""
    place = (odds[:, None] < np.array(levels)).sum(axis=1)
    silence_s = np.ceil(np.array(waits) / FRAME_S - 1e-6) * FRAME_S
    return np.maximum(silence_s[place] + BEHIND_S, SOONEST_S)


def outlasted(delay_s: np.ndarray) -> np.ndarray:
    """The share of pauses, as long as `data` makes them, that go on behind so long a wait."""
    least, most = PAUSES_S
    return np.clip((most - delay_s) / (most - least), 0.0, 1.0)


def upper_bound(share: float, num: int) -> float:
    """Wilson's, of what was found in `num`."""
    z2 = BOUND_Z**2 / num
    spread = BOUND_Z * np.sqrt(share * (1 - share) / num + z2 / (4 * num))
    return (share + z2 / 2 + spread) / (1 + z2)


def best(judged: Judged) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The table with the fewest early sounds where people hesitate, among those of which the upper
    bounds keep to LATEST_S; of equal ones, in thousandths, that which waits least. None where none
    keeps to it."""
    whole, hesitating = judged.odds[WHOLE], judged.odds[HESITATES]
    steps = np.percentile(whole, range(1, 100)).round(2).tolist()
    found, least = None, (np.inf, np.inf)
    for low, high in itertools.combinations(sorted(set(steps)), 2):
        for waits in itertools.combinations(WAITS_S, 3):
            delay = delay_s(whole, (high, low), waits)
            late = {share: (delay > at_s).mean() for share, at_s in LATEST_S.items()}
            if any(upper_bound(here, len(whole)) > share for share, here in late.items()):
                continue
            early = outlasted(delay_s(hesitating, (high, low), waits)).mean()
            cost = (round(float(early), 3), float(delay.mean()))
            if cost < least:
                found, least = ((high, low), waits), cost
    return found


def make(folder: Path, out: Path | None) -> None:
    report = Report(out)
    entries = heard(folder, load(folder))
    quiet = [entry for entry in entries if entry["noise"] is None]
    tuning = [entry for entry in quiet if entry["half"] == TUNE]
    given, whole = columns(tuning), np.array([entry["kind"] == WHOLE for entry in tuning])
    weights = fused(given, whole)
    judged = Judged(tuning, given @ weights["both"])
    table = best(judged)
    if table is None:
        print(f"No table keeps to {LATEST_S}; turns that are judged better are needed.")
        return
    levels, waits = table
    tuned = judged.figures(levels, waits)
    num = len(judged.odds[HESITATES])
    report.add(
        turns=len(quiet), soonest_s=SOONEST_S,
        weights={name: np.round(found, 3).tolist() for name, found in weights.items()},
        levels=levels, waits_s=waits, tuning=rounded(tuned),
        hesitates_at_most=round(float(upper_bound(tuned[HESITATES], num)), 3),
        judges=judged_alike(entries),
    )  # fmt: skip


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
