"""The networks of a vocoder's training: generator, critics, and one step of either stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.vocoder.source_bigvgan import SourceBigVgan
from moss_engine.codec.vocoder.source_filter import (
    MIN_F0_HZ,
    SOURCE_EDGE,
    STEPS_PER_FRAME,
    SourceFilter,
)
from scripts.nano.vocoder.critics import compressed_spectra, make_critics
from scripts.nano.vocoder.losses import (
    adversarial_loss,
    discriminator_loss,
    feature_distance,
    mel_distance,
    stft_distance,
)
from scripts.nano.vocoder.polyphase import use_polyphase
from scripts.nano.vocoder.streams import HOP, Crops

BETAS, DECAY, MAX_GRADIENT, KEPT = (0.8, 0.99), 0.01, 100.0, 0.999
MEL_WEIGHT, PART_WEIGHT, FREE_MEL_WEIGHT, FEATURE_WEIGHT, F0_WEIGHT = 45.0, 20.0, 40.0, 2.0, 10.0
PART_SIZES, PART_POWER = (2048, 1024, 512, 256), 0.5
FIGURES = ("mel", "STFT", "parts", "pitch", "adversarial", "critics")


@dataclass(frozen=True)
class Preset:
    """A generator, the frames of context of its crops (left, right), and the learning rate of its
    second stage."""

    network: type[nn.Module]
    sizes: dict[str, int]
    context: tuple[int, int]
    rate: float


PRESETS = {
    "source_filter": Preset(
        SourceFilter,
        {"width": 320, "blocks": 6, "fine_blocks": 2, "pitch_width": 160},
        (24, 6),
        5e-4,
    ),
    "source_filter_small": Preset(
        SourceFilter,
        {"width": 224, "blocks": 5, "fine_blocks": 2, "pitch_width": 160},
        (24, 6),
        5e-4,
    ),
    "bigvgan": Preset(SourceBigVgan, {"width": 384, "pitch_width": 160}, (12, 8), 4e-4),
    "bigvgan_wide": Preset(SourceBigVgan, {"width": 768, "pitch_width": 160}, (12, 8), 2.5e-4),
}


class Trainer:
    """Networks, optimisers, the static batch, and one step of either stage over it."""

    def __init__(self, preset: str, batch: int, frames: int, device: torch.device) -> None:
        self.preset, self.device, self.frames = PRESETS[preset], device, frames
        self.generator, self.average = (
            self.preset.network(**self.preset.sizes).to(device) for _ in range(2)
        )
        self.average.requires_grad_(False).load_state_dict(self.generator.state_dict())
        use_polyphase(self.generator, compiled=device.type == "cuda")
        self.critics = make_critics().to(device)
        self.optimisers = [_adam(self.generator, device), _adam(self.critics, device)]
        self.crops = self._empty_crops(batch)
        self.figures = torch.zeros(len(FIGURES), device=device)

    def _empty_crops(self, batch: int) -> Crops:
        total, samples = sum(self.preset.context) + self.frames, self.frames * HOP
        sizes = (
            (MOSS_MEL.num_mels, total), (total * HOP + 2 * SOURCE_EDGE,), (samples,), (samples,),
            (total * STEPS_PER_FRAME,), (1,),
        )  # fmt: skip
        return Crops(*(torch.zeros(batch, *size, device=self.device) for size in sizes))

    def fill(self, crops: Crops) -> None:
        for mine, new in zip(self.crops, crops, strict=True):
            mine.copy_(new)

    def set_rate(self, rate: float) -> None:
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate

    def reconstruct(self) -> None:
        """Stage a: spectral losses alone."""
        voiced, free = self._generate()
        loss, figures = self._distances(voiced, free)
        rest = self.crops.rest
        free = torch.where(self.crops.parted > 0, free, rest)
        self._update(0, loss + FREE_MEL_WEIGHT * mel_distance(free, rest, MOSS_MEL))
        self._report(*figures, loss.new_zeros(()), loss.new_zeros(()))

    def compete(self) -> None:
        """Stage b: the critics learn, then the generator against them."""
        voiced, free = self._generate()
        real, fake = self.crops.voiced + self.crops.rest, voiced + free
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
        loss, figures = self._distances(voiced, free)
        self._update(0, loss + adversarial + FEATURE_WEIGHT * features)
        self._report(*figures, adversarial, critic_loss)

    def _generate(self) -> tuple[Tensor, Tensor]:
        return self.generator.parts(self.crops.mel, self.crops.source, *self.preset.context)  # type: ignore[operator]

    def _distances(self, voiced: Tensor, free: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The losses of both stages and their figures: mel, STFT, parts and pitch"""
        crops = self.crops
        real, fake = crops.voiced + crops.rest, voiced + free
        mel, stft = mel_distance(fake, real, MOSS_MEL), stft_distance(fake, real)
        parts = part_distance(torch.where(crops.parted > 0, voiced, crops.voiced), crops.voiced)
        pitch = self._pitch_loss()
        return MEL_WEIGHT * mel + stft + PART_WEIGHT * parts + pitch, [mel, stft, parts, pitch]

    def _pitch_loss(self) -> Tensor:
        log2_f0, voicing = self.generator.pitch(self.crops.mel)  # type: ignore[operator]
        is_voiced = (self.crops.f0_hz > MIN_F0_HZ).float()
        error = (log2_f0 - self.crops.f0_hz.clamp_min(MIN_F0_HZ).log2()).abs() * is_voiced
        return F0_WEIGHT * error.sum() / (is_voiced.sum() + 1) + binary_cross_entropy_with_logits(
            voicing, is_voiced
        )

    def _judge(self, real: Tensor, fake: Tensor) -> list[list[Tensor]]:
        low = torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        )
        with low:
            return [critic(torch.cat([real, fake])) for critic in self.critics]

    def _update(self, which: int, loss: Tensor) -> None:
        network = (self.generator, self.critics)[which]
        self.optimisers[which].zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
        self.optimisers[which].step()
        if network is self.generator:
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.average.parameters()), list(network.parameters()), 1 - KEPT
                )

    def _report(self, *figures: Tensor) -> None:
        self.figures.copy_(torch.stack([figure.detach() for figure in figures]))

    def load(self, state: dict[str, Any], critics: dict[str, Any]) -> None:
        for network in (self.generator, self.average):
            network.load_state_dict(state)
        self.critics.load_state_dict(critics)


def part_distance(fake: Tensor, real: Tensor) -> Tensor:
    """Mean absolute difference of the compressed complex spectra over the sizes"""
    differences = [
        compressed_spectra(fake, size, PART_POWER) - compressed_spectra(real, size, PART_POWER)
        for size in PART_SIZES
    ]
    return torch.stack([difference.abs().mean() for difference in differences]).mean()


def halved(network: nn.Module) -> dict[str, Tensor]:
    """The network's tensors in half precision, on the host"""
    state = network.state_dict()
    return {name: (t.half() if t.is_floating_point() else t).cpu() for name, t in state.items()}


def _adam(network: nn.Module, device: torch.device) -> torch.optim.AdamW:
    on_gpu = device.type == "cuda"
    rate = torch.tensor(1e-5, device=device) if on_gpu else 1e-5
    return torch.optim.AdamW(
        network.parameters(), rate, BETAS, weight_decay=DECAY, fused=on_gpu, capturable=on_gpu
    )
