"""Train a vocoder: first on spectral distances, then against critics.

    python -m scripts.nano.train_vocoder PRESET --work DIR [--codec FOLDER] --seconds 450
        [--init DIR2/PRESET.pt]

Reads DIR/vocoder_speech (see vocoder_speech.py) and the codec, whose mels half of the crops have;
writes DIR/PRESET.pt and DIR/PRESET.critics.pt in half precision at the end. --init goes on from
such a pair with fresh optimisers. `python -m scripts.nano.export_vocoder` makes a folder of it.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

from moss_engine.config import NANO_CHECKPOINT
from scripts.nano.training.cuda_step import WARM_UP_STEPS, Step
from scripts.nano.training.schedule import pick_device, save_state
from scripts.nano.vocoder.streams import VocoderSpeech
from scripts.nano.vocoder.trainer import FIGURES, PRESETS, Trainer, halved

REPORT_EVERY_STEPS = 1000
RISE_STEPS = 200
FINAL_RATE = 0.04


def rate_at(progress: float, stage_a: float, peak: float) -> float:
    """Stage a: twice the peak; stage b: a cosine from the peak down to FINAL_RATE of it."""
    if progress < stage_a:
        return 2 * peak
    fall = (progress - stage_a) / (1 - stage_a)
    return peak * (FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * fall)) / 2)


def main() -> None:
    args = _parse()
    device, ends_at = pick_device(args.device), args.until or time.time() + args.seconds
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    speech = VocoderSpeech(args.work / "vocoder_speech", args.codec, device)
    trainer = Trainer(args.preset, args.batch, args.crop_frames, device)
    if args.init:
        critics = torch.load(args.init.with_suffix(".critics.pt"), map_location=device)
        trainer.load(torch.load(args.init, map_location=device), critics)
    count = sum(p.numel() for p in trainer.generator.parameters()) / 1e6
    print(f"{args.preset}: {count:.2f} M parameters, {speech.hours:.2f} h of speech", flush=True)
    _train(args, trainer, speech, ends_at)
    save_state(args.work / f"{args.preset}.pt", halved(trainer.average))
    save_state(args.work / f"{args.preset}.critics.pt", halved(trainer.critics))


def _train(
    args: argparse.Namespace, trainer: Trainer, speech: VocoderSpeech, ends_at: float
) -> None:
    def fill() -> None:
        trainer.fill(
            speech.crops(args.batch, args.crop_frames, trainer.preset.context, args.true_share)
        )

    steps = [Step(run, trainer.device, True) for run in (trainer.reconstruct, trainer.compete)]
    trainer.set_rate(1e-9)
    for step in steps:  # captured before the clock starts, at a rate of next to nothing
        for _ in range(WARM_UP_STEPS + 1):
            fill()
            step()
    count, began, peak = 0, time.time(), args.rate or trainer.preset.rate
    while (progress := (time.time() - began) / (ends_at - began)) < 1 and count < args.max_steps:
        if count % 10 == 0:
            trainer.set_rate(
                rate_at(progress, args.stage_a, peak) * min(1.0, (count + 10) / RISE_STEPS)
            )
        fill()
        steps[progress >= args.stage_a]()
        count += 1
        if count % REPORT_EVERY_STEPS == 0:
            _report(args.preset, count, time.time() - began, trainer)
    print(f"{args.preset}: {count} steps in {time.time() - began:.0f} s", flush=True)


def _report(name: str, step: int, spent_s: float, trainer: Trainer) -> None:
    values = trainer.figures.tolist()
    figures = ", ".join(
        f"{figure} {value:.4f}" for figure, value in zip(FIGURES, values, strict=True)
    )
    print(f"{name} step {step} at {spent_s:.0f} s: {figures}", flush=True)
    if not all(map(math.isfinite, values)):
        raise SystemExit(f"{name} diverged at step {step}; try a lower --rate.")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.train_vocoder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("preset", choices=tuple(PRESETS), help="vocoder to train")
    parser.add_argument(
        "--work", type=Path, required=True, help="work folder that holds vocoder_speech/"
    )
    parser.add_argument(
        "--codec",
        type=Path,
        default=NANO_CHECKPOINT / "codec",
        help="codec folder whose mels are learnt, too",
    )
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="length of this call, start included"
    )
    parser.add_argument(
        "--until", type=float, help="end at this time instead (seconds since the epoch)"
    )
    parser.add_argument("--init", type=Path, help="go on from this PRESET.pt and its critics")
    parser.add_argument(
        "--stage-a", type=float, default=0.12, help="share of the training without critics"
    )
    parser.add_argument(
        "--true-share", type=float, default=0.5, help="share of crops with the true mel"
    )
    parser.add_argument("--batch", type=int, default=16, help="crops of one step")
    parser.add_argument("--crop-frames", type=int, default=30, help="mel frames of a crop's sound")
    parser.add_argument(
        "--rate", type=float, help="learning rate of the second stage (default: the preset's)"
    )
    parser.add_argument("--max-steps", type=int, default=10_000_000, help="end after so many steps")
    parser.add_argument("--seed", type=int, default=0, help="of first weights and crops")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N; auto is a GPU, where there is one"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
