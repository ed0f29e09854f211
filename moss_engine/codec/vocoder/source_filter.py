"""The source-filter generator: pulses through a complex filter, plus a free complex spectrum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.vocoder.blocks import KERNEL, Block, Convolution, normal
from moss_engine.codec.vocoder.pasts import Pasts
from moss_engine.codec.vocoder.pitch import STEP, STEPS_PER_FRAME, PitchNetwork
from moss_engine.codec.vocoder.spectra import OVERLAP, spectra_of, wave_of

BINS = OVERLAP * STEP // 2 + 1
AROUND = 2
"""Steps on either side of a step whose windows reach into its samples."""
EDGE = (OVERLAP - 1) * STEP // 2
"""Samples of a spectrum's window before the first sample of its step."""
SOURCE_EDGE = EDGE + AROUND * STEP
"""Samples of pulses that a crop needs before its first sample and after its last."""
MAX_LOG_FILTER, MAX_LOG_FREE = 7.0, 5.0


class SourceFilter(nn.Module):
    """ConvNeXt blocks at the frame rate and at twice that rate give, for every step, a filter and a
    free spectrum."""

    LOOK_AHEADS = (1, 1, 1, 1)
    """Frames that the first convolution and the first blocks look ahead; the other blocks look back
    alone."""

    SIZES = ("width", "blocks", "fine_blocks", "pitch_width")
    delay = sum(LOOK_AHEADS) * MOSS_MEL.hop_size + EDGE
    """Samples that a stream is behind the mel: the look-ahead, and a window that begins before its
    step."""

    def __init__(self, width: int, blocks: int, fine_blocks: int, pitch_width: int) -> None:
        super().__init__()
        aheads = [*self.LOOK_AHEADS[1:], *[0] * blocks][:blocks]
        self.enter = Convolution(MOSS_MEL.num_mels, width, self.LOOK_AHEADS[0])
        self.blocks = nn.Sequential(*(Block(width, ahead) for ahead in aheads))
        self.widen = nn.Linear(width, STEPS_PER_FRAME * width)
        self.fine_blocks = nn.Sequential(*(Block(width, 0) for _ in range(fine_blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4 * BINS)
        if not self.head.weight.is_meta:  # on meta, normal_ imports torch's compiler: 75 MB
            nn.init.normal_(self.head.weight, std=0.02)
        with torch.no_grad():
            self.head.bias.view(4, BINS)[::2] = -4.0
        self.pitch = PitchNetwork(pitch_width)

    def spectra(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, num_mels, frames] -> the filter and the free spectrum, complex [batch, 2 *
        frames, BINS] each"""
        x = self.blocks(self.enter.whole(normal(mel)))
        return self.finish(self.fine_blocks(self.to_steps(x)))

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor:
        """The next frames [batch, num_mels, frames] -> samples [batch, frames * hop], `delay`
        late"""
        source = pasts.joined(self.pitch.advance(mel, pasts), (OVERLAP - 1) * STEP)
        x = self.enter(pasts.joined(normal(mel), KERNEL - 1))
        for block in self.blocks:
            x = block.advance(x, pasts)  # type: ignore[operator]
        x = self.to_steps(x)
        for block in self.fine_blocks:
            x = block.advance(x, pasts)  # type: ignore[operator]
        filters, free = self.finish(x)
        wave = wave_of(filters * (spectra_of(source, STEP) / STEP) + free, STEP)
        return pasts.overlapped(wave, (OVERLAP - 1) * STEP)

    def to_steps(self, x: Tensor) -> Tensor:
        """[batch, width, frames] -> [batch, width, 2 * frames]"""
        return (
            self.widen(x.transpose(1, 2))
            .unflatten(2, (STEPS_PER_FRAME, -1))
            .flatten(1, 2)
            .transpose(1, 2)
        )

    def finish(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, width, steps] -> filter and free spectrum of every step"""
        values = self.head(self.norm(x.transpose(1, 2))).float().unflatten(2, (4, BINS)).unbind(2)
        filters = torch.polar(values[0].clamp_max(MAX_LOG_FILTER).exp(), values[1])
        return filters, torch.polar(values[2].clamp_max(MAX_LOG_FREE).exp(), values[3])

    def parts(self, mel: Tensor, source: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
        """Voiced and free part [batch, samples] of a crop without its `left` and `right` frames of
        context.

        `source` are the pulses of the whole crop with SOURCE_EDGE samples more at both ends.
        """
        filters, free = self.spectra(mel)
        inside = slice(
            STEPS_PER_FRAME * left - AROUND, STEPS_PER_FRAME * (mel.shape[-1] - right) + AROUND
        )
        source = source[:, left * MOSS_MEL.hop_size : source.shape[-1] - right * MOSS_MEL.hop_size]
        shaped = filters[:, inside] * (spectra_of(source, STEP) / STEP)
        cut = slice(SOURCE_EDGE, -SOURCE_EDGE)
        return wave_of(shaped, STEP)[:, cut], wave_of(free[:, inside], STEP)[:, cut]
