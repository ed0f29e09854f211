"""Train the nano codec (mel -> codes -> mel) on the teacher's speech.

    python -m scripts.nano.train_codec --work DIR [--seconds 240]

Reads DIR/speech; keeps its state in DIR/codec.pt and writes DIR/codec/ (config.json,
model.safetensors) at every save.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.codec.nano.fsq import codes_of_points, load_fsq, save_fsq
from scripts.nano.speech.features import SpeechStream, load_speech, mel_crops, random_starts
from scripts.nano.speech.shards import wait_for_speech
from scripts.nano.training.codec_trainee import NANO_FSQ, Trainee
from scripts.nano.training.cuda_step import Step
from scripts.nano.training.schedule import Clock, load_state, one_cycle, pick_device, save_state

SAVE_EVERY_S = 60.0
REPORT_EVERY_STEPS = 1000
HELD_FRAMES = 500


def main() -> None:
    args = _parse()
    began_s = time.monotonic()
    device = pick_device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    wait_for_speech(args.work, args.hours)
    train, held = load_speech(args.work, device, args.max_hours)
    print(
        f"speech: {train.num_frames / 180_000:.2f} h for training, "
        f"{held.num_frames / 180_000:.3f} h held out",
        flush=True,
    )

    trainee = Trainee(NANO_FSQ).to(device)
    if args.init is not None:
        trainee.fsq.load_state_dict(load_fsq(args.init, device).state_dict())
    state_path = args.work / ("decoder.pt" if args.decoder_only else "codec.pt")
    if args.decoder_only:
        begun = load_state(args.work / "codec.pt", device)
        if begun is None:
            raise SystemExit(f"{args.work}/codec.pt is missing; train the whole codec first.")
        trainee.load_state_dict(begun["model"])
        trainee.freeze()
    cuda = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        [p for p in trainee.parameters() if p.requires_grad],
        lr=torch.tensor(args.peak_rate, device=device) if cuda else args.peak_rate,
        betas=(0.9, 0.99),
        weight_decay=0.01,
        fused=cuda,
        capturable=cuda,
    )
    state = load_state(state_path, device)
    step, spent_s = 0, 0.0
    if state is not None:
        trainee.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent_s = state["step"], state["spent_s"]
        torch.manual_seed(args.seed + step)
    call_s = None if args.call_seconds is None else args.call_seconds - (time.monotonic() - began_s)
    clock = Clock(args.seconds, call_s, spent_s)
    _train(args, device, trainee, optimizer, train, held, clock, step, state_path)
    _report_export(args.work, device, train, held)


class Stepper:
    """One step on random crops of the speech, as one CUDA graph where there is a GPU."""

    def __init__(
        self,
        args: argparse.Namespace,
        device: torch.device,
        trainee: Trainee,
        optimizer: Any,
        train: SpeechStream,
    ):
        self.trainee, self.optimizer, self.train, self.device = trainee, optimizer, train, device
        self.batch, self.frames = args.batch, args.crop_frames
        self.run = (
            torch.compile(trainee, dynamic=False)
            if device.type == "cuda" and args.compile
            else trainee
        )
        self.figures = torch.zeros(2, device=device)
        self.step = Step(self._step, device, capture=args.compile)

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        per_code = NANO_FSQ.frames_per_code
        starts = random_starts(
            self.train.num_frames, self.frames, self.batch, self.device, multiple=per_code
        )
        codes = torch.arange(self.frames // per_code, device=self.device)
        phonemes = self.train.phonemes[starts[:, None] // per_code + codes].long()
        enabled = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False):
            loss, figures = self.run(mel_crops(self.train.mel, starts, self.frames), phonemes)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trainee.parameters(), 1.0)
        self.optimizer.step()
        self.figures.copy_(figures)


def _train(
    args: argparse.Namespace,
    device: torch.device,
    trainee: Trainee,
    optimizer: torch.optim.Optimizer,
    train: SpeechStream,
    held: SpeechStream,
    clock: Clock,
    step: int,
    state_path: Path,
) -> None:
    stepper = Stepper(args, device, trainee, optimizer, train)
    saved_at = time.monotonic()
    while clock.running and step < args.max_steps:
        rate = one_cycle(clock.progress, args.peak_rate)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        stepper.step()
        step += 1
        if step % 50 == 1 and device.type == "cuda":
            torch.cuda.synchronize()  # keeps the host's clock honest
        clock.tick()
        if step % REPORT_EVERY_STEPS == 0:
            held_l1, used = _measure(trainee, held)
            l1, read = stepper.figures.tolist()
            print(
                f"codec step {step} at {clock.spent_s:.0f} s: rate {rate:.2e}, L1 {l1:.4f}, "
                f"phonemes {read:.3f}, "
                f"held-out L1 {held_l1:.4f}, {used} distinct codes held out",
                flush=True,
            )
        if time.monotonic() - saved_at > SAVE_EVERY_S:
            _save(args.work, state_path, trainee, optimizer, step, clock.spent_s)
            saved_at = time.monotonic()
    _save(args.work, state_path, trainee, optimizer, step, clock.spent_s)
    print(f"codec: {step} steps in {clock.spent_s:.0f} s", flush=True)


def _save(
    work: Path,
    state_path: Path,
    trainee: Trainee,
    optimizer: torch.optim.Optimizer,
    step: int,
    spent_s: float,
) -> None:
    save_state(
        state_path,
        {
            "model": trainee.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "spent_s": spent_s,
        },
    )
    save_fsq(work / "codec", trainee.folded())


@torch.inference_mode()
def _measure(trainee: Trainee, stream: SpeechStream) -> tuple[float, int]:
    """-> (L1 in nats, number of distinct codes), by the float network over whole chunks"""
    trainee.eval()
    errors, seen = [], []
    for mel in _chunks(stream, NANO_FSQ.frames_per_code):
        points = trainee.points(mel)
        errors.append((trainee.fsq.decoder(points) - mel).abs().mean(dim=(1, 2)))
        seen.append(codes_of_points(points, NANO_FSQ.levels).unique())
    trainee.train()
    return torch.cat(errors).mean().item(), len(torch.cat(seen).unique())


@torch.inference_mode()
def _report_export(
    work: Path, device: torch.device, train: SpeechStream, held: SpeechStream
) -> None:
    """The figures of the exported files: what is shipped is what is measured."""
    fsq = load_fsq(work / "codec", device)
    errors = [
        (fsq.mel_of_codes(fsq.codes_of_mel(mel)) - mel).abs().mean(dim=(1, 2))
        for mel in _chunks(held, 2)
    ]
    codes = torch.cat([fsq.codes_of_mel(mel).flatten() for mel in _chunks(train, 2, limit=200)])
    used = codes.bincount(minlength=fsq.config.num_codes).float()
    share = used[used > 0] / used.sum()
    print(
        f"codec exported: held-out L1 {torch.cat(errors).mean().item():.4f}; {len(share)} of "
        f"{len(used)} codes in use, "
        f"perplexity {(-(share * share.log()).sum()).exp().item():.0f}",
        flush=True,
    )


def _chunks(stream: SpeechStream, multiple: int, limit: int = 1000):
    """float32 [batch, num_mels, frames] over the first `limit` chunks of the stream, a short rest
    left out"""
    frames = min(HELD_FRAMES, stream.num_frames // multiple * multiple)
    for start in range(0, min(stream.num_frames - frames + 1, limit * frames), 16 * frames):
        part = stream.mel[start : start + 16 * frames]
        part = part[: len(part) // frames * frames]
        yield part.reshape(-1, frames, part.shape[1]).transpose(1, 2).float()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.train_codec",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True, help="work folder that holds speech/")
    parser.add_argument(
        "--seconds",
        type=float,
        help="length of the whole training, over all calls (default: this one)",
    )
    parser.add_argument(
        "--call-seconds",
        type=float,
        help="end this call after so long, waiting for speech included",
    )
    parser.add_argument(
        "--hours", type=float, default=20.0, help="speech to wait for before starting"
    )
    parser.add_argument("--max-hours", type=float, default=60.0, help="speech to take at most")
    parser.add_argument("--batch", type=int, default=96, help="crops of one step")
    parser.add_argument("--crop-frames", type=int, default=144, help="mel frames of a crop")
    parser.add_argument("--peak-rate", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument(
        "--max-steps", type=int, default=1_000_000, help="end after so many steps, over all calls"
    )
    parser.add_argument("--seed", type=int, default=0, help="of first weights and crops")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N; auto is a GPU, where there is one"
    )
    parser.add_argument("--init", type=Path, help="begin with the weights of this codec folder")
    parser.add_argument(
        "--decoder-only",
        action="store_true",
        help="go on with the decoder; the codes stay the same",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU, compile the network and run the step as a CUDA graph",
    )
    args = parser.parse_args()
    if args.seconds is None and args.call_seconds is None:
        parser.error("give --seconds, --call-seconds or both")
    return args


if __name__ == "__main__":
    main()
