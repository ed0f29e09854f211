"""Teach a finished language model more small talk without touching its voice: only the text branch
learns, on a CPU.

    python -m scripts.nano.tune_text --work DIR --init FOLDER [--minutes 25]

The trunk's states of a set of text-only sequences (small talk, and texts to read so that copying is
kept) are computed once; then the two layers of the text branch, its norm and its head learn from
them. What the audio branch says of a row is the same as before. Writes DIR/lm with weights `--mix`
of the way from those before to the averaged ones learnt: half of the way keeps what was hardly
repeated here, above all copying a text, and has learnt the rest.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.models.network import MossSpeech, causal_attend, load_model, rotary_tables
from scripts.nano.lm.corpus import Corpus
from scripts.nano.lm.layout import TEXT_TARGET, LaidOut
from scripts.nano.lm.trainer import export_folder
from scripts.nano.training.schedule import one_cycle

EACH_ANSWER = {"intents": 2, "meanings": 1}
"""Of these kinds so many questions for every answer are taken, so that none is forgotten."""
QUESTIONS = {
    "calendar": 40,
    "opposites": 60,
    "capitals": 110,
    "plurals": 60,
    "sums": 1100,
    "large sums": 130,
    "unknown words": 200,
    "off the script": 100,
}
READS = 130
EMA_DECAY = 0.99
REPORT_EVERY_STEPS = 50


@dataclass(frozen=True)
class Batch:
    """trunk: float16 [sequences, rows, hidden]; at: flat indices of the rows that predict; target:
    their text ids."""

    trunk: Tensor
    at: Tensor
    target: Tensor


def draw(corpus: Corpus, rng: random.Random) -> list[LaidOut]:
    """Text-only sequences: small talk, and some texts to read."""
    found = []
    for kind, pairs in corpus.talk.items():
        if kind in EACH_ANSWER:
            asked: dict[str, list[str]] = {}
            for user, answer in pairs:
                asked.setdefault(answer, []).append(user)
            count = EACH_ANSWER[kind]
            chosen = [
                (user, answer)
                for answer, users in asked.items()
                for user in rng.sample(users, min(count, len(users)))
            ]
        else:
            chosen = rng.sample(pairs, QUESTIONS[kind])
        found += [
            corpus.answer_sequence(user, answer, rng, dropout=False, only_text=True)
            for user, answer in chosen
        ]
    for index in rng.sample(range(len(corpus.reads)), READS):
        found.append(corpus.read_sequence(index, rng, dropout=True, only_text=True))
    return found


def grouped(sequences: Sequence[LaidOut], rows: int) -> list[list[LaidOut]]:
    """Groups of sequences of nearly one length, about `rows` rows each."""
    groups: list[list[LaidOut]] = [[]]
    for sequence in sorted(sequences, key=lambda s: len(s.rows)):
        if groups[-1] and (len(groups[-1]) + 1) * len(sequence.rows) > rows:
            groups.append([])
        groups[-1].append(sequence)
    return groups


@torch.no_grad()
def batch_of(model: MossSpeech, group: Sequence[LaidOut]) -> Batch:
    """A group padded at its ends, through the trunk."""
    longest = max(len(s.rows) for s in group)
    rows = torch.zeros(len(group), longest, 2, dtype=torch.long)
    at, target = [], []
    for k, sequence in enumerate(group):
        rows[k, : len(sequence.rows)] = torch.from_numpy(sequence.rows.astype("int64"))
        predicting = (sequence.target == TEXT_TARGET).nonzero()[0]
        at += (k * longest + predicting).tolist()
        target += sequence.rows[predicting + 1, 0].tolist()
    trunk = model.model.shared_block(model.embed(rows), rotary_of(model, longest), causal_attend)
    return Batch(trunk.half(), torch.tensor(at), torch.tensor(target))


def rotary_of(model: MossSpeech, rows: int) -> tuple[Tensor, Tensor]:
    return rotary_tables(
        torch.arange(rows), model.config.head_dim, model.config.rope_theta, torch.float32
    )


def text_loss(model: MossSpeech, batch: Batch) -> Tensor:
    rotary = rotary_of(model, batch.trunk.shape[1])
    states = model.model.text_block(batch.trunk.float(), rotary, causal_attend).flatten(0, 1)[
        batch.at
    ]
    return F.cross_entropy(model.text_lm_head(model.model.text_norm(states)), batch.target)


def main() -> None:
    args = _parse()
    torch.set_num_threads(args.threads)
    rng = random.Random(args.seed)
    model = load_model(args.init, device="cpu").float()
    corpus = Corpus(args.work, "train")
    began = time.monotonic()
    sequences = draw(corpus, rng)
    batches = [batch_of(model, group) for group in grouped(sequences, args.rows)]
    print(
        f"{len(sequences)} sequences in {len(batches)} batches after "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    learning = torch.nn.ModuleList(
        [model.model.text_block, model.model.text_norm, model.text_lm_head]
    )
    model.requires_grad_(False)
    learning.requires_grad_(True)
    before, averaged = copy.deepcopy(learning), copy.deepcopy(learning)
    optimiser = torch.optim.AdamW(
        learning.parameters(), lr=args.peak_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    began, step, spent_s, loss_sum = time.monotonic(), 0, 0.0, 0.0
    while spent_s < 60 * args.minutes:
        rng.shuffle(batches)
        for batch in batches:
            spent_s = time.monotonic() - began
            if spent_s >= 60 * args.minutes:
                break
            for group in optimiser.param_groups:
                group["lr"] = one_cycle(spent_s / (60 * args.minutes), args.peak_rate)
            loss = text_loss(model, batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning.parameters(), 1.0)
            optimiser.step()
            step += 1
            decay = min(EMA_DECAY, (1 + step) / (10 + step))
            for mean, now in zip(averaged.parameters(), learning.parameters()):
                mean.detach().lerp_(now.detach(), 1 - decay)
            loss_sum += float(loss.detach())
            if step % REPORT_EVERY_STEPS == 0:
                print(
                    f"step {step} after {spent_s:.0f} s: loss {loss_sum / REPORT_EVERY_STEPS:.4f}",
                    flush=True,
                )
                loss_sum = 0.0
    save(model, before, averaged, args.mix, args.work)
    print(f"{step} steps in {spent_s:.0f} s", flush=True)


def save(
    model: MossSpeech, before: torch.nn.Module, averaged: torch.nn.Module, mix: float, work: Path
) -> None:
    """DIR/lm: `mix` of the way from the weights before to the averaged ones, and what did not learn
    as it is."""
    learnt = [p for p in model.parameters() if p.requires_grad]
    mixed = [old.lerp(new, mix) for old, new in zip(before.parameters(), averaged.parameters())]
    values = dict(zip(map(id, learnt), mixed))
    export_folder({name: values.get(id(p), p) for name, p in model.named_parameters()}, work)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.tune_text",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True, help="work folder of the stages before")
    parser.add_argument("--init", type=Path, required=True, help="checkpoint folder to begin with")
    parser.add_argument("--minutes", type=float, default=25.0, help="length of the learning")
    parser.add_argument("--rows", type=int, default=1024, help="rows of one step")
    parser.add_argument("--peak-rate", type=float, default=7e-4, help="highest learning rate")
    parser.add_argument(
        "--mix", type=float, default=0.5, help="0: the weights before, 1: those learnt"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--seed", type=int, default=1, help="of the sequences and their order")
    return parser.parse_args()


if __name__ == "__main__":
    main()
