"""HiFT chunk by chunk.

Each window begins with KEPT_FRAMES of what came before it. The last frames of a window are held
back: they lack what follows them; the next window makes them again, and over FADE_FRAMES the two
are faded into each other with weights that sum to one. The first window, for which a listener
waits, holds back fewer. The source is that of one run: a pitch is settled once all is known that
it looks at, and the phase goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.codec.vocoder.hift.generator import PITCH_REACH, source_noise, window_wave
from moss_engine.codec.vocoder.hift.weights import HiftWeights

FIRST_HELD_FRAMES, HELD_FRAMES = 8, 12
FADE_FRAMES = 2
"""With 8, a wave differed from that of one run by -27 dB, with 4 by -38 dB, with 2 by -43 dB
(random weights)."""
KEPT_FRAMES = 20
"""Those held back, and frames before them, so that the network has seen what came before."""

WindowWave = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class HiftState:
    """One reply between two windows. `mel` [mels, kept] are its last frames; of the first of these,
    as far as they are settled, pitch [known] and phase [known, harmonics + 1]. `tail` [samples] is
    held back; `frames` counts all frames.
    """

    mel: Tensor
    pitch: Tensor
    phase: Tensor
    tail: Tensor
    frames: int


@dataclass(frozen=True)
class Window:
    """The next mel frames [mels, n] of a reply, n at least HELD_FRAMES unless they are its
    last."""

    state: HiftState
    mel: Tensor
    is_last: bool

    @property
    def is_first(self) -> bool:
        return self.state.frames == 0

    @property
    def shape(self) -> tuple[int, int, int, bool]:
        """Windows of one shape run together."""
        return self.mel.shape[1], self.state.mel.shape[1], len(self.state.tail), self.is_last


class Hift:
    """mel -> samples for any number of replies. `run` is `window_wave` for these weights or does
    the same."""

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
        return HiftState(
            like.new_zeros(config.num_mels, 0),
            like.new_zeros(0),
            like.new_zeros(0, config.num_harmonics + 1, dtype=torch.float64),
            like.new_zeros(0),
            0,
        )

    @torch.inference_mode()
    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, HiftState]]:
        """-> for each, the samples [n] that are final now and the state that follows."""
        shapes = [window.shape for window in windows]
        done: dict[int, tuple[Tensor, HiftState]] = {}
        for shape in sorted(set(shapes)):
            members = [i for i, other in enumerate(shapes) if other == shape]
            for i, result in zip(
                members, self._together([windows[i] for i in members]), strict=True
            ):
                done[i] = result
        return [done[i] for i in range(len(windows))]

    def _together(self, windows: Sequence[Window]) -> list[tuple[Tensor, HiftState]]:
        """Windows of one shape; the results are views, which live until the next window."""
        states, is_last = [window.state for window in windows], windows[0].is_last
        size, before = self.samples_per_frame, states[0].mel.shape[1]
        past, new = (torch.stack([one.mel for one in given]) for given in (states, windows))
        mel = torch.cat([past, new], 2)
        frames = mel.shape[2]
        starts = torch.tensor(
            [(state.frames - before) * size for state in states], device=mel.device
        )
        at = starts[:, None] + torch.arange(frames * size, device=mel.device)
        waves, pitch, phase = self._run(
            self.weights,
            mel,
            torch.stack([state.pitch for state in states]),
            torch.stack([state.phase for state in states]),
            self._noise[at % len(self._noise)],
            first=windows[0].is_first,
            last=is_last,
        )
        waves = self._faded(waves[:, before * size - len(states[0].tail) :], states)
        held = FIRST_HELD_FRAMES if windows[0].is_first else HELD_FRAMES
        assert is_last or frames - before >= held, (
            "a window that is not the last has frames to hold back"
        )
        cut = waves.shape[1] - (0 if is_last else held * size)
        first = frames - (0 if is_last else min(frames, KEPT_FRAMES))
        settled = slice(first, None if is_last else -PITCH_REACH)
        return [
            (
                waves[i, :cut],
                HiftState(
                    mel[i, :, first:],
                    pitch[i, settled],
                    phase[i, settled],
                    waves[i, cut:],
                    state.frames + frames - before,
                ),
            )
            for i, state in enumerate(states)
        ]

    def _faded(self, waves: Tensor, states: Sequence[HiftState]) -> Tensor:
        """[windows, samples] after a fade from the states' tails, where they have any."""
        if not len(states[0].tail):
            return waves
        fade = len(self._rise)
        tails = torch.stack([state.tail[:fade] for state in states])
        return torch.cat([tails + self._rise * (waves[:, :fade] - tails), waves[:, fade:]], 1)
