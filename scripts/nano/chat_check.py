"""How much of the small talk is known by heart: replies to its questions against the answers of
talk.jsonl.gz.

    python -m scripts.nano.chat_check --work DIR --lm FOLDER [--count 100]
        [--kinds meanings sums] [--out FILE]

Asks `--count` questions of every kind (0: all), of kinds with held-out questions only those. A
reply is right if it is the answer word for word and the model stopped by itself.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

import torch

from moss_engine.api.tokens import is_stop
from moss_engine.models.network import load_model
from scripts.nano.direct import Prompter
from scripts.nano.lm.generate import Settings, generate
from scripts.nano.tokenizer import read_talk

MAX_ROWS = 500


def questions(work: Path, kinds: list[str], count: int, seed: int) -> list[tuple[str, str, str]]:
    """(kind, user, answer), at most `count` of a kind; where some were held out of the training,
    only of those."""
    by_kind: dict[str, list[dict]] = {}
    for row in read_talk(work):
        if not kinds or row["kind"] in kinds:
            by_kind.setdefault(row["kind"], []).append(row)
    chosen = []
    for kind, rows in by_kind.items():
        rows = [row for row in rows if row["is_held"]] or rows
        if count and len(rows) > count:
            rows = random.Random(seed).sample(rows, count)
        chosen += [(kind, row["user"], row["spoken"]) for row in rows]
    return sorted(chosen, key=lambda item: len(item[2]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.chat_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--lm", type=Path, required=True)
    parser.add_argument("--kinds", nargs="*", default=[], help="only these (default: all)")
    parser.add_argument("--count", type=int, default=100, help="questions of a kind, 0 for all")
    parser.add_argument("--batch", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    asked = questions(args.work, args.kinds, args.count, args.seed)
    model, prompter = load_model(args.lm, device=args.device), Prompter(args.lm)
    settings = Settings(
        audio_temperature=0.6, audio_top_k=20, audio_top_p=1.0, text_temperature=0.0, seed=args.seed
    )
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for start in range(0, len(asked), args.batch):
        batch = asked[start : start + args.batch]
        replies = generate(
            model, [prompter.prompt(user, "chat") for _, user, _ in batch], settings, MAX_ROWS
        )
        for (kind, user, answer), rows in zip(batch, replies):
            reply = prompter.caption(rows, model.config)
            total[kind] += 1
            if reply == answer and is_stop(rows[-1], model.config.special):
                right[kind] += 1
            else:
                print(f"  {kind} | {user} -> {reply} | {answer}", flush=True)
    for kind, count in sorted(total.items()):
        print(f"{kind}: {right[kind]} of {count}")
    print(f"all: {sum(right.values())} of {sum(total.values())}")
    if args.out is not None:
        args.out.write_text(
            json.dumps({kind: [right[kind], count] for kind, count in sorted(total.items())}) + "\n"
        )


if __name__ == "__main__":
    main()
