"""HiFT chunk by chunk.

Each window begins with frames of the one before it. The last OVERLAP_FRAMES of a window are held back: they lack what
follows them; the next window makes them again, and over FADE_FRAMES the two are faded into each other with weights that
sum to one. The source is that of one run: a pitch is settled once all is known that it looks at, and the phase goes on
where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.codec.hift import PITCH_REACH, source_noise, window_wave
from moss_engine.codec.hift_weights import HiftWeights

OVERLAP_FRAMES = 8
FADE_FRAMES = 2
"""With 8, a wave differed from that of one run by -27 dB, with 4 by -38 dB, with 2 by -43 dB (random weights)."""
LEFT_FRAMES = 8
"""Frames before the overlap that a window reads again, so that its network has seen what came before."""

WindowWave = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class HiftState:
    """One reply between two windows. `mel` [mels, kept] are its last frames; of the first of these, as far as they are
    settled, pitch [known] and phase [known, harmonics + 1]. `tail` [samples] is held back; `frames` counts all frames.
    """

    mel: Tensor
    pitch: Tensor
    phase: Tensor
    tail: Tensor
    frames: int


@dataclass(frozen=True)
class Window:
    """The next mel frames [mels, n] of a reply, n at least OVERLAP_FRAMES unless they are its last."""

    state: HiftState
    mel: Tensor
    is_last: bool

    @property
    def is_at_start(self) -> bool:
        """Whether all frames before it are still at hand."""
        return self.state.frames == self.state.mel.shape[1]


class Hift:
    """mel -> samples for any number of replies. `run` is `window_wave` for these weights or does the same."""

    def __init__(self, weights: HiftWeights, run: WindowWave | None = None) -> None:
        self.weights, self._run = weights, run or window_wave
        self.samples_per_frame = weights.config.samples_per_frame
        self._noise = source_noise(weights.config).to(weights.window)
        size = FADE_FRAMES * self.samples_per_frame
        ramp = (torch.arange(size, dtype=torch.float64) + 0.5) / size
        self._rise = torch.sin(ramp * (torch.pi / 2)).square().to(weights.window)

    def open(self) -> HiftState:
        """A reply before its first frame."""
        config, like = self.weights.config, self.weights.window
        return HiftState(like.new_zeros(config.num_mels, 0), like.new_zeros(0),
                         like.new_zeros(0, config.num_harmonics + 1, dtype=torch.float64), like.new_zeros(0), 0)

    @torch.inference_mode()
    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, HiftState]]:
        """-> for each, the samples [n] that are final now and the state that follows; windows of one shape run
        together."""
        shapes = [(window.mel.shape[1], window.state.mel.shape[1], window.is_at_start, window.is_last)
                  for window in windows]
        done: dict[int, tuple[Tensor, HiftState]] = {}
        for shape in sorted(set(shapes)):
            members = [i for i, other in enumerate(shapes) if other == shape]
            for i, result in zip(members, self._together([windows[i] for i in members]), strict=True):
                done[i] = result
        return [done[i] for i in range(len(windows))]

    def _together(self, windows: Sequence[Window]) -> list[tuple[Tensor, HiftState]]:
        mel = torch.stack([torch.cat([window.state.mel, window.mel], 1) for window in windows])
        span = torch.arange(mel.shape[2] * self.samples_per_frame, device=mel.device)
        starts = [(w.state.frames - w.state.mel.shape[1]) * self.samples_per_frame for w in windows]
        noise = torch.stack([self._noise[(span + start) % len(self._noise)] for start in starts])
        waves, pitch, phase = self._run(
            self.weights, mel, torch.stack([window.state.pitch for window in windows]),
            torch.stack([window.state.phase for window in windows]), noise, first=windows[0].is_at_start,
            last=windows[0].is_last)
        return [self._taken(window, *parts) for window, *parts in zip(windows, mel, waves, pitch, phase, strict=True)]

    def _taken(self, window: Window, mel: Tensor, wave: Tensor, pitch: Tensor, phase: Tensor,
               ) -> tuple[Tensor, HiftState]:
        state, size = window.state, self.samples_per_frame
        wave = wave[state.mel.shape[1] * size - len(state.tail) :]
        if len(state.tail):
            fade = len(self._rise)
            faded = state.tail[:fade] + self._rise * (wave[:fade] - state.tail[:fade])
            wave = torch.cat([faded, wave[fade:]])
        frames = state.frames + window.mel.shape[1]
        if window.is_last:
            return wave, HiftState(mel[:, :0], pitch[:0], phase[:0], wave[:0], frames)
        assert window.mel.shape[1] >= OVERLAP_FRAMES, "a window that is not the last has frames to hold back"
        kept = slice(-min(mel.shape[1], OVERLAP_FRAMES + LEFT_FRAMES), None)
        cut = len(wave) - OVERLAP_FRAMES * size
        return wave[:cut], HiftState(mel[:, kept].clone(), pitch[kept][:-PITCH_REACH].clone(),
                                     phase[kept][:-PITCH_REACH].clone(), wave[cut:].clone(), frames)
