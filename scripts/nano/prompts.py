"""Stage 1: text packages and patterns -> prompts.jsonl.gz.

    python -m scripts.nano.prompts --work WORK [--sources FOLDER] [--hours 160]

FOLDER is where the packages named in README.md were unpacked. Each line is {"id", "spoken",
"takes": [[voice, speed], ...], "split"}, what the teacher has to say; the text is in its spoken
form. Where the teacher needs another text to say the same, it is "voiced" ("What's new?" for
"what's new"); "forced" are phonemes of words by their place. Lines are in random order, so any
leading part of the file is a fair sample.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moss_engine.text.spoken.text import spoken_text
from scripts.nano.speech.voices import ADA, BEN, MAX_RATE, MIN_RATE, VOICES
from scripts.nano.stage import stage_parser
from scripts.nano.text.packages import is_coarse
from scripts.nano.text.reading import streams_of
from scripts.sentences import EVERYDAY, HARVARD

CHARS_PER_S = 16.0
HELD_SHARE = 0.008
SHARES = {
    "everyday": 0.19,
    "talk": 0.13,
    "wordnet_examples": 0.16,
    "definitions": 0.09,
    "bible": 0.03,
    "novels": 0.09,
    "manuals": 0.09,
    "carriers": 0.08,
    "names": 0.06,
    "hard_names": 0.02,
    "letters": 0.06,
    "homographs": 0.05,
}
SECOND_TAKE_SHARE = 0.5
"""The share of the texts that both voices speak."""
STEADY_SHARE = 0.5
"""The share of takes at about the usual rate; the others are spoken at any."""


def normal(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


class Judged:
    """Keeps evaluation sentences out of the training texts: these may share no run of words."""

    RUN = 5

    def __init__(self) -> None:
        self.whole = {normal(spoken_text(text)) for text in (*HARVARD, *EVERYDAY)}
        self.runs = {run for text in self.whole for run in self._runs(text)}

    def _runs(self, text: str) -> set[str]:
        words = text.split()
        return {" ".join(words[i : i + self.RUN]) for i in range(len(words) - self.RUN + 1)}

    def touches(self, text: str) -> bool:
        text = normal(text)
        return text in self.whole or not self.runs.isdisjoint(self._runs(text))


@dataclass(frozen=True)
class Line:
    """A text to read, and `voiced`, the same words as the teacher needs them written."""

    spoken: str
    voiced: str
    forced: dict[int, str]


def _vary(text: str, forced: dict[int, str], rng: random.Random) -> Line:
    """The text, now and then as people type: without the last mark, without capitals, or both."""
    draw, typed = rng.random(), text
    if draw < 0.08:
        typed = text.rstrip(".?!") or text
    if draw < 0.05 or 0.08 <= draw < 0.1:
        typed = " ".join(
            w if len(w.strip(".,?!;:'s")) < 2 and w[0] != "I" else w.lower() for w in typed.split()
        )
    return Line(typed, text, forced)


def read_rows(
    sources: Path, chars: int, rng: random.Random, judged: Judged
) -> Iterator[tuple[str, Line]]:
    """(source, line) of about `chars` characters in all."""
    seen: set[str] = set()
    streams = streams_of(sources, rng)
    for source, share in SHARES.items():
        left = chars * share
        kept: list[Line] = []
        for text, forced in streams[source]:
            if left <= 0:
                break
            if is_coarse(text):
                continue
            said = spoken_text(text)
            key = normal(said) if source != "letters" else said
            if forced and len(said.split()) != len(text.split()):
                continue
            if (
                not 1 <= len(key.split()) <= 40
                or len(said) > 230
                or key in seen
                or judged.touches(said)
            ):
                continue
            if len(key.split()) < 3 and rng.random() > 0.3:
                continue
            seen.add(key)
            left -= len(said) + 1
            kept.append(_vary(said, forced, rng))
        rng.shuffle(kept)
        yield from ((source, line) for line in _joined(kept, rng))


def _joined(lines: list[Line], rng: random.Random) -> Iterator[Line]:
    """Join some neighbouring sentences into texts of two or three."""
    position = 0
    while position < len(lines):
        count = rng.choices((1, 2, 3), (0.74, 0.17, 0.09))[0]
        group = lines[position : position + count]
        if count > 1 and (
            sum(len(line.spoken) for line in group) > 225
            or not all(line.spoken.endswith((".", "?", "!")) for line in group)
        ):
            group = group[:1]
        places = [0]
        for line in group:
            places.append(places[-1] + len(line.spoken.split()))
        forced = {
            k + place: said for line, place in zip(group, places) for k, said in line.forced.items()
        }
        yield Line(
            " ".join(line.spoken for line in group), " ".join(line.voiced for line in group), forced
        )
        position += len(group)


def draw_speed(rng: random.Random) -> float:
    if rng.random() < STEADY_SHARE:
        return round(rng.uniform(0.94, 1.06), 3)
    return round(MIN_RATE * (MAX_RATE / MIN_RATE) ** rng.random(), 3)


def draw_takes(rng: random.Random) -> list[tuple[str, float]]:
    first = rng.choice(VOICES)
    takes = [(first, draw_speed(rng))]
    if rng.random() < SECOND_TAKE_SHARE:
        takes.append((BEN if first == ADA else ADA, draw_speed(rng)))
    return takes


def main() -> None:
    parser = stage_parser("prompts", __doc__)
    parser.add_argument(
        "--sources", type=Path, help="folder of the unpacked packages (default: WORK/sources)"
    )
    parser.add_argument("--hours", type=float, default=160.0, help="about so much speech to read")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sources = args.sources or args.work / "sources"
    rng, judged = random.Random(args.seed), Judged()
    args.work.mkdir(parents=True, exist_ok=True)
    read_chars = int(args.hours * 3600 * CHARS_PER_S)
    rows = list(read_rows(sources, read_chars, rng, judged))
    rng.shuffle(rows)
    _write_prompts(args.work / "prompts.jsonl.gz", rows, rng, judged)


def _write_prompts(
    path: Path, rows: list[tuple[str, Line]], rng: random.Random, judged: Judged
) -> None:
    """Write rows of (source, line), and print how much there is of every source."""
    counted: Counter[str] = Counter()
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=9) as out:
        for index, (source, line) in enumerate(rows):
            assert not judged.touches(line.spoken), (
                f"an evaluation sentence in the training text: {line.spoken}"
            )
            split = "held" if rng.random() < HELD_SHARE else "train"
            takes = draw_takes(rng)
            row = {"id": index, "spoken": line.spoken, "takes": takes, "split": split}
            row |= {"voiced": line.voiced} if line.voiced != line.spoken else {}
            row |= {"forced": line.forced} if line.forced else {}
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            counted[source] += 1
            counted[f"{source} chars"] += len(line.spoken)
    sizes = [(name, counted[name], counted[f"{name} chars"]) for name in SHARES]
    for name, count, chars in [*sizes, ("total", len(rows), sum(chars for *_, chars in sizes))]:
        print(
            f"{name:18s} {count:7d} rows  {chars / 1e6:6.2f} M characters  "
            f"{chars / CHARS_PER_S / 3600:6.1f} h"
        )


if __name__ == "__main__":
    main()
