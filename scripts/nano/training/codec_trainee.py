"""The codec as it is trained: its sizes, its normalisation and its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.nano.fsq import FsqConfig, NanoFsq, quantise

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

PHONEMES = 178

PHONEME_WEIGHT = 0.1

HEARD_FROM, HEARD_WIDTH, UNHEARD_WEIGHT = -7.0, 0.7, 0.3
"""Log-mel below which a band is hardly heard: errors there count less, so that codes are not spent
on silence."""


class Trainee(nn.Module):
    """The codec with the normalisation that keeps every level in use; `export` folds it into the
    projection.

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
        """Keep what turns sound into codes as it is: from now on the decoder alone is trained."""
        self.frozen = True
        self.train()
        self.fsq.encoder.requires_grad_(False)
        self.reader.requires_grad_(False)

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
