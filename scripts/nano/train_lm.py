"""Stage 7: prompts, talk, codes and tokenizer -> lm.pt (state) and lm/ (checkpoint folder in float32).

    python -m scripts.nano.train_lm --work DIR --seconds 420 --total-seconds 900

The schedule follows the clock: `--seconds` ends this call, `--total-seconds` the training; the next call goes on.
Without `--total-seconds` this call is the whole training.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.nano.corpus import Corpus
from scripts.nano.lm_trainer import PEAK_RATE, TEXT_WEIGHT, Staging, Trainer, steps_done
from scripts.nano.sequences import WIDTHS, batches, shape_of, start_workers
from scripts.nano.training import Clock, one_cycle, pick_device

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
        say(step=step, progress=round(progress, 3), text=round(text, 4), audio=round(audio, 4),
            step_ms=round(1000 * took_s / done, 1), waited_s=round(self.waited_s, 2))
        self._begin(step)


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    began_s = time.monotonic()
    corpus, held_corpus = Corpus(args.work, "train"), Corpus(args.work, "held")
    shape = shape_of(corpus, args.rows, args.seed)
    queue, workers = start_workers(corpus, shape, args.seed + steps_done(args.work), args.workers)
    try:
        device = pick_device(args.device)
        torch.set_float32_matmul_precision("high")
        staging = Staging(shape, device)
        held = [staging.load(b.packed()) for b in batches(held_corpus, shape, args.seed, dropout=False, epochs=1)]
        trainer = Trainer(args.work, corpus.config, shape, device, args.compile, args.init)
        trainer.text_weight = args.text_weight
        say(texts=len(corpus.reads), talk={kind: len(pairs) for kind, pairs in corpus.talk.items()},
            answers=len(corpus.answers), held=len(held_corpus.reads), rows_a_step=shape.num_rows,
            cells=dict(zip(WIDTHS, shape.cells)), text_targets=shape.text_targets, audio_targets=shape.audio_targets,
            parameters=sum(p.numel() for p in trainer.model.parameters()), step=trainer.step,
            prepared_s=round(time.monotonic() - began_s, 1))
        clock = Clock(args.total_seconds, args.seconds, trainer.spent_s)
        run_steps(trainer, lambda: queue.get(timeout=120), staging, held, clock, args.peak_rate)
        text, audio = trainer.held_losses(held)
        trainer.save(clock.spent_s)
        say(step=trainer.step, spent_s=round(clock.spent_s, 1), held_text=round(text, 4), held_audio=round(audio, 4),
            wall_s=round(time.monotonic() - began_s, 1))
    finally:
        for worker in workers:
            worker.terminate()


def run_steps(trainer: Trainer, next_batch: Callable[[], np.ndarray], staging: Staging, held: list[list[Tensor]],
              clock: Clock, peak_rate: float) -> None:
    """Steps until the clock ends this call; now and then the held-out losses are shown and the state is saved."""
    saved_s = checked_s = time.monotonic()
    log = Log(trainer.device, trainer.step)
    while clock.running:
        waiting_s = time.monotonic()
        packed = next_batch()
        log.waited_s += time.monotonic() - waiting_s
        log.add(trainer.train_step(staging.load(packed), one_cycle(clock.progress, peak_rate, warm_up=0.02)))
        clock.tick()
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=None, help="end of this call (default: none)")
    parser.add_argument(
        "--total-seconds", type=float, help="length of the whole training (default: what --seconds leaves of this call)"
    )
    parser.add_argument("--rows", type=int, default=73_728, help="rows of one step")
    parser.add_argument("--workers", type=int, default=6, help="processes that prepare batches")
    parser.add_argument("--init", type=Path, help="begin with the weights of this checkpoint folder")
    parser.add_argument("--peak-rate", type=float, default=PEAK_RATE)
    parser.add_argument("--text-weight", type=float, default=TEXT_WEIGHT)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.seconds is None and args.total_seconds is None:
        parser.error("give --seconds, --total-seconds or both")
    train(args)


if __name__ == "__main__":
    main()
