"""BigVGAN generators: the class of the `bigvgan` package, built from a config of the published
form, and run as streams on windows of the mel.

The package's `__init__` and helpers import plotting, training and download libraries that the
generator never calls. They are not needed here: the generator's own modules are imported alone, and
for the moment of that import the libraries they name stand as placeholders, whose every use would
raise. The generator calls none of them: it takes a hub mix-in as a base class for downloads, and
its `utils` module imports plotting and WAV writing beside the two functions that it needs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d

from moss_engine.api.errors import CheckpointError, MissingPackageError
from moss_engine.codec.base import MelSpec, Window, run_alike
from moss_engine.codec.files import unusable
from moss_engine.codec.mel import LOG_FLOOR

INSTALL = "pip install --no-deps bigvgan==2.4.1"
_UNUSED_MODULES = (
    "bigvgan.meldataset",
    "huggingface_hub",
    "matplotlib",
    "matplotlib.pylab",
    "scipy",
    "scipy.io",
    "scipy.io.wavfile",
    "torchaudio",
    "torchaudio.transforms",
    "nnAudio",
    "nnAudio.features",
)
_EXAMPLE: dict[str, Any] = {
    "sampling_rate": 1, "n_fft": 1, "win_size": 1, "hop_size": 1, "num_mels": 1, "fmin": 1.0,
    "fmax": 1.0, "upsample_initial_channel": 1, "upsample_rates": [1], "upsample_kernel_sizes": [1],
    "resblock_kernel_sizes": [1], "resblock_dilation_sizes": [[1]], "resblock": "1",
    "activation": "snake", "snake_logscale": True, "use_tanh_at_final": True,
    "use_bias_at_final": True,
}  # fmt: skip


def mel_spec_of(config: Mapping[str, Any]) -> MelSpec:
    """The mel that a BigVGAN config was trained on; an absent `fmax` value (null) is half the
    sample rate."""
    check_config(config)
    fmax = config["fmax"]
    return MelSpec(
        sample_rate_hz=config["sampling_rate"],
        n_fft=config["n_fft"],
        win_size=config["win_size"],
        hop_size=config["hop_size"],
        num_mels=config["num_mels"],
        fmin_hz=float(config["fmin"] or 0),
        fmax_hz=config["sampling_rate"] / 2 if fmax is None else float(fmax),
    )


def check_config(config: Mapping[str, Any]) -> None:
    """Raise CheckpointError where a field is missing or of the wrong kind, or the rates do not
    multiply to the hop. Other fields, as of training, do not count."""
    given = {name: config[name] for name in _EXAMPLE if name in config}
    given |= {name: 1.0 for name in ("fmin", "fmax") if config.get(name, 0) is None}  # no limit
    if wrong := unusable(given, _EXAMPLE):
        raise CheckpointError(
            f"The vocoder's config.json has unusable {', '.join(wrong)}; {_AGAIN}"
        )
    hop = math.prod(config["upsample_rates"])
    if hop != config["hop_size"]:
        raise CheckpointError(
            f"The vocoder's config.json has upsample_rates of product {hop} but hop_size "
            f"{config['hop_size']}; {_AGAIN}"
        )


_AGAIN = "use a complete BigVGAN config; where the file is damaged or edited, fetch it again."


def build_generator(config: Mapping[str, Any]) -> nn.Module:
    """A BigVGAN with random weights: log-mel [batch, num_mels, frames] -> [batch, 1, frames *
    hop_size] in [-1, 1]; its tensors are those of a generator ready to run, without weight norm.
    """
    check_config(config)
    package = import_bigvgan_module("bigvgan")
    env = import_bigvgan_module("env")
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore", FutureWarning)
        generator = package.BigVGAN(env.AttrDict({**config, "use_cuda_kernel": False}))
        generator.remove_weight_norm()
    return generator


@cache
def import_bigvgan_module(name: str) -> ModuleType:
    """One genuine module of the package, such as "bigvgan" or "discriminators", without the
    package's `__init__`.

    Raises MissingPackageError where the package is not installed.
    """
    spec = importlib.util.find_spec("bigvgan")
    if spec is None:
        raise MissingPackageError(
            f"The vocoder needs the package bigvgan; install it with: {INSTALL}"
        )
    if "bigvgan" not in sys.modules:
        sys.modules["bigvgan"] = importlib.util.module_from_spec(spec)
    with _placeholders(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"bigvgan.{name}")


@contextlib.contextmanager
def _placeholders() -> Iterator[None]:
    saved = {name: sys.modules.get(name) for name in _UNUSED_MODULES}
    sys.modules.update({name: _Placeholder(name) for name in _UNUSED_MODULES})
    try:
        yield
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class _Unavailable:
    """Stands for any name of a placeholder: may be a base class, may not be used."""

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__()


class _Placeholder(ModuleType):
    MAX_WAV_VALUE = 32767.0

    def use(self, backend: str) -> None:
        """`matplotlib.use`, called by the package at import."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unavailable


def snake_of(activation: Any) -> tuple[Tensor, Tensor]:
    """Frequency and magnitude float [channels] of the Snake in the package's `Activation1d`: x +
    magnitude * sin(frequency * x)^2."""
    snake = activation.act
    frequency = snake.alpha.detach()
    magnitude = getattr(snake, "beta", snake.alpha).detach()
    if snake.alpha_logscale:
        frequency, magnitude = frequency.exp(), magnitude.exp()
    return frequency, 1.0 / (magnitude + snake.no_div_by_zero)


class FoldedActivation(nn.Module):
    """Upsampling by 2, Snake, downsampling by 2, for inference, from the package's `Activation1d`
    with trained weights.

    Snake's b sin^2(a x) is b / 2 - b / 2 cos(2 a x); the downsampling filter passes the constant b
    / 2 unchanged, so it becomes that convolution's bias. Padding repeats the end samples, as in the
    package.
    """

    up_filter: Tensor
    down_filter: Tensor
    double_frequency: Tensor
    minus_half: Tensor
    offset: Tensor

    def __init__(self, activation: Any) -> None:
        super().__init__()
        up, down = activation.upsample, activation.downsample.lowpass
        frequency, magnitude = snake_of(activation)
        half = magnitude / 2
        channels = len(frequency)
        self.channels = channels
        self.up_edge: int = up.pad
        self.up_trim: tuple[int, int] = (up.pad_left, up.pad_right)
        self.down_edges: tuple[int, int] = (down.pad_left, down.pad_right)
        assert up.stride == down.stride == 2, "BigVGAN resamples by 2"
        self.register_buffer(
            "up_filter", (up.ratio * up.filter).expand(channels, -1, -1).contiguous()
        )
        self.register_buffer("down_filter", down.filter.expand(channels, -1, -1).contiguous())
        self.register_buffer("double_frequency", (2 * frequency).view(1, -1, 1))
        self.register_buffer("minus_half", -half.view(1, -1, 1))
        self.register_buffer("offset", half.clone())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, samples] -> the same"""
        samples = x.shape[-1]
        narrow = x.new_empty(x.shape[0], self.channels, samples + 2 * self.up_edge)
        narrow[..., self.up_edge : -self.up_edge] = x
        _fill_edges(narrow, self.up_edge, self.up_edge)
        wide = conv_transpose1d(narrow, self.up_filter, stride=2, groups=self.channels)
        wide = wide[..., self.up_trim[0] : -self.up_trim[1]]
        left, right = self.down_edges
        snaked = x.new_empty(x.shape[0], self.channels, 2 * samples + left + right)
        wave = (wide * self.double_frequency).cos_()
        torch.addcmul(wide, wave, self.minus_half, out=snaked[..., left : left + 2 * samples])
        _fill_edges(snaked, left, right)
        return conv1d(snaked, self.down_filter, self.offset, stride=2, groups=self.channels)


def _fill_edges(x: Tensor, left: int, right: int) -> None:
    x[..., :left] = x[..., left : left + 1]
    x[..., -right:] = x[..., -right - 1 : -right]


def fold_activations(network: nn.Module) -> None:
    """Replace every `Activation1d` of a generator that has its weights and will not be trained
    further."""
    for name, child in network.named_children():
        if type(child).__name__ == "Activation1d":
            setattr(network, name, FoldedActivation(child))
        else:
            fold_activations(child)


ACTIVATION_REACH = 5
Generator = Callable[[Tensor], Tensor]
"""log-mel [batch, num_mels, frames] -> [batch, 1, frames * hop_size]"""


def support_frames(config: Mapping[str, Any]) -> int:
    """Frames on either side of a frame that can change its samples, for a BigVGAN config.

    Composed backwards from the output through every layer's reach: 3 samples for the outer
    convolutions, ACTIVATION_REACH for an anti-aliased activation, the longest residual block of
    each stage, the transposed kernels.
    """
    first, last = 0, config["hop_size"] - 1
    first, last = first - 3 - ACTIVATION_REACH, last + 3 + ACTIVATION_REACH
    blocks = zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True)
    reach = max(_block_reach(config["resblock"], kernel, dilations) for kernel, dilations in blocks)
    stages = zip(config["upsample_rates"], config["upsample_kernel_sizes"], strict=True)
    for rate, kernel in reversed(list(stages)):
        first, last = first - reach, last + reach
        padding = (kernel - rate) // 2
        first, last = -((kernel - 1 - padding - first) // rate), (last + padding) // rate
    return max(3 - first, last + 3)


def context_frames(config: Mapping[str, Any], share: float) -> int:
    """Whole frames of context that are `share` of the support."""
    return math.ceil(share * support_frames(config) - 1e-9)


def _block_reach(kind: str, kernel: int, dilations: list[int]) -> int:
    reach = sum(ACTIVATION_REACH + (kernel - 1) // 2 * dilation for dilation in dilations)
    if kind == "1":
        reach += len(dilations) * (ACTIVATION_REACH + (kernel - 1) // 2)
    return reach


class WindowState(NamedTuple):
    """A reply of a `WindowVocoder`: `mel` [num_mels, frames] holds the context and all that is not
    final yet."""

    mel: Tensor
    num_chunks: int


class WindowVocoder:
    """Runs a non-causal generator on windows of the mel, each a chunk between `context` frames on
    either side, and keeps their chunks. With `support_frames` of context these are, joined, the
    samples of one run over the whole mel with silence around it; nothing is faded or scaled.

    `chunk_frames` are the frames of each chunk in turn, the last one again and again. `lengths`,
    ascending, are those that windows may have, where that is restricted: each window is the
    shortest that will do, filled up with more context on the left, so that few shapes occur and
    windows of many streams run together.
    """

    def __init__(
        self,
        generator: Generator,
        mel: MelSpec,
        chunk_frames: tuple[int, ...],
        context: int,
        lengths: tuple[int, ...],
        device: torch.device,
    ) -> None:
        assert min(chunk_frames) > 0, "a chunk needs frames"
        assert not lengths or max(chunk_frames) + 2 * context <= lengths[-1], (
            "no window is long enough for a chunk"
        )
        self.generator, self.mel, self.lengths = generator, mel, lengths
        self.chunk_frames, self.context = chunk_frames, context
        self._past_frames = lengths[-1] - context if lengths else context
        self._before, self._after = (
            torch.full((mel.num_mels, frames), LOG_FLOOR, device=device)
            for frames in (self._past_frames, context)
        )
        self._none = torch.empty(0, device=device)

    def open(self) -> WindowState:
        """See `MelVocoder`."""
        return WindowState(self._before, 0)

    def missing_frames(self, state: WindowState) -> int:
        """See `ChunkVocoder`."""
        return self._chunk(state) - self._ready(state)

    @torch.inference_mode()
    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, WindowState]]:
        """See `MelVocoder`: every complete chunk, windows of one length in one run."""
        states = [
            state._replace(mel=torch.cat([state.mel, mel, *[self._after] * is_last], 1))
            for state, mel, is_last in windows
        ]
        done = [[self._none] for _ in windows]
        hop = self.mel.hop_size
        while due := {
            i: frames
            for i, one in enumerate(windows)
            if (frames := self._due(states[i], is_last=one.is_last))
        }:
            mels = [self._window(states[i].mel, frames) for i, frames in due.items()]
            waves = run_alike(
                mels, lambda mel: mel.shape[1], lambda alike: self.generator(torch.stack(alike))
            )
            for (i, frames), wave in zip(due.items(), waves, strict=True):
                end = wave.shape[1] - self.context * hop
                done[i].append(wave[0, end - frames * hop : end])
                mel, num_chunks = states[i]
                states[i] = WindowState(mel[:, frames:], num_chunks + 1)
        return list(zip(map(torch.cat, done), states, strict=True))

    def _chunk(self, state: WindowState) -> int:
        return self.chunk_frames[min(state.num_chunks, len(self.chunk_frames) - 1)]

    def _ready(self, state: WindowState) -> int:
        """Frames with all their context."""
        return state.mel.shape[1] - self._past_frames - self.context

    def _due(self, state: WindowState, *, is_last: bool) -> int:
        """Frames of the next window, if any."""
        ready, chunk = self._ready(state), self._chunk(state)
        if not is_last:
            return chunk if ready >= chunk else 0
        return min(ready, self.lengths[-1] - 2 * self.context) if self.lengths else ready

    def _window(self, mel: Tensor, frames: int) -> Tensor:
        """[num_mels, window]: the next `frames` frames with their context"""
        needed, end = frames + 2 * self.context, self._past_frames + frames + self.context
        return mel[:, end - next((n for n in self.lengths if n >= needed), needed) : end]
