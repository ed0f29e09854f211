"""The source-filter generator: pulses at the pitch of a mel through a complex filter, plus a free
complex spectrum; the parts that it shares with `source_bigvgan`; and what speaks with either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from moss_engine.codec.base import MOSS_MEL, MelSpec, Window, run_alike
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.streamed import Block, Kept, Pasts, Streamed, advanced

OVERLAP = 4
WINDOW_POWER = 1.5
"""Sum of the squared Hann windows that cover a sample, at four hops a window."""


def spectra_of(wave: Tensor, hop: int) -> Tensor:
    """[batch, (frames + 3) * hop] -> complex [batch, frames, 2 * hop + 1]; frame k begins at sample
    k * hop."""
    return torch.fft.rfft(wave.unfold(-1, OVERLAP * hop, hop) * _window(OVERLAP * hop, wave.device))


def wave_of(spectra: Tensor, hop: int) -> Tensor:
    """Complex [batch, frames, 2 * hop + 1] -> [batch, (frames + 3) * hop]; the outer 3 hops lack
    their neighbours."""
    frames = torch.fft.irfft(spectra, OVERLAP * hop) * _window(OVERLAP * hop, spectra.device)
    quarters = frames.unflatten(-1, (OVERLAP, hop)).unbind(2)
    shifted = [pad(part, (0, 0, k, OVERLAP - 1 - k)) for k, part in enumerate(quarters)]
    return torch.stack(shifted).sum(0).flatten(1) / WINDOW_POWER


@lru_cache(maxsize=8)
def _window(size: int, device: torch.device) -> Tensor:
    # It is kept: made while serving, it must serve a later training of the process too.
    with torch.inference_mode(False):
        return torch.hann_window(size, device=device)


KERNEL, MLP_RATIO = 7, 3
FIRST_SCALE = 0.2
MEL_MEAN, MEL_SCALE = -5.5, 3.0


class Convolution(nn.Conv1d):
    """A convolution over KERNEL steps, `look_ahead` of them in the future."""

    def __init__(self, inputs: int, outputs: int, look_ahead: int) -> None:
        super().__init__(inputs, outputs, KERNEL)
        self.look_ahead, self.look_back = look_ahead, KERNEL - 1 - look_ahead

    def whole(self, x: Tensor) -> Tensor:
        """[batch, inputs, steps] -> [batch, outputs, steps] with zeros around"""
        return self(pad(x, (self.look_back, self.look_ahead)))


def _block(width: int, look_ahead: int) -> Block:
    return Block(width, KERNEL, MLP_RATIO, look_ahead, FIRST_SCALE)


def normal(mel: Tensor) -> Tensor:
    """Log-mel -> about zero mean and unit variance"""
    return (mel - MEL_MEAN) / MEL_SCALE


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
        self.blocks = nn.Sequential(*(_block(width, ahead) for ahead in self.LOOK_AHEADS[1:]))
        self.leave = nn.Conv1d(width, 2 * STEPS_PER_FRAME, 1)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, num_mels, frames] -> two of [batch, 2 * frames]"""
        return self.finish(self.blocks(self.enter.whole(normal(mel))))

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor:
        """The next frames -> pulses [batch, frames * hop], SOURCE_DELAY samples late"""
        x = self.enter(pasts.joined(normal(mel), KERNEL - 1))
        log2_f0, voicing = self.finish(advanced(self.blocks, x, pasts))
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
        self.blocks = nn.Sequential(*(_block(width, ahead) for ahead in aheads))
        self.widen = nn.Linear(width, STEPS_PER_FRAME * width)
        self.fine_blocks = nn.Sequential(*(_block(width, 0) for _ in range(fine_blocks)))
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
        x = self.to_steps(advanced(self.blocks, x, pasts))
        filters, free = self.finish(advanced(self.fine_blocks, x, pasts))
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


SILENT_FRAMES = 64
"""Silence before a stream's first frame: longer than anything that a layer remembers."""
RUN_FRAMES = 40
"""Frames of one run: as many as keep the layers' tensors in a processor's cache."""
KNEE = 0.8
"""Samples beyond it are bent, so that none reaches 1."""


class Network(Protocol):
    """A generator that can be streamed; `delay` samples pass before a mel frame's first sample."""

    delay: int

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor: ...


class CachedState(NamedTuple):
    """A reply of a `CachedVocoder`: `kept` is what the layers know of it, `mel` [num_mels, frames]
    what they do not know yet, `skipped` the samples that the delay still swallows."""

    kept: Kept
    mel: Tensor
    num_chunks: int
    skipped: int


class CachedVocoder:
    """Speaks replies with one network, `gain` times as loud as it was trained; every frame is
    computed once.

    Sound comes in chunks of `chunk_frames` frames, the last number again and again.
    """

    def __init__(
        self,
        network: Network,
        mel: MelSpec,
        gain: float,
        chunk_frames: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.network, self.mel = network, mel
        self._chunk_frames, self._none = chunk_frames, torch.empty(0, device=device)

        def advance(mel: Tensor, pasts: Pasts) -> Tensor:
            return limited(network.advance(mel, pasts) * gain)

        silence = torch.full((1, mel.num_mels, SILENT_FRAMES), LOG_FLOOR, device=device)
        with torch.inference_mode():
            network.advance(silence, pasts := Pasts(None))
        self._streamed = Streamed(advance, tuple(pasts.kept), silence)

    def open(self) -> CachedState:
        """See `MelVocoder`."""
        empty = self._none.expand(self.mel.num_mels, 0)
        return CachedState(self._streamed.start, empty, 0, self.network.delay)

    def missing_frames(self, state: CachedState) -> int:
        """See `ChunkVocoder`."""
        chunk = self._chunk_frames[min(state.num_chunks, len(self._chunk_frames) - 1)]
        return chunk + -(-state.skipped // self.mel.hop_size) - state.mel.shape[1]

    @torch.inference_mode()
    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, CachedState]]:
        """See `MelVocoder`: all frames that wait, once they complete a chunk, those of equally many
        together."""
        delay, hop = self.network.delay, self.mel.hop_size
        states: list[CachedState] = []
        due, owed = list[int](), dict[int, int]()
        for i, (state, mel, is_last) in enumerate(windows):
            state = state._replace(mel=torch.cat([state.mel, mel], 1))
            if is_last:
                owed[i] = state.mel.shape[1] * hop + delay - state.skipped
                state = state._replace(mel=pad(state.mel, (0, -(-delay // hop)), value=LOG_FLOOR))
            if is_last or self.missing_frames(state) <= 0:
                due.append(i)
                state = state._replace(num_chunks=state.num_chunks + 1)
            states.append(state)
        done = [[self._none] for _ in windows]
        while waiting := [i for i in due if states[i].mel.shape[1]]:
            results = run_alike([states[i] for i in waiting], _next_frames, self._advance)
            for i, (wave, state) in zip(waiting, results, strict=True):
                done[i].append(wave)
                states[i] = state
        waves = [torch.cat(pieces)[: owed.get(i)] for i, pieces in enumerate(done)]
        return list(zip(waves, states, strict=True))

    def _advance(self, states: Sequence[CachedState]) -> Iterator[tuple[Tensor, CachedState]]:
        """The next frames of states that have equally many: samples, and what follows each."""
        count = _next_frames(states[0])
        mel = torch.stack([state.mel[:, :count] for state in states])
        waves, news = self._streamed(mel, [state.kept for state in states])
        for wave, kept, (_, mel, num_chunks, skipped) in zip(waves, news, states, strict=True):
            left = max(0, skipped - len(wave))
            yield wave[skipped:], CachedState(kept, mel[:, count:], num_chunks, left)


def _next_frames(state: CachedState) -> int:
    return min(RUN_FRAMES, state.mel.shape[1])


def limited(wave: Tensor) -> Tensor:
    """Samples up to KNEE as they are, louder ones bent towards 1, each by itself."""
    over = (wave.abs() - KNEE).clamp_min(0)
    bent = KNEE + (1 - KNEE) * torch.tanh(over / (1 - KNEE))
    return torch.where(over > 0, bent * wave.sign(), wave)
