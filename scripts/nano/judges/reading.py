"""Whether a text is read as it stands: the text channel of many sentences against what is to be
read.

    python -m scripts.nano.judges.reading --texts FILE [--checkpoint assets/nano] [--sound N]

FILE has one sentence a line; what stands before a tab is the name of its kind. The language model
alone reads them all, by the engine's own rules, and each reply is compared with its text: words
altered, replies that did not end by themselves, and those that took more than twice or less than
half of the time that so many characters take. With --sound the first N of each kind are spoken by
the whole service and judged by the recogniser.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moss_engine.api.errors import InputError, MossError
from moss_engine.api.events import AudioChunk, Failed, Finished, FinishReason, TextDelta
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.tokens import spoken_codes
from moss_engine.build import build_core
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.service.core import ServiceCore
from moss_engine.text.processor import Processor
from moss_engine.text.spoken.text import spoken_text
from scripts.nano.judge import ErrorCount, Recogniser, edit_distance, judge, spoken_words

CHARS_PER_S = 16.0
"""Of spoken text, at speed 1."""
SEED = 1
TOGETHER = 4


@dataclass(frozen=True)
class Read:
    """What became of one text: its caption, how it ended, and the seconds of its codes."""

    kind: str
    text: str
    caption: str
    reason: FinishReason
    seconds: float

    @property
    def altered_words(self) -> int:
        """Edits between the words that were to be read and those of the text channel."""
        return edit_distance(words(spoken_text(self.text)), words(self.caption))

    @property
    def pace(self) -> float:
        """The time it took, of what so many characters take."""
        return self.seconds * CHARS_PER_S / max(1, len(spoken_text(self.text)))


def words(text: str) -> list[str]:
    """Words in lower case and without the mark at the end, which a typed line may lack."""
    return text.lower().rstrip(".?").split()


def read_all(
    engine: Engine, processor: Processor, texts: Sequence[tuple[str, str]], codes_per_s: float
) -> list[Read]:
    """Every text, a few at a time, without sound."""
    waiting = list(enumerate(texts))[::-1]
    captions: dict[int, str] = defaultdict(str)
    found: dict[int, Read] = {}
    running: set[int] = set()
    while waiting or running:
        while waiting and len(running) < TOGETHER:
            number, (_, text) = waiting.pop()
            engine.submit(request_of(processor, number, text))
            running.add(number)
        for event in engine.step().events:
            number = int(event.request_id)
            if isinstance(event, TextDelta):
                captions[number] += event.text
            elif isinstance(event, Failed):
                raise MossError(f"{texts[number][1]!r}: {event.message}")
            elif isinstance(event, Finished):
                running.discard(number)
                seconds = len(spoken_codes(event.rows, processor.ids)) / codes_per_s
                found[number] = Read(*texts[number], captions[number], event.reason, seconds)
    return [found[number] for number in sorted(found)]


def report(reads: Sequence[Read]) -> dict[str, int]:
    """Prints what went wrong; -> counts."""
    for read in reads:
        if read.altered_words:
            print(f"  {read.altered_words} altered | {spoken_text(read.text)} | {read.caption}")
        if read.reason is not FinishReason.STOP or not 0.5 <= read.pace <= 2:
            print(f"  {read.reason.value}, {read.pace:.2f} of the expected time | {read.text}")
    return {
        "sentences": len(reads),
        "altered_sentences": sum(read.altered_words > 0 for read in reads),
        "altered_words": sum(read.altered_words for read in reads),
        "words": sum(len(spoken_words(read.text)) for read in reads),
        "ended": sum(read.reason is FinishReason.STOP for read in reads),
        "too_long": sum(read.pace > 2 for read in reads),
        "too_short": sum(read.pace < 0.5 for read in reads),
    }


def texts_of(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, tab, text = line.partition("\t")
        if line.strip():
            yield (kind, text) if tab else ("", line)


async def speak(core: ServiceCore, request: Request) -> np.ndarray:
    """float32 [samples] of one reply."""
    parts = [event.samples async for event in core.stream(request) if isinstance(event, AudioChunk)]
    return np.concatenate(parts) if parts else np.zeros(1, np.float32)


def judged(config: EngineConfig, texts: Sequence[str]) -> float:
    """Word error rate of the spoken texts, in percent."""
    core, processor = build_core(config)
    core.start()
    recogniser, total = Recogniser(), ErrorCount()
    try:
        for number, text in enumerate(texts):
            wave = asyncio.run(speak(core, request_of(processor, number, text)))
            total += judge(recogniser, [wave], [text], core.codec.sample_rate_hz)
    finally:
        core.close()
    return round(100 * total.word_error_rate, 2)


def request_of(processor: Processor, number: int, text: str) -> Request:
    sampling = dataclasses.replace(processor.default_sampling, seed=SEED)
    message = Message("user", Text(text))
    return Request(str(number), str(number), (message,), processor.default_mode.name, sampling)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.judges.reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=NANO_CHECKPOINT)
    parser.add_argument(
        "--sound", type=int, default=0, metavar="N", help="judge the first N of each kind, too"
    )
    args = parser.parse_args()
    texts = list(texts_of(args.texts))
    if not texts:
        raise InputError(f"{args.texts} has no line; give one sentence a line.")
    config = EngineConfig(checkpoint=args.checkpoint)
    core, processor = build_core(config)
    figures: dict[str, float] = dict(
        report(read_all(core.engine, processor, texts, float(core.codec.code_rate_hz)))
    )
    core.engine.close()
    if args.sound:
        by_kind: dict[str, list[str]] = defaultdict(list)
        for kind, text in texts:
            by_kind[kind].append(text)
        for kind, some in by_kind.items():
            figures[f"wer_{kind or 'all'}_percent"] = judged(config, some[: args.sound])
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
