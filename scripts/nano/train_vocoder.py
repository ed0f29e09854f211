"""Stage 7: a vocoder, trained first on spectral distances, then against critics.

    python -m scripts.nano.train_vocoder source_filter --work WORK
    python -m scripts.nano.train_vocoder bigvgan --work WORK
    python -m scripts.nano.train_vocoder source_filter --work WORK --start FOLDER --rate 2.5e-4

Reads the speech in parts from speech/, and codec/, as some crops have the mels that come out of it;
writes vocoder/source_filter/ or vocoder/bigvgan/ as a checkpoint has them. With --start it goes on
from the weights of that folder, against critics from the first step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.files import filled
from moss_engine.codec.vocoder.make import SOURCE_TYPES, save_source_vocoder
from moss_engine.codec.vocoder.source_bigvgan import SourceBigVgan
from moss_engine.codec.vocoder.source_filter import MIN_F0_HZ, SourceFilter
from scripts.nano.stage import begin_training, stage_parser
from scripts.nano.vocoder.crops import Crops, VocoderSpeech
from scripts.nano.vocoder.losses import (
    adversarial_loss,
    discriminator_loss,
    feature_distance,
    make_critics,
    mel_distance,
    part_distance,
    stft_distance,
)

BETAS, DECAY, MAX_GRADIENT, EMA_DECAY = (0.8, 0.99), 0.01, 100.0, 0.999
MEL_WEIGHT, PART_WEIGHT, FREE_MEL_WEIGHT, FEATURE_WEIGHT, F0_WEIGHT = 45.0, 20.0, 40.0, 2.0, 10.0
FIGURES = ("mel", "STFT", "parts", "pitch", "adversarial", "critics")
WITHOUT_CRITICS = 0.12
"""The share of the steps that is trained on spectral distances alone."""
RISE_STEPS, FINAL_RATE = 200, 0.04
REPORT_EVERY_STEPS = 1000
WARM_UPS = 3
GAIN = 2.0
"""So that replies have about -20 LUFS: the teacher speaks at -26.6."""


@dataclass(frozen=True)
class Kind:
    """A generator, the frames of context of its crops (left, right), the learning rate against
    critics, the share of crops with the true mel, its steps, and how its weights are stored."""

    network: type[nn.Module]
    sizes: dict[str, int]
    context: tuple[int, int]
    rate: float
    true_share: float
    steps: int
    dtype: str


KINDS = {
    "source_filter": Kind(
        SourceFilter, {"width": 224, "blocks": 5, "fine_blocks": 2, "pitch_width": 160},
        (24, 6), 5e-4, 0.4, 14_400, "int8",
    ),
    "bigvgan": Kind(
        SourceBigVgan, {"width": 384, "pitch_width": 160}, (12, 8), 4e-4, 0.5, 11_600, "float16"
    ),
}  # fmt: skip


class Trainer:
    """Generator, its averaged weights, critics, and one step of either stage."""

    def __init__(self, kind: Kind, device: torch.device, start: Path | None) -> None:
        self.kind, self.device = kind, device
        self.rate = torch.tensor(1e-5, device=device)
        self.generator, self.average = (kind.network(**kind.sizes).to(device) for _ in range(2))
        if start is not None:
            known = filled(lambda: kind.network(**kind.sizes), start, "cpu")
            self.generator.load_state_dict(known.state_dict())
        self.average.requires_grad_(False).load_state_dict(self.generator.state_dict())
        self.critics = make_critics().to(device)
        self.optimisers = [
            torch.optim.AdamW(
                network.parameters(),
                self.rate,
                BETAS,
                weight_decay=DECAY,
                capturable=device.type == "cuda",
            )
            for network in (self.generator, self.critics)
        ]

    def reconstruct(self, crops: Crops) -> list[Tensor]:
        """One step on spectral losses alone; returns its figures."""
        voiced, free = self._generate(crops)
        loss, figures = self._distances(crops, voiced, free)
        self._update(0, loss + FREE_MEL_WEIGHT * mel_distance(free, crops.rest, MOSS_MEL))
        return figures

    def compete(self, crops: Crops) -> list[Tensor]:
        """One step of the critics, then one of the generator against them; returns its figures."""
        voiced, free = self._generate(crops)
        real, fake = crops.voiced + crops.rest, voiced + free
        self.critics.requires_grad_(True)
        scores = [maps[-1].chunk(2) for maps in self._judge(real, fake.detach())]
        critic_loss = discriminator_loss([r for r, _ in scores], [f for _, f in scores])
        self._update(1, critic_loss)
        self.critics.requires_grad_(False)
        halves = [[part.chunk(2) for part in maps] for maps in self._judge(real, fake)]
        adversarial = adversarial_loss([maps[-1][1] for maps in halves])
        features = feature_distance(
            [[r for r, _ in maps[:-1]] for maps in halves],
            [[f for _, f in maps[:-1]] for maps in halves],
        )
        loss, figures = self._distances(crops, voiced, free)
        self._update(0, loss + adversarial + FEATURE_WEIGHT * features)
        return [*figures, adversarial, critic_loss]

    def _generate(self, crops: Crops) -> tuple[Tensor, Tensor]:
        return self.generator.parts(crops.mel, crops.source, *self.kind.context)  # type: ignore[operator]

    def _distances(self, crops: Crops, voiced: Tensor, free: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss that both stages have, and its figures: mel, STFT, parts and pitch."""
        real, fake = crops.voiced + crops.rest, voiced + free
        mel, stft = mel_distance(fake, real, MOSS_MEL), stft_distance(fake, real)
        parts, pitch = part_distance(voiced, crops.voiced), self._pitch_loss(crops)
        return MEL_WEIGHT * mel + stft + PART_WEIGHT * parts + pitch, [mel, stft, parts, pitch]

    def _pitch_loss(self, crops: Crops) -> Tensor:
        log2_f0, voicing = self.generator.pitch(crops.mel)  # type: ignore[operator]
        is_voiced = (crops.f0_hz > MIN_F0_HZ).float()
        error = (log2_f0 - crops.f0_hz.clamp_min(MIN_F0_HZ).log2()).abs() * is_voiced
        return F0_WEIGHT * error.sum() / (is_voiced.sum() + 1) + binary_cross_entropy_with_logits(
            voicing, is_voiced
        )

    def _judge(self, real: Tensor, fake: Tensor) -> list[list[Tensor]]:
        enabled = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled, cache_enabled=False):
            return [critic(torch.cat([real, fake])) for critic in self.critics]

    def _update(self, which: int, loss: Tensor) -> None:
        network = (self.generator, self.critics)[which]
        self.optimisers[which].zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
        self.optimisers[which].step()
        if network is self.generator:
            averaged, learnt = self.average.parameters(), network.parameters()
            with torch.no_grad():
                torch._foreach_lerp_(list(averaged), list(learnt), 1 - EMA_DECAY)


def recorded(step: Callable[[], list[Tensor]], device: torch.device) -> Callable[[], list[Tensor]]:
    """The step, on a GPU recorded as one CUDA graph, because its thousands of launches take longer
    than the work itself."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        figures = step()

    def replay() -> list[Tensor]:
        graph.replay()
        return figures

    return replay


def rate_at(step: int, steps: int, alone: int, peak: float) -> float:
    """The learning rate: twice the peak for the first `alone` steps, which have no critics, then a
    cosine from the peak down to FINAL_RATE of it; a short rise at the start."""
    rise = min(1.0, (step + 1) / RISE_STEPS)
    if step < alone:
        return rise * 2 * peak
    fall = (step - alone) / (steps - alone)
    return rise * peak * (FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * fall)) / 2)


def main() -> None:
    parser = stage_parser("train_vocoder", __doc__)
    parser.add_argument("kind", choices=tuple(KINDS), help="vocoder to train")
    parser.add_argument("--steps", type=int, help="length of the training (default: as shipped)")
    parser.add_argument("--batch", type=int, default=16, help="crops of one step")
    parser.add_argument("--crop-frames", type=int, default=30, help="mel frames of a crop's sound")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="a vocoder to go on from")
    parser.add_argument("--rate", type=float, help="learning rate against critics")
    args, device = begin_training(parser)
    kind = KINDS[args.kind]
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    speech = VocoderSpeech(args.work / "speech", args.work / "codec", device)
    trainer = Trainer(kind, device, args.start)
    count = sum(p.numel() for p in trainer.generator.parameters()) / 1e6
    print(f"{args.kind}: {count:.2f} M parameters, {speech.hours:.2f} h of speech", flush=True)
    steps, began = args.steps or kind.steps, time.monotonic()
    alone = 0 if args.start else math.ceil(steps * WITHOUT_CRITICS)

    def crops() -> Crops:
        return speech.crops(args.batch, args.crop_frames, kind.context, kind.true_share)

    for step in range(steps):
        if step == 0 and alone:
            taken = recorded(lambda: trainer.reconstruct(crops()), device)
        elif step == alone:
            taken = recorded(lambda: trainer.compete(crops()), device)
        trainer.rate.fill_(rate_at(step, steps, alone, args.rate or kind.rate))
        figures = taken()
        if (step + 1) % REPORT_EVERY_STEPS == 0 or step + 1 == steps:
            values = [float(figure.detach()) for figure in figures]
            shown = ", ".join(f"{name} {value:.4f}" for name, value in zip(FIGURES, values))
            print(f"{args.kind} step {step + 1} at {time.monotonic() - began:.0f} s: {shown}")
            if not all(map(math.isfinite, values)):
                raise SystemExit(f"{args.kind} diverged at step {step + 1}; try another --seed.")
    stored = next(name for name, network in SOURCE_TYPES.items() if network is kind.network)
    folder = args.work / "vocoder" / args.kind
    save_source_vocoder(folder, stored, kind.sizes, GAIN, trainer.average.cpu(), kind.dtype)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
