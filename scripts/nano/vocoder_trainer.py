"""The networks of the vocoder's training: a BigVGAN, its discriminators, and one step of either stage."""

from __future__ import annotations

import contextlib
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.bigvgan import build_generator, import_bigvgan_module
from moss_engine.codec.store import save_vocoder
from scripts.nano.polyphase import use_polyphase
from scripts.nano.vocoder_losses import (
    adversarial_loss,
    discriminator_loss,
    feature_distance,
    mel_distance,
    stft_distance,
)

MEL_FIELDS = {
    "sampling_rate": 24_000, "n_fft": 1920, "win_size": 1920, "hop_size": 480, "num_mels": 80, "fmin": 0, "fmax": 8000,
}  # fmt: skip
COMMON = {
    "activation": "snakebeta", "snake_logscale": True, "use_tanh_at_final": False, "use_bias_at_final": False,
    **MEL_FIELDS,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "nano": {
        "resblock": "2", "upsample_rates": [5, 4, 4, 6], "upsample_kernel_sizes": [15, 8, 8, 12],
        "upsample_initial_channel": 384, "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3], [1, 3]],
        **COMMON,
    },
    "large": {
        "resblock": "1", "upsample_rates": [5, 4, 4, 3, 2], "upsample_kernel_sizes": [15, 8, 8, 9, 4],
        "upsample_initial_channel": 512, "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]], **COMMON,
    },
}  # fmt: skip
PEAK_RATES = {"nano": 5e-4, "large": 1.5e-4}
DISCRIMINATORS = {
    "discriminator_channel_mult": 0.25, "mrd_channel_mult": 0.5, "use_spectral_norm": False,
    "mpd_reshapes": [2, 3, 5, 7, 11], "resolutions": [[1024, 120, 600], [2048, 240, 1200], [512, 50, 240]],
}  # fmt: skip
HOP = MOSS_MEL.hop_size
EDGE_FRAMES = 4
"""Frames at both ends of a crop that only give context: their output misses the neighbours that it would have had."""
BETAS = (0.8, 0.99)
MAX_GRADIENT = 300.0
MEL_WEIGHT, FEATURE_WEIGHT, EXCESS_WEIGHT = 45.0, 2.0, 100.0
EMA = 0.999


class Trainer:
    """Networks, optimisers, the static batch, and one step of either stage over it."""

    def __init__(self, preset: str, batch: int, crop_frames: int, device: torch.device) -> None:
        self.config, self.device, self.crop_frames = PRESETS[preset], device, crop_frames
        self.generator = build_generator(self.config, weight_norm=True).to(device)
        use_polyphase(self.generator, compiled=device.type == "cuda")
        self.generator.get_submodule("conv_post").register_forward_hook(self._keep_excess)
        self._excess = torch.zeros((), device=device)
        self.critics = _critics().to(device)
        self.average = [p.detach().clone() for p in self.generator.parameters()]
        self.generator_optimizer = _adam(self.generator, device)
        self.critic_optimizer = _adam(self.critics, device)
        self.mel = torch.zeros(batch, MOSS_MEL.num_mels, crop_frames + 2 * EDGE_FRAMES, device=device)
        self.wave = torch.zeros(batch, 1, crop_frames * HOP, device=device)
        self.figures = torch.zeros(4, device=device)  # mel L1, STFT distance, adversarial, discriminator
        self.choose_layout()

    def choose_layout(self) -> None:
        """On a GPU, give the discriminators the memory layout in which they run faster there."""
        if self.device.type != "cuda":
            return
        took_s = {layout: self._time_critics(layout) for layout in (torch.contiguous_format, torch.channels_last)}
        best = min(took_s, key=took_s.__getitem__)
        _to_layout(self.critics, best)
        print("discriminators:", {str(k): f"{1000 * v:.1f} ms" for k, v in took_s.items()}, "->", best, flush=True)

    def _time_critics(self, layout: torch.memory_format) -> float:
        _to_layout(self.critics, layout)
        began = 0.0
        for repeat in range(6):
            if repeat == 3:
                torch.cuda.synchronize()
                began = time.perf_counter()
            with self._low_precision():
                judged = [critic(self.wave, self.wave) for critic in self.critics]
            torch.stack([discriminator_loss(real, fake) for real, fake, _, _ in judged]).sum().backward()
        torch.cuda.synchronize()
        self.critic_optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - began) / 3

    def set_rates(self, rate: float) -> None:
        for optimizer in (self.generator_optimizer, self.critic_optimizer):
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def reconstruct(self) -> None:
        """Stage a: spectral losses alone."""
        fake = self._generate()
        mel, stft = mel_distance(fake[:, 0], self.wave[:, 0], MOSS_MEL), stft_distance(fake[:, 0], self.wave[:, 0])
        self._update_generator(MEL_WEIGHT * mel + stft)
        self.figures.copy_(torch.stack([mel.detach(), stft.detach(), mel.new_zeros(()), mel.new_zeros(())]))

    def compete(self) -> None:
        """Stage b: the discriminators learn, then the generator against them."""
        fake = self._generate()
        self.critics.requires_grad_(True)
        self.critic_optimizer.zero_grad(set_to_none=True)
        with self._low_precision():
            judged = [critic(self.wave, fake.detach()) for critic in self.critics]
        critic_loss = torch.stack([discriminator_loss(real, faked) for real, faked, _, _ in judged]).sum()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.critics.parameters(), MAX_GRADIENT)
        self.critic_optimizer.step()

        self.critics.requires_grad_(False)
        with self._low_precision():
            judged = [critic(self.wave, fake) for critic in self.critics]
        adversarial = torch.stack([adversarial_loss(faked) for _, faked, _, _ in judged]).sum()
        features = torch.stack([feature_distance(real, faked) for _, _, real, faked in judged]).sum()
        mel, stft = mel_distance(fake[:, 0], self.wave[:, 0], MOSS_MEL), stft_distance(fake[:, 0], self.wave[:, 0])
        self._update_generator(MEL_WEIGHT * mel + stft + adversarial + FEATURE_WEIGHT * features)
        self.figures.copy_(torch.stack([mel.detach(), stft.detach(), adversarial.detach(), critic_loss.detach()]))

    def _generate(self) -> Tensor:
        self.generator_optimizer.zero_grad(set_to_none=True)
        return self.generator(self.mel)[..., EDGE_FRAMES * HOP : -EDGE_FRAMES * HOP]

    def _keep_excess(self, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        """The generator ends in a clamp, which has no gradient outside [-1, 1]; this loss leads back inside."""
        self._excess = (output.abs() - 1).clamp_min(0).mean()

    def _update_generator(self, loss: Tensor) -> None:
        (loss + EXCESS_WEIGHT * self._excess).backward()
        nn.utils.clip_grad_norm_(self.generator.parameters(), MAX_GRADIENT)
        self.generator_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, list(self.generator.parameters()), 1 - EMA)

    def _low_precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)

    def state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.state_dict(), "critics": self.critics.state_dict(), "average": self.average,
            "generator_optimizer": self.generator_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        self.generator.load_state_dict(state["generator"])
        self.critics.load_state_dict(state["critics"])
        self.average = [value.to(self.device) for value in state["average"]]
        for optimizer, name in ((self.generator_optimizer, "generator"), (self.critic_optimizer, "critic")):
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state[f"{name}_optimizer"])
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def export(self, folder: Path) -> None:
        """Write the averaged generator without weight norm."""
        averaged = build_generator(self.config, weight_norm=True)
        averaged.load_state_dict(self.generator.state_dict())
        with torch.no_grad():
            for parameter, value in zip(averaged.parameters(), self.average, strict=True):
                parameter.copy_(value)
        with contextlib.redirect_stdout(None):
            averaged.remove_weight_norm()  # type: ignore[operator]
        save_vocoder(folder, self.config, averaged.state_dict())


def _to_layout(network: nn.Module, layout: torch.memory_format) -> None:
    network.to(memory_format=layout)  # type: ignore[call-overload]


def _critics() -> nn.ModuleList:
    package = import_bigvgan_module("discriminators")
    settings = import_bigvgan_module("env").AttrDict(DISCRIMINATORS)
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.ModuleList(
            [package.MultiPeriodDiscriminator(settings), package.MultiResolutionDiscriminator(settings)]
        )


def _adam(network: nn.Module, device: torch.device) -> torch.optim.AdamW:
    on_gpu = device.type == "cuda"
    rate = torch.tensor(1e-4, device=device) if on_gpu else 1e-4
    return torch.optim.AdamW(
        network.parameters(), lr=rate, betas=BETAS, weight_decay=0.01, fused=on_gpu, capturable=on_gpu
    )
