"""How much of the small talk is known by heart: replies to scripted prompts against the answers in prompts.jsonl.gz.

    python -m scripts.nano.chat_check --work DIR --lm DIR/lm [--count 240]

An answer counts as right if it is one of those written for this prompt; of a sum only its number counts. Prompts off
the script count as right if they are refused.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import torch

from moss_engine.models.load import load_model
from scripts.nano.direct import Prompter, Settings, generate
from scripts.nano.small_talk import REFUSALS
from scripts.nano.tokenizer import read_prompts

BATCH = 80
MAX_ROWS = 500


def kind_of(user: str, spoken: str) -> str:
    asked = f" {user.lower()} "
    if spoken in REFUSALS:
        return "off the script"
    if any(sign in asked for sign in (" plus ", " minus ", " add ", " sum ", " subtract ", " take ", " less ")) or (
        " and " in asked and asked.split()[0] in ("what", "what's") and "-" in asked
    ):
        return "sums"
    if " means " in spoken:
        return "meanings"
    if "plural" in asked or "opposite" in asked:
        return "plurals and opposites"
    if "capital" in asked:
        return "capitals"
    return "intents and calendar"


def gist(kind: str, answer: str) -> str:
    """What has to be right in an answer."""
    text = answer.strip(" .!?").lower()
    return text.rpartition(" is ")[2] if kind == "sums" else text


def is_right(kind: str, reply: str, answers: set[str]) -> bool:
    if kind == "off the script":
        return reply in REFUSALS
    return gist(kind, reply) in {gist(kind, answer) for answer in answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--lm", type=Path, required=True)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    answers: dict[str, set[str]] = {}
    for row in read_prompts(args.work):
        if row["mode"] == "chat":
            answers.setdefault(row["user"], set()).add(row["spoken"])
    asked = random.Random(args.seed).sample(sorted(answers), args.count)
    model, prompter = load_model(args.lm, device=args.device), Prompter(args.lm)
    settings = Settings(audio_temperature=0.6, audio_top_k=20, audio_top_p=1.0, text_temperature=0.0, seed=args.seed)
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for start in range(0, len(asked), BATCH):
        users = asked[start : start + BATCH]
        replies = generate(model, [prompter.prompt(user, "chat") for user in users], settings, MAX_ROWS)
        for user, rows in zip(users, replies):
            reply, kind = prompter.caption(rows, model.config), kind_of(user, min(answers[user]))
            total[kind] += 1
            if is_right(kind, reply, answers[user]):
                right[kind] += 1
            else:
                print(f"  {kind} | {user} -> {reply} | {min(answers[user])}")
    for kind, count in sorted(total.items()):
        print(f"{kind}: {right[kind]} of {count}")
    print(f"all: {sum(right.values())} of {sum(total.values())}")


if __name__ == "__main__":
    main()
