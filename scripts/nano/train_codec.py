"""Stage 4: the codec, mel -> codes -> mel, trained on the teacher's speech -> codec/.

    python -m scripts.nano.train_codec --work WORK

It trains first the whole codec, then the decoder alone, so that the codes of sound stay the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from moss_engine.codec.nano import FsqConfig, NanoFsq, load_fsq, quantise, save_fsq
from scripts.nano.speech.shards import SpeechStream, load_speech
from scripts.nano.stage import begin_training, one_cycle, set_rate, stage_parser

PHONEMES, PHONEME_WEIGHT = 178, 0.1
HEARD_FROM, HEARD_WIDTH, UNHEARD_WEIGHT = -7.0, 0.7, 0.3
"""Below this log-mel a band is hardly heard: errors there count less, down to this weight, so that
codes are not spent on silence."""
REPORT_EVERY_STEPS = 1000
CHUNK_FRAMES = 500


class Phase(NamedTuple):
    """A phase of the training: crops of each step, and the highest learning rate."""

    batch: int
    peak_rate: float


WHOLE, DECODER = Phase(96, 1.5e-3), Phase(128, 7e-4)


class Trainee(nn.Module):
    """The codec while it is trained, with a normalisation that keeps every level in use; `folded`
    moves that into the projection.

    A small reader guesses the phoneme of every code from it and its neighbours: codes that tell
    phonemes apart are understood better, and easier to predict.
    """

    def __init__(self, config: FsqConfig) -> None:
        super().__init__()
        self.fsq = NanoFsq(config)
        self.norm = nn.BatchNorm1d(len(config.levels), affine=False)
        self.frozen = False
        self.reader = nn.Sequential(
            nn.Conv1d(len(config.levels), 256, 3, padding=1), nn.GELU(), nn.Conv1d(256, PHONEMES, 1)
        )

    def points(self, mel: Tensor) -> Tensor:
        raw = self.fsq.encoder(mel).float()
        return quantise(self.norm(raw.flatten(0, 1)).view_as(raw), self.fsq.config.levels)

    def forward(self, mel: Tensor, phonemes: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, num_mels, frames], [batch, codes] -> (loss, [L1 in nats, cross entropy of
        phonemes in nats])"""
        with torch.set_grad_enabled(not self.frozen):
            points = self.points(mel)
        decoded = self.fsq.decoder(points).float()
        weight = (torch.maximum(mel, decoded.detach()) - HEARD_FROM).div(HEARD_WIDTH).sigmoid()
        weight = UNHEARD_WEIGHT + (1 - UNHEARD_WEIGHT) * weight
        error = decoded - mel
        read = nn.functional.cross_entropy(self.reader(points.transpose(1, 2)).float(), phonemes)
        loss = (weight * (error.abs() + 0.5 * error.square())).mean() + PHONEME_WEIGHT * read
        return loss, torch.stack([error.abs().mean().detach(), read.detach()])

    def train(self, mode: bool = True) -> Trainee:
        super().train(mode)
        if self.frozen:
            self.norm.eval()
        return self

    def freeze(self) -> None:
        """Fix what turns sound into codes: from now on only the decoder is trained."""
        self.frozen = True
        self.train()
        self.fsq.encoder.requires_grad_(False)
        self.reader.requires_grad_(False)

    def folded(self) -> NanoFsq:
        """A copy for export, with the normalisation as part of its encoder's projection."""
        fsq = NanoFsq(self.fsq.config)
        fsq.load_state_dict(self.fsq.state_dict())
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        scale = (self.norm.running_var.cpu() + self.norm.eps).rsqrt()
        project = fsq.encoder.project
        with torch.no_grad():
            project.weight.mul_(scale[:, None])
            project.bias.sub_(self.norm.running_mean.cpu()).mul_(scale)
        return fsq


def mel_crops(
    stream: SpeechStream, frames: int, batch: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Random crops: mels float32 [batch, num_mels, frames], and the phonemes of their codes."""
    per_code = FsqConfig().frames_per_code
    choices = (stream.num_frames - frames) // per_code + 1
    if choices < 1:
        raise SystemExit(f"{stream.num_frames} frames of speech are less than a crop of {frames}.")
    starts = torch.randint(choices, (batch, 1), device=device) * per_code
    mel = stream.mel[starts + torch.arange(frames, device=device)].transpose(1, 2).float()
    codes = starts // per_code + torch.arange(frames // per_code, device=device)
    return mel, stream.phonemes[codes].long()


def train(
    trainee: Trainee,
    phase: Phase,
    steps: int,
    crops: Callable[[int], tuple[Tensor, Tensor]],
    held: SpeechStream,
) -> None:
    """Train one phase; `crops(batch)` makes new ones for every step."""
    device = next(trainee.parameters()).device
    on_gpu, began = device.type == "cuda", time.monotonic()
    run = torch.compile(trainee, dynamic=False) if on_gpu else trainee
    learnt = [p for p in trainee.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learnt, betas=(0.9, 0.99), weight_decay=0.01, fused=on_gpu)
    for step in range(steps):
        set_rate(optimizer, one_cycle(step / steps, phase.peak_rate, warm_up=0.05))
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss, figures = run(*crops(phase.batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        if (step + 1) % REPORT_EVERY_STEPS == 0 or step + 1 == steps:
            l1, read = figures.tolist()
            print(
                f"codec step {step + 1} of {steps} at {time.monotonic() - began:.0f} s: L1 "
                f"{l1:.4f}, phonemes {read:.3f}, held-out L1 {held_l1(trainee.folded(), held):.4f}",
                flush=True,
            )


@torch.inference_mode()
def held_l1(fsq: NanoFsq, held: SpeechStream) -> float:
    """Mean absolute error of the log-mel in nats on held-out speech, by the network as exported."""
    device = held.mel.device
    fsq = fsq.to(device).eval()
    errors = [
        (fsq.mel_of_codes(fsq.codes_of_mel(mel)) - mel).abs().mean(dim=(1, 2))
        for mel in chunks(held)
    ]
    return torch.cat(errors).mean().item()


def chunks(stream: SpeechStream) -> Iterator[Tensor]:
    """The stream in batches float32 [batch, num_mels, frames]; a short rest is left out."""
    per_code = FsqConfig().frames_per_code
    frames = min(CHUNK_FRAMES, stream.num_frames // per_code * per_code)
    for part in stream.mel.split(16 * frames):
        part = part[: len(part) // frames * frames]
        if len(part):
            yield part.reshape(-1, frames, part.shape[1]).transpose(1, 2).float()


def main() -> None:
    parser = stage_parser("train_codec", __doc__)
    parser.add_argument("--steps", type=int, default=31_000, help="steps of the whole codec")
    parser.add_argument(
        "--decoder-steps", type=int, default=62_700, help="further steps of the decoder alone"
    )
    parser.add_argument("--hours", type=float, default=16.0, help="speech to take at most")
    parser.add_argument("--batch", type=int, help="crops of one step (default: as shipped)")
    parser.add_argument("--crop-frames", type=int, default=144, help="mel frames of a crop")
    args, device = begin_training(parser)
    speech, held = load_speech(args.work, device, args.hours)
    print(f"codec: {speech.num_frames / 180_000:.3f} h of speech", flush=True)

    def crops(batch: int) -> tuple[Tensor, Tensor]:
        return mel_crops(speech, args.crop_frames, args.batch or batch, device)

    trainee = Trainee(FsqConfig()).to(device)
    train(trainee, WHOLE, args.steps, crops, held)
    trainee.freeze()
    train(trainee, DECODER, args.decoder_steps, crops, held)
    save_fsq(args.work / "codec", trainee.folded())
    fsq = load_fsq(args.work / "codec", device)
    with torch.inference_mode():
        used = torch.cat([fsq.codes_of_mel(mel).flatten() for mel in chunks(held)]).unique()
    print(f"codec: held-out L1 {held_l1(fsq, held):.4f}, {len(used)} distinct codes held out")


if __name__ == "__main__":
    main()
