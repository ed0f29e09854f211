"""Stage 7: prompts, talk, codes and tokenizer -> lm.pt (state) and lm/ (checkpoint folder in
float32).

    python -m scripts.nano.train_lm --work DIR --seconds 420 --total-seconds 900

The schedule follows the clock: `--seconds` ends this call, `--total-seconds` the training; the next
call goes on. Without `--total-seconds` this call is the whole training.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.nano.lm.corpus import Corpus
from scripts.nano.lm.ranks import Ranks
from scripts.nano.lm.sequences import WIDTHS, Shape, batches, shape_of, start_workers
from scripts.nano.lm.trainer import PEAK_RATE, TEXT_WEIGHT, Staging, Trainer, steps_done
from scripts.nano.training.schedule import Clock, one_cycle, pick_device

SAVE_EVERY_S = 120.0
HELD_EVERY_S = 60.0
LOG_EVERY_S = 10.0


class Log:
    """One line of JSON now and then: the means since the last one."""

    def __init__(self, device: torch.device, step: int):
        self._sums = torch.zeros(2, device=device)
        self._begin(step)

    def _begin(self, step: int) -> None:
        self._sums.zero_()
        self._begun_s, self._first_step, self.waited_s = time.monotonic(), step, 0.0

    def add(self, losses: tuple[Tensor, Tensor]) -> None:
        self._sums += torch.stack(losses)

    def write_when_due(self, step: int, progress: float) -> None:
        took_s = time.monotonic() - self._begun_s
        if took_s < LOG_EVERY_S:
            return
        done = step - self._first_step
        text, audio = (self._sums / done).tolist()
        assert np.isfinite(text + audio), "the loss is not finite"
        say(
            step=step,
            progress=round(progress, 3),
            text=round(text, 4),
            audio=round(audio, 4),
            step_ms=round(1000 * took_s / done, 1),
            waited_s=round(self.waited_s, 2),
        )
        self._begin(step)


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


class Feed:
    """The next batch: a new one if the workers have one, else one of those seen before.

    Workers on a CPU cannot keep several GPUs busy; a batch that comes again comes with other
    dropout.
    """

    MIN_SEEN = 64
    MAX_SEEN = 6000

    def __init__(self, ready: queue.Queue, staging: Staging, seed: int):
        self.ready, self.staging, self.rng = ready, staging, random.Random(seed)
        self.seen: list[Tensor] = []
        self.repeated = self.drawn = 0

    def __call__(self) -> list[Tensor]:
        self.drawn += 1
        if len(self.seen) >= self.MIN_SEEN and self.ready.empty():
            self.repeated += 1
            return self.staging.unpack(self.rng.choice(self.seen))
        batch = self.staging.to_device(self.ready.get(timeout=180))
        if len(self.seen) < self.MAX_SEEN:
            self.seen.append(batch)
        else:
            self.seen[self.rng.randrange(self.MAX_SEEN)] = batch
        return self.staging.unpack(batch)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    began_s = time.monotonic()
    corpus, held_corpus = Corpus(args.work, "train"), Corpus(args.work, "held")
    shape = shape_of(corpus, args.rows, args.seed)
    rank = int(os.environ.get("RANK", 0))
    ready, workers = start_workers(
        corpus, shape, args.seed + steps_done(args.work) + 7919 * rank, args.workers, args.begin_at
    )
    try:
        device = pick_device(args.device)
        torch.set_float32_matmul_precision("high")
        ranks = Ranks(device)
        staging = Staging(shape, device)
        held = held_batches(args, held_corpus, shape, staging)
        trainer = Trainer(
            args.work, corpus.config, shape, device, args.compile, args.init, ranks, args.new_codes
        )
        trainer.text_weight = args.text_weight
        torch.manual_seed(args.seed + 1 + rank)
        if ranks.leads:
            say_what_is_trained(corpus, held_corpus, shape, trainer, began_s)
        if args.begin_at is not None:
            prepare(trainer, staging.load(next(batches(corpus, shape, args.seed)).packed()))
            while not args.begin_at.exists():
                time.sleep(0.5)
            held_corpus.refresh()
            held = held_batches(args, held_corpus, shape, staging)
            say(began_s=round(time.monotonic() - began_s, 1), rank=rank)
        call_s = None if args.seconds is None else args.seconds - (time.monotonic() - began_s)
        clock = Clock(args.total_seconds, call_s, trainer.spent_s)
        feed = Feed(ready, staging, args.seed + rank)
        run_steps(trainer, feed, held, clock, args.peak_rate)
        if ranks.leads:
            end(trainer, feed, held, clock, began_s)
        ranks.close()
    finally:
        for worker in workers:
            worker.terminate()


def held_batches(
    args: argparse.Namespace, corpus: Corpus, shape: Shape, staging: Staging
) -> list[list[Tensor]]:
    """The first held-out batches, on the device."""
    found = [
        staging.load(b.packed()) for b in batches(corpus, shape, args.seed, dropout=False, epochs=1)
    ]
    return found[: args.held_batches]


def say_what_is_trained(
    corpus: Corpus, held_corpus: Corpus, shape: Shape, trainer: Trainer, began_s: float
) -> None:
    say(
        texts=len(corpus.reads),
        talk={kind: len(pairs) for kind, pairs in corpus.talk.items()},
        answers=len(corpus.answers),
        held=len(held_corpus.reads),
        rows_a_step=shape.num_rows,
        cells=dict(zip(WIDTHS, shape.cells)),
        text_targets=shape.text_targets,
        audio_targets=shape.audio_targets,
        step=trainer.step,
        ranks=trainer.ranks.count,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
        prepared_s=round(time.monotonic() - began_s, 1),
    )


def end(
    trainer: Trainer, feed: Feed, held: list[list[Tensor]], clock: Clock, began_s: float
) -> None:
    """Save, and say what came of it."""
    text, audio = trainer.held_losses(held)
    trainer.save(clock.spent_s)
    say(
        step=trainer.step,
        spent_s=round(clock.spent_s, 1),
        held_text=round(text, 4),
        held_audio=round(audio, 4),
        wall_s=round(time.monotonic() - began_s, 1),
        repeated=round(feed.repeated / max(1, feed.drawn), 3),
    )


def prepare(trainer: Trainer, tensors: list[Tensor]) -> None:
    """Compile the step on any batch, without learning from it."""
    for _ in range(2):
        text, audio = trainer.losses(trainer.run, tensors)
        (trainer.text_weight * text + audio).backward()
        trainer.optimiser.zero_grad(set_to_none=True)
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()


def run_steps(
    trainer: Trainer,
    feed: Callable[[], list[Tensor]],
    held: list[list[Tensor]],
    clock: Clock,
    peak_rate: float,
) -> None:
    """Steps until the clock ends this call; now and then the held-out losses are shown and the
    state is saved."""
    saved_s = checked_s = time.monotonic()
    log, leads = Log(trainer.device, trainer.step), trainer.ranks.leads
    while True:
        progress, running = trainer.ranks.agree(clock.progress, clock.running)
        if not running:
            return
        waiting_s = time.monotonic()
        tensors = feed()
        log.waited_s += time.monotonic() - waiting_s
        log.add(trainer.train_step(tensors, one_cycle(progress, peak_rate, warm_up=0.02)))
        clock.tick()
        if not leads:
            continue
        log.write_when_due(trainer.step, clock.progress)
        now_s = time.monotonic()
        if now_s - checked_s >= HELD_EVERY_S:
            text, audio = trainer.held_losses(held)
            checked_s = time.monotonic()
            say(step=trainer.step, held_text=round(text, 4), held_audio=round(audio, 4))
        if now_s - saved_s >= SAVE_EVERY_S:
            trainer.save(clock.spent_s)
            saved_s = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.train_lm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True, help="work folder of the stages before")
    parser.add_argument(
        "--seconds", type=float, default=None, help="end of this call (default: none)"
    )
    parser.add_argument(
        "--total-seconds",
        type=float,
        help="length of the whole training (default: what --seconds leaves of this call)",
    )
    parser.add_argument("--rows", type=int, default=73_728, help="rows of one step")
    parser.add_argument("--workers", type=int, default=6, help="processes that prepare batches")
    parser.add_argument(
        "--init", type=Path, help="begin with the weights of this checkpoint folder"
    )
    parser.add_argument(
        "--new-codes",
        action="store_true",
        help="with --init: codes, voices and rates are learnt anew",
    )
    parser.add_argument(
        "--begin-at", type=Path, help="prepare all, then wait until there is this file"
    )
    parser.add_argument("--held-batches", type=int, default=8, help="held-out batches to measure")
    parser.add_argument("--peak-rate", type=float, default=PEAK_RATE, help="highest learning rate")
    parser.add_argument("--text-weight", type=float, default=TEXT_WEIGHT, help="of the text's loss")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N; auto is a GPU, where there is one"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile the network and its losses",
    )
    parser.add_argument("--seed", type=int, default=1, help="of first weights and batches")
    args = parser.parse_args()
    if args.seconds is None and args.total_seconds is None:
        parser.error("give --seconds, --total-seconds or both")
    train(args)


if __name__ == "__main__":
    main()
