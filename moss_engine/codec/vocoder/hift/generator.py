"""HiFT: mel -> wave, by a source of harmonics that follows the pitch and a network that shapes its
spectrum; whole, and chunk by chunk.

Each window of a stream begins with KEPT_FRAMES of what came before it. The last HELD_FRAMES of a
window are held back: they lack what follows them; the next window makes them again, and over
FADE_FRAMES the two are faded into each other with weights that sum to one. The source is that of
one run: a pitch is settled once all is known that it looks at, and the phase goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.codec.base import Window, run_alike
from moss_engine.codec.vocoder.hift.network import HiftNetwork
from moss_engine.codec.vocoder.hift.weights import HiftConfig, HiftWeights

PITCH_REACH = 5
NOISE_S = 10
"""Length of the noise that a source draws on, over and over."""


def pitch_of(weights: HiftWeights, mel: Tensor) -> Tensor:
    """[streams, mels, frames] -> Hz [streams, frames]; looks PITCH_REACH frames to either side."""
    x = mel.transpose(1, 2)
    for convolution in weights.pitch:
        # as matrix products, which a GPU does not round to TF32: a phase would show it
        padded = F.pad(x, (0, 0, 1, 1))
        taps = torch.cat([padded[:, i : i + x.shape[1]] for i in range(3)], -1)
        x = F.elu(F.linear(taps, convolution.weight, convolution.bias))
    return F.linear(x, weights.pitch_out.weight, weights.pitch_out.bias)[..., 0].abs()


def source_noise(config: HiftConfig) -> Tensor:
    """float32 [samples, harmonics + 1]: the same for every reply, so that the same codes give the
    same samples."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(
        NOISE_S * config.sample_rate_hz, config.num_harmonics + 1, generator=generator
    )


def cycles_per_frame(config: HiftConfig, pitch: Tensor) -> Tensor:
    """Hz [..., frames] -> float64 [..., frames, harmonics + 1]: the cycles of each harmonic in one
    frame."""
    harmonics = torch.arange(1, config.num_harmonics + 2, device=pitch.device, dtype=torch.float64)
    return (
        pitch.double()[..., None] * harmonics / config.sample_rate_hz % 1
    ) * config.samples_per_frame


def source_wave(
    weights: HiftWeights, pitch: Tensor, phase: Tensor, before: Tensor, after: Tensor, noise: Tensor
) -> Tensor:
    """The source of some frames: [streams, frames * samples_per_frame].

    pitch [streams, frames] in Hz; phase [streams, frames, harmonics + 1] in cycles at the middle of
    each frame; before and after, of the same shape, are the cycles per frame at which it came there
    and goes on; noise [streams, samples, harmonics + 1].
    """
    config = weights.config
    size = config.samples_per_frame
    at = (torch.arange(size, device=pitch.device, dtype=torch.float64) + 0.5) / size - 0.5
    pace = torch.where(at[:, None] < 0, before[..., None, :], after[..., None, :])
    # [streams, samples, harmonics + 1]
    cycles = (phase[..., None, :] + at[:, None] * pace).flatten(1, 2)
    waves = config.sine_amplitude * torch.sin(2 * math.pi * (cycles % 1)).to(noise.dtype)
    voiced = (pitch > config.voiced_hz).to(noise.dtype).repeat_interleave(size, 1)[..., None]
    amplitude = voiced * config.noise_amplitude + (1 - voiced) * (config.sine_amplitude / 3)
    mixed = F.linear(waves * voiced + amplitude * noise, weights.source.weight, weights.source.bias)
    return torch.tanh(mixed[..., 0])


def window_wave(
    weights: HiftWeights,
    network: HiftNetwork,
    mel: Tensor,
    known_pitch: Tensor,
    known_phase: Tensor,
    noise: Tensor,
    *,
    first: bool,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The wave of some frames, the source of whose first ones is settled.

    mel [streams, mels, frames]; of the first `known` frames, known_pitch [streams, known] in Hz and
    known_phase [streams, known, harmonics + 1] in cycles; noise [streams, samples, harmonics + 1].
    `first` and `last` tell whether a reply begins and ends with these frames: the phase stands
    still before the middle of its first and behind that of its last frame. Where it goes on, its
    pitch is seen as if the last frame were repeated. -> wave [streams, samples], and pitch and
    phase of all frames.
    """
    known, frames = known_pitch.shape[1], mel.shape[2]
    seen = mel if last else F.pad(mel, (0, PITCH_REACH), mode="replicate")
    pitch = torch.cat([known_pitch, pitch_of(weights, seen)[:, known:frames]], 1)
    pace = cycles_per_frame(weights.config, pitch)
    moved = pace[:, known:].cumsum(1)
    if known:
        moved = moved + known_phase[:, -1:]
    phase = torch.cat([known_phase, moved % 1], 1)
    before = torch.cat([torch.zeros_like(pace[:, :1]) if first else pace[:, :1], pace[:, 1:]], 1)
    after = torch.cat([pace[:, 1:], torch.zeros_like(pace[:, :1]) if last else pace[:, -1:]], 1)
    source = source_wave(weights, pitch, phase, before, after, noise)
    return network(mel, source), pitch, phase


HELD_FRAMES, FADE_FRAMES = 12, 1
KEPT_FRAMES = 22
"""Those held back, and frames before them, so that the network has seen what came before. With
random weights of the published sizes whose residual blocks reach as far as they can, each join is
65 dB below the wave of one run; with 8 held back it is 40, with 20 kept 59, with 2 faded 61."""

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


def _shape(window: Window) -> tuple[int, int, bool, bool]:
    """Frames, those before them, and whether the reply begins and ends here. Windows of one shape
    run together; they have at least HELD_FRAMES unless they are a reply's last."""
    kept = window.state.mel.shape[1]
    return window.mel.shape[1], kept, kept == window.state.frames, window.is_last


class Hift:
    """mel -> samples for any number of replies. `run` does what `window_wave` does for these
    weights and their network."""

    def __init__(self, weights: HiftWeights, run: WindowWave | None = None) -> None:
        self.weights = weights
        self._run = run or partial(window_wave, weights, HiftNetwork(weights))
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
        return run_alike(windows, _shape, self._together)

    def _together(self, windows: Sequence[Window]) -> list[tuple[Tensor, HiftState]]:
        """Windows of one shape; the results are views, which live until the next window."""
        states, size = [window.state for window in windows], self.samples_per_frame
        _, before, is_first, is_last = _shape(windows[0])
        past, new = (torch.stack([one.mel for one in given]) for given in (states, windows))
        mel = torch.cat([past, new], 2)
        frames = mel.shape[2]
        starts = torch.tensor(
            [(state.frames - before) * size for state in states], pin_memory=mel.is_cuda
        ).to(mel.device, non_blocking=True)  # without a wait for what makes the mel
        at = starts[:, None] + torch.arange(frames * size, device=mel.device)
        waves, pitch, phase = self._run(
            mel,
            torch.stack([state.pitch for state in states]),
            torch.stack([state.phase for state in states]),
            self._noise[at % len(self._noise)],
            first=is_first,
            last=is_last,
        )
        waves = self._faded(waves[:, before * size - len(states[0].tail) :], states)
        assert is_last or frames - before >= HELD_FRAMES, (
            "a window that is not the last has frames to hold back"
        )
        cut = waves.shape[1] - (0 if is_last else HELD_FRAMES * size)
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
