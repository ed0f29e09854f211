"""Other people's text read aloud by the whole service: whether every sentence is said as it stands,
ends by itself, takes the time that it should, and has neither long silences nor clicks.

    python -m scripts.nano.judges.aloud [--texts scripts/nano/text/other_people.tsv] [--seed 1]
        [--first N] [--words] [--out assets/bench/nano_aloud.json]

A line of the file is a kind, a sentence and where it is from, between tabs. The time expected is
that of all sentences together, shared out by characters. With --words the recogniser counts the
words it mistakes, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from moss_engine.api.events import FinishReason
from moss_engine.build import build_service
from moss_engine.config import REPO_ROOT, EngineConfig
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.judge import ErrorCount, Recogniser, count_errors, edit_distance, spoken_words
from scripts.nano.judges.replies import SEED, Spoken, speak_all

TEXTS = REPO_ROOT / "scripts" / "nano" / "text" / "other_people.tsv"
TOGETHER = 3
FRAME_S = 0.01
SILENCE_DB = -35.0
"""So far below the loudest twentieth of a reply is silence."""
MAX_SILENCE_S = 1.0
JOIN_S = 0.03
CLICK = 1.5
"""A join is heard where the wave bends so many times as sharply as anywhere around it."""
FLOOR = 1e-4


@dataclass(frozen=True)
class Heard:
    """One sentence: how many of its words the text channel altered, how it ended, its seconds, its
    characters as spoken, its longest silence, and the sharpest of its joins (see `sharpest`)."""

    kind: str
    text: str
    altered: int
    reason: str
    seconds: float
    characters: int
    silence_s: float
    click: float


def longest_silence(wave: np.ndarray, rate_hz: int) -> float:
    """float32 [samples] -> seconds, the silence at the ends included"""
    size = round(FRAME_S * rate_hz)
    frames = wave[: len(wave) // size * size].reshape(-1, size).astype(np.float64)
    level = 10 * np.log10((frames**2).mean(axis=1) + 1e-12)
    quiet = level < np.percentile(level, 95) + SILENCE_DB
    edges = np.flatnonzero(np.diff(np.concatenate([[0], quiet.astype(np.int8), [0]])))
    return float((edges[1::2] - edges[::2]).max(initial=0)) * FRAME_S


def sharpest(wave: np.ndarray, joins: Sequence[int], rate_hz: int) -> float:
    """How sharply float32 [samples] bends at its sharpest join, as a multiple of the sharpest bend
    around it; joins are the places where a piece begins."""
    bends = np.abs(np.diff(wave.astype(np.float64), 2))
    reach, worst = round(JOIN_S * rate_hz), 0.0
    for join in joins:
        first = max(0, join - reach)
        around = bends[first : join + reach].copy()
        at = slice(max(0, join - first - 3), join - first + 2)
        here = around[at].max(initial=0.0)
        around[at] = 0
        worst = max(worst, here / (around.max(initial=0.0) + FLOOR))
    return float(worst)


def heard_of(kind: str, reply: Spoken, rate_hz: int) -> Heard:
    said = spoken_text(reply.asked)
    altered = edit_distance(_words(said), _words(reply.caption))
    return Heard(
        kind,
        reply.asked,
        altered,
        reply.reason.value,
        len(reply.wave) / rate_hz,
        len(said),
        longest_silence(reply.wave, rate_hz),
        sharpest(reply.wave, reply.joins, rate_hz),
    )


def _words(text: str) -> list[str]:
    """Without case and marks, which the end of a line or of a long part may get."""
    return [word.strip(".,;:?!") for word in text.lower().split()]


def counted(heard: Sequence[Heard]) -> dict[str, object]:
    """-> the figures of all sentences together"""
    pace = sum(one.seconds for one in heard) / sum(one.characters for one in heard)
    shares = [one.seconds / (pace * one.characters) for one in heard]
    return {
        "sentences": len(heard),
        **Counter(f"{one.kind}_sentences" for one in heard),
        "altered_sentences": sum(one.altered > 0 for one in heard),
        "ended_by_themselves": sum(one.reason == FinishReason.STOP.value for one in heard),
        "longer_than_twice": sum(share > 2 for share in shares),
        "shorter_than_half": sum(share < 0.5 for share in shares),
        "longest_share": round(max(shares), 2),
        "shortest_share": round(min(shares), 2),
        "silences_over_1_s": sum(one.silence_s > MAX_SILENCE_S for one in heard),
        "longest_silence_s": round(max(one.silence_s for one in heard), 2),
        "clicks_at_joins": sum(one.click > CLICK for one in heard),
        "sharpest_join": round(max(one.click for one in heard), 2),
        "seconds": round(sum(one.seconds for one in heard), 1),
    }


def texts_of(path: Path) -> list[tuple[str, str]]:
    """(kind, sentence) of every line"""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(kind, text) for kind, text, *_ in (line.split("\t") for line in lines if line)]


def word_errors(replies: Sequence[Spoken], rate_hz: int) -> float:
    recogniser, total = Recogniser(), ErrorCount()
    for reply in replies:
        total += count_errors(reply.asked, recogniser.transcribe(reply.wave, rate_hz))
    assert total.num_words == sum(len(spoken_words(reply.asked)) for reply in replies)
    return round(100 * total.word_error_rate, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.judges.aloud",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, help="of each kind so many alone")
    parser.add_argument("--words", action="store_true", help="count mistaken words, too")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    seen: Counter[str] = Counter()
    texts: list[tuple[str, str]] = []
    for kind, text in texts_of(args.texts):
        seen[kind] += 1
        if args.first is None or seen[kind] <= args.first:
            texts.append((kind, text))
    service = build_service(EngineConfig())
    service.start()
    try:
        rate_hz = asyncio.run(service.describe()).sample_rate_hz
        replies = asyncio.run(
            speak_all(service, [text for _, text in texts], TOGETHER, seed=args.seed)
        )
    finally:
        service.close()
    heard = [
        heard_of(kind, reply, rate_hz) for (kind, _), reply in zip(texts, replies, strict=True)
    ]
    figures = {"seed": args.seed, **counted(heard)}
    if args.words:
        figures["wer_percent"] = word_errors(replies, rate_hz)
    for one in heard:
        if one.altered or one.reason != "stop" or max(one.silence_s, one.click / CLICK) > 1:
            print(json.dumps(asdict(one), ensure_ascii=False), flush=True)
    print(json.dumps(figures, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
