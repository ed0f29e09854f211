"""Train the nano codec (mel -> codes -> mel) on the teacher's speech.

python -m scripts.nano.train_codec --work DIR [--seconds 240]

Reads DIR/speech; keeps its state in DIR/codec.pt and writes DIR/codec/ (config.json, model.safetensors) at every save.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.fsq import FsqConfig, NanoFsq, codes_of_points, quantise
from moss_engine.codec.store import load_fsq, save_fsq
from scripts.nano.features import SpeechStream, load_speech, mel_crops, random_starts
from scripts.nano.speech import wait_for_speech
from scripts.nano.training import Clock, load_state, one_cycle, pick_device, save_state

NANO_FSQ = FsqConfig(
    mel=MOSS_MEL,
    frames_per_code=2,
    levels=(8, 8, 8, 8),
    mel_mean=-5.0,
    mel_scale=2.0,
    kernel_size=7,
    mlp_ratio=3,
    encoder_dim=256,
    encoder_blocks=(2, 2),
    decoder_dim=256,
    decoder_blocks=(4, 4),
)
SAVE_EVERY_S = 60.0
REPORT_EVERY_STEPS = 250
HELD_FRAMES = 500


class Trainee(nn.Module):
    """The codec with the normalisation that keeps every level in use; `export` folds it into the projection."""

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.fsq = NanoFsq(config)
        self.norm = nn.BatchNorm1d(len(config.levels), affine=False)

    def points(self, mel: Tensor) -> Tensor:
        raw = self.fsq.encoder(mel).float()
        return quantise(self.norm(raw.flatten(0, 1)).view_as(raw), self.fsq.config.levels)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, num_mels, frames] -> (L1 + L2 / 2, L1), both in nats"""
        error = self.fsq.decoder(self.points(mel)).float() - mel
        l1 = error.abs().mean()
        return l1 + 0.5 * error.square().mean(), l1.detach()

    def folded(self) -> NanoFsq:
        """A copy whose encoder gives normalised points by itself."""
        fsq = NanoFsq(self.fsq.config)
        fsq.load_state_dict(self.fsq.state_dict())
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        scale = (self.norm.running_var.cpu() + self.norm.eps).rsqrt()
        project = fsq.encoder.project
        with torch.no_grad():
            project.weight.mul_(scale[:, None])
            project.bias.sub_(self.norm.running_mean.cpu()).mul_(scale)
        return fsq


def main() -> None:
    args = _parse()
    device = pick_device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    wait_for_speech(args.work, args.hours)
    train, held = load_speech(args.work, device, args.max_hours)
    print(
        f"speech: {train.num_frames / 180_000:.2f} h for training, {held.num_frames / 180_000:.3f} h held out",
        flush=True,
    )

    trainee = Trainee(NANO_FSQ).to(device)
    optimizer = torch.optim.AdamW(
        trainee.parameters(), lr=args.peak_rate, betas=(0.9, 0.99), weight_decay=0.01, fused=device.type == "cuda"
    )
    state = load_state(args.work / "codec.pt", device)
    step, spent_s = 0, 0.0
    if state is not None:
        trainee.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent_s = state["step"], state["spent_s"]
        torch.manual_seed(args.seed + step)
    _train(args, device, trainee, optimizer, train, held, Clock(args.seconds, args.call_seconds, spent_s), step)
    _report_export(args.work, device, train, held)


def _train(
    args: argparse.Namespace,
    device: torch.device,
    trainee: Trainee,
    optimizer: torch.optim.Optimizer,
    train: SpeechStream,
    held: SpeechStream,
    clock: Clock,
    step: int,
) -> None:
    run = torch.compile(trainee, dynamic=False) if device.type == "cuda" and args.compile else trainee
    saved_at = time.monotonic()
    while clock.running and step < args.max_steps:
        rate = one_cycle(clock.progress, args.peak_rate)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = random_starts(
            train.num_frames, args.crop_frames, args.batch, device, multiple=NANO_FSQ.frames_per_code
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, l1 = run(mel_crops(train.mel, starts, args.crop_frames))
        loss.backward()
        nn.utils.clip_grad_norm_(trainee.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 50 == 1 and device.type == "cuda":
            torch.cuda.synchronize()  # keeps the host's clock honest
        clock.tick()
        if step % REPORT_EVERY_STEPS == 0:
            held_l1, used = _measure(trainee, held)
            print(
                f"codec step {step} at {clock.spent_s:.0f} s: rate {rate:.2e}, L1 {l1.item():.4f}, held-out L1 "
                f"{held_l1:.4f}, {used} distinct codes held out",
                flush=True,
            )
        if time.monotonic() - saved_at > SAVE_EVERY_S:
            _save(args.work, trainee, optimizer, step, clock.spent_s)
            saved_at = time.monotonic()
    _save(args.work, trainee, optimizer, step, clock.spent_s)
    print(f"codec: {step} steps in {clock.spent_s:.0f} s", flush=True)


def _save(work: Path, trainee: Trainee, optimizer: torch.optim.Optimizer, step: int, spent_s: float) -> None:
    save_state(
        work / "codec.pt",
        {"model": trainee.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "spent_s": spent_s},
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
def _report_export(work: Path, device: torch.device, train: SpeechStream, held: SpeechStream) -> None:
    """The figures of the exported files: what is shipped is what is measured."""
    fsq = load_fsq(work / "codec", device)
    errors = [(fsq.mel_of_codes(fsq.codes_of_mel(mel)) - mel).abs().mean(dim=(1, 2)) for mel in _chunks(held, 2)]
    codes = torch.cat([fsq.codes_of_mel(mel).flatten() for mel in _chunks(train, 2, limit=200)])
    used = codes.bincount(minlength=fsq.config.num_codes).float()
    share = used[used > 0] / used.sum()
    print(
        f"codec exported: held-out L1 {torch.cat(errors).mean().item():.4f}; {len(share)} of {len(used)} codes in use, "
        f"perplexity {(-(share * share.log()).sum()).exp().item():.0f}",
        flush=True,
    )


def _chunks(stream: SpeechStream, multiple: int, limit: int = 1000):
    """float32 [batch, num_mels, frames] over the first `limit` chunks of the stream, a short rest left out"""
    frames = min(HELD_FRAMES, stream.num_frames // multiple * multiple)
    for start in range(0, min(stream.num_frames - frames + 1, limit * frames), 16 * frames):
        part = stream.mel[start : start + 16 * frames]
        part = part[: len(part) // frames * frames]
        yield part.reshape(-1, frames, part.shape[1]).transpose(1, 2).float()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="work folder that holds speech/")
    parser.add_argument("--seconds", type=float, default=240.0, help="length of the whole training, over all calls")
    parser.add_argument("--call-seconds", type=float, help="end this call after so long; the next one goes on")
    parser.add_argument("--hours", type=float, default=20.0, help="speech to wait for before starting")
    parser.add_argument("--max-hours", type=float, default=60.0, help="speech to take at most")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--crop-frames", type=int, default=144)
    parser.add_argument("--peak-rate", type=float, default=1.5e-3)
    parser.add_argument("--max-steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
