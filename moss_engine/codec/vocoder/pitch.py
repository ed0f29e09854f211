"""F0 and voicing of a mel, and the pulse train that a generator shapes into a voice."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.vocoder.blocks import KERNEL, Block, Convolution, normal
from moss_engine.codec.vocoder.pasts import Pasts

STEPS_PER_FRAME = 2
STEP = MOSS_MEL.hop_size // STEPS_PER_FRAME
"""Samples between two values of F0; step k is the F0 at sample (k + 1/2) * STEP."""
MIN_F0_HZ, MAX_F0_HZ = 50.0, 500.0
TOP_HARMONIC_HZ = 11_000.0
MIDDLE_LOG2_F0 = 7.3


class PitchNetwork(nn.Module):
    """Log-mel -> log2 of F0 in Hz and a voicing logit, twice a frame."""

    LOOK_AHEADS = (1, 1, 1, 0)
    """Frames that the first convolution and each block look ahead."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = Convolution(MOSS_MEL.num_mels, width, self.LOOK_AHEADS[0])
        self.blocks = nn.Sequential(*(Block(width, ahead) for ahead in self.LOOK_AHEADS[1:]))
        self.leave = nn.Conv1d(width, 2 * STEPS_PER_FRAME, 1)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, num_mels, frames] -> two of [batch, 2 * frames]"""
        return self.finish(self.blocks(self.enter.whole(normal(mel))))

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor:
        """The next frames -> pulses [batch, frames * hop], SOURCE_DELAY samples late"""
        x = self.enter(pasts.joined(normal(mel), KERNEL - 1))
        for block in self.blocks:
            x = block.advance(x, pasts)  # type: ignore[operator]
        log2_f0, voicing = self.finish(x)
        f0 = at_samples(pasts.joined(f0_of(log2_f0), 1))
        voiced = at_samples(pasts.joined(voicing, 1)) > 0
        phase = pasts.summed(f0.double() / MOSS_MEL.sample_rate_hz).remainder(1)
        return pulses(phase.float(), f0, voiced)

    def finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, width, frames] -> two of [batch, 2 * frames]"""
        values = self.leave(x).unflatten(1, (2, STEPS_PER_FRAME)).transpose(2, 3).flatten(2)
        return values[:, 0] + MIDDLE_LOG2_F0, values[:, 1]


SOURCE_DELAY = sum(PitchNetwork.LOOK_AHEADS) * MOSS_MEL.hop_size + STEP // 2
"""Samples from a mel frame's first to the pulses that a stream has when it knows the frame
before."""


def at_samples(steps: Tensor) -> Tensor:
    """[batch, n + 1] values at consecutive steps -> [batch, n * STEP], linear from the middle of
    step 0 on."""
    ramp = (torch.arange(STEP, device=steps.device) + 0.5) / STEP
    return torch.lerp(steps[:, :-1, None], steps[:, 1:, None], ramp).flatten(1)


def f0_of(log2_f0: Tensor) -> Tensor:
    return log2_f0.clamp(math.log2(MIN_F0_HZ), math.log2(MAX_F0_HZ)).exp2()


def pulses(phase: Tensor, f0_hz: Tensor, voiced: Tensor) -> Tensor:
    """Band-limited pulses: the sum of cos(2 pi h phase) over the harmonics h below TOP_HARMONIC_HZ,
    where voiced.

    `phase` counts periods in [0, 1). The sum has the closed form sin((H + 1/2) t) / (2 sin(t / 2))
    - 1/2.
    """
    angle = phase * (2 * math.pi)
    order = (TOP_HARMONIC_HZ / f0_hz).floor() + 0.5
    divisor = 2 * (angle / 2).sin()
    at_pulse = divisor.abs() < 2e-3
    wave = torch.where(at_pulse, order, (order * angle).sin() / torch.where(at_pulse, 1.0, divisor))
    return (wave - 0.5) * voiced
