"""Speech -> codes: the front half of a causal Whisper encoder, and a codebook.

Log-mel features at 16 kHz (the formula is that of transformers' WhisperFeatureExtractor with the
settings of the published codec, float32), two causal convolutions, 16 pre-norm layers with causal
attention, the mean of every four steps, and the nearest of the 16,384 codebook rows: 12.5 codes a
second. The tensors of `model.safetensors` under `encoder.` are its weights; on a GPU single
segments run from CUDA graphs of a few lengths.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, scaled_dot_product_attention

from moss_engine.api.errors import CheckpointError, EngineFaultError
from moss_engine.api.small_files import read_json
from moss_engine.codec.base import MelSpec
from moss_engine.codec.device import Graph
from moss_engine.codec.files import Take, taken_shapes, unusable
from moss_engine.codec.mel import slaney_filters
from moss_engine.codec.resample import resample
from moss_engine.models.checkpoint import FILE_NAME, check_tensors, read_finite
from moss_engine.models.manifest import samples_of
from moss_engine.models.tensor_file import StoredTensor, read_header

WHISPER_MEL = MelSpec(
    sample_rate_hz=16_000,
    n_fft=400,
    win_size=400,
    hop_size=160,
    num_mels=128,
    fmin_hz=0.0,
    fmax_hz=8000.0,
)
"""Its geometry; the formula is another than that of MelSpec's own docstring."""
MAX_PIECE_SAMPLES = 480_000
"""30 s, the longest stretch that the encoder sees at once."""
POWER_FLOOR = 1e-10
RANGE_DECADES = 8.0
"""What is more than 80 dB below the loudest point of a piece is raised to that."""
PREPROCESSOR_NAME = "preprocessor_config.json"
SETTINGS = {
    "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16_000, "n_fft": 400,
    "hop_length": 160, "feature_size": 128, "chunk_length": 30, "n_samples": 480_000,
    "nb_max_frames": 3000, "padding_value": 0.0, "padding_side": "right",
}  # fmt: skip
"""The settings that are implemented, under the names of `preprocessor_config.json`."""
OPTIONAL_SETTINGS = {"dither": 0.0, "do_normalize": False}
"""Settings of newer files; a file without them means these."""


def to_16_khz(wave: Tensor, sample_rate_hz: int) -> Tensor:
    """float32 [samples] at any rate -> at 16 kHz, with the filter of torchaudio's Resample."""
    return resample(
        wave, sample_rate_hz, WHISPER_MEL.sample_rate_hz, zero_crossings=6, roll_off=0.99
    )


def whisper_features(wave: Tensor) -> Tensor:
    """float32 [pieces, samples] at 16 kHz -> float32 [pieces, 128, samples // 160].

    Every piece is measured against its own loudest point. Needs a multiple of 160 samples, and more
    than 200.
    """
    assert wave.shape[-1] % WHISPER_MEL.hop_size == 0 and wave.shape[-1] > WHISPER_MEL.n_fft // 2
    window, filters = _window_and_filters(wave.device)
    edge = WHISPER_MEL.n_fft // 2
    mirrored = pad(wave, (edge, edge), mode="reflect")
    spectrum = torch.stft(
        mirrored,
        WHISPER_MEL.n_fft,
        WHISPER_MEL.hop_size,
        window=window,
        center=False,
        return_complex=True,
    )[..., :-1]  # the frame centred on the last sample is left out
    power = torch.view_as_real(spectrum).square().sum(-1)  # [pieces, 201, frames]
    decades = (filters @ power).clamp_min(POWER_FLOOR).log10()
    floor = decades.amax(dim=(1, 2), keepdim=True) - RANGE_DECADES
    return (torch.maximum(decades, floor) + 4) / 4


def check_settings(path: Path) -> None:
    """Raise CheckpointError unless `preprocessor_config.json` asks for these features."""
    values = OPTIONAL_SETTINGS | read_json(path, again="download the codec again.")
    if wrong := _differing(values, SETTINGS | OPTIONAL_SETTINGS):
        raise CheckpointError(
            f"{path} describes another front end ({'; '.join(wrong)}); "
            "use the published MOSS-Speech codec."
        )


def _differing(values: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {values.get(name)!r} instead of {value!r}"
        for name, value in wanted.items()
        if values.get(name) != value
    ]


@lru_cache(maxsize=4)
def _window_and_filters(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.hann_window(WHISPER_MEL.win_size, device=device), slaney_filters(WHISPER_MEL).to(
        device
    )


CONFIG_NAME = "config.json"
PREFIX = "encoder."
TRAINING_ONLY = (
    "embed_positions2.weight ema_count ema_weight layer_norm.weight layer_norm.bias".split()
)
"""Tensors under `encoder.` that training left behind; beside them, the layers above the codebook.
"""

_COUNTS = {
    "d_model": "d_model",
    "encoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "ffn_dim",
    "quantize_position": "num_layers",
    "max_source_positions": "max_steps",
    "quantize_vocab_size": "num_codes",
    "pooling_kernel_size": "steps_per_code",
    "encoder_layers": "declared_layers",
}
_FIXED = {
    "architectures": ["WhisperVQEncoder"],
    "num_mel_bins": WHISPER_MEL.num_mels,
    "pooling_type": "avg",
    "activation_function": "gelu",
    "encoder_causal_attention": True,
    "encoder_causal_convolution": True,
    "quantize_encoder_only": True,
    "scale_embedding": False,
}


@dataclass(frozen=True)
class WhisperVqConfig:
    """Sizes of the encoder. A step is 20 ms, two frames; `num_layers` are run of the
    `declared_layers`."""

    d_model: int
    num_heads: int
    ffn_dim: int
    num_layers: int
    max_steps: int
    num_codes: int
    steps_per_code: int
    declared_layers: int

    @staticmethod
    def from_folder(folder: Path) -> WhisperVqConfig:
        """Read config.json; raises CheckpointError that names the file and the field."""
        path = folder / CONFIG_NAME
        values = read_json(
            path,
            missing=f"{path} is missing; point --codec at the published MOSS-Speech codec.",
            again="download the codec again.",
        )
        return WhisperVqConfig.from_dict(values, source=str(path))

    @staticmethod
    def from_dict(values: dict[str, Any], *, source: str) -> WhisperVqConfig:
        sizes = {name: values.get(name) for name in _COUNTS}
        wrong = _differing(values, _FIXED)
        wrong += [
            f"{name} is {sizes[name]!r}, no size"
            for name in unusable(sizes, dict.fromkeys(_COUNTS, 1))
        ]
        wrong = wrong or _inconsistencies(values)
        if wrong:
            raise CheckpointError(
                f"{source} describes another speech encoder ({'; '.join(wrong)}); "
                "use the published MOSS-Speech codec."
            )
        return WhisperVqConfig(**{ours: values[theirs] for theirs, ours in _COUNTS.items()})


def _inconsistencies(values: dict[str, Any]) -> list[str]:
    wrong = []
    if values["d_model"] % values["encoder_attention_heads"]:
        wrong.append("d_model is no multiple of encoder_attention_heads")
    if values.get("pooling_position") != values["quantize_position"]:
        wrong.append(
            f"pooling_position is {values.get('pooling_position')!r}, not quantize_position"
        )
    if values["quantize_position"] > values["encoder_layers"]:
        wrong.append("quantize_position lies above encoder_layers")
    steps = MAX_PIECE_SAMPLES // WHISPER_MEL.hop_size // 2
    if values["max_source_positions"] != steps:
        wrong.append(f"max_source_positions is {values['max_source_positions']} instead of {steps}")
    elif steps % values["pooling_kernel_size"]:
        wrong.append("pooling_kernel_size does not divide max_source_positions")
    return wrong


def expected_tensors(config: WhisperVqConfig) -> dict[str, tuple[int, ...]]:
    """Published names and shapes of the tensors that are read (246 at the published size)."""
    return taken_shapes(lambda take, _: _network_tensors(take, config))


def _network_tensors(take: Take, config: WhisperVqConfig) -> dict[str, Tensor]:
    """The tensors of `Encoder`, in which query, key and value are one matrix."""
    dim, found = config.d_model, dict[str, Tensor]()

    def affine(ours: str, theirs: str, *shape: int) -> None:
        found[f"{ours}.weight"] = take(f"{PREFIX}{theirs}.weight", shape)
        found[f"{ours}.bias"] = take(f"{PREFIX}{theirs}.bias", shape[:1])

    affine("conv1", "conv1", dim, WHISPER_MEL.num_mels, 3)
    affine("conv2", "conv2", dim, dim, 3)
    found["positions"] = take(f"{PREFIX}embed_positions.weight", (config.max_steps, dim))
    found["codebook"] = take(f"{PREFIX}codebook.weight", (config.num_codes, dim))
    found["codebook_square"] = found["codebook"].square().sum(1)
    for layer in (f"layers.{i}" for i in range(config.num_layers)):
        affine(f"{layer}.attention_norm", f"{layer}.self_attn_layer_norm", dim)
        names = [f"{PREFIX}{layer}.self_attn.{part}_proj" for part in "qkv"]
        weights = [take(f"{name}.weight", (dim, dim)) for name in names]
        query, value = (take(f"{name}.bias", (dim,)) for name in names[::2])
        found[f"{layer}.qkv.weight"] = torch.cat(weights)
        found[f"{layer}.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
        affine(f"{layer}.out", f"{layer}.self_attn.out_proj", dim, dim)
        affine(f"{layer}.mlp_norm", f"{layer}.final_layer_norm", dim)
        affine(f"{layer}.fc1", f"{layer}.fc1", config.ffn_dim, dim)
        affine(f"{layer}.fc2", f"{layer}.fc2", dim, config.ffn_dim)
    return found


def read_encoder_header(folder: Path, config: WhisperVqConfig) -> dict[str, StoredTensor]:
    """The encoder's stored tensors, checked by name and shape from the header alone.

    What lies outside `encoder.` belongs to parts that are never run. Raises CheckpointError for a
    missing tensor, a wrong shape, and for a name under `encoder.` that is neither expected nor
    known to be training's.
    """
    path = folder / FILE_NAME
    stored = {
        name: tensor
        for name, tensor in read_header(path).items()
        if name.startswith(PREFIX) and not is_training_only(name, config)
    }
    check_tensors(path, stored, expected_tensors(config))
    return stored


def is_training_only(name: str, config: WhisperVqConfig) -> bool:
    """Whether a tensor under `encoder.` is left over from training: never read, and no fault."""
    inner = name.removeprefix(PREFIX)
    layer = re.match(r"layers\.(\d+)\.", inner)
    if layer:
        return config.num_layers <= int(layer[1]) < config.declared_layers
    return inner in TRAINING_ONLY


def codec_digest(folder: Path) -> str:
    """A digest of the encoder: a voice's codes belong to one codec only."""
    config = WhisperVqConfig.from_folder(folder)
    return hashlib.sha256(
        repr(config).encode() + samples_of(read_encoder_header(folder, config))
    ).hexdigest()


LENGTHS = (13, 25, 38, 50, 63, 75, 100, 125)
"""In codes: of 1 s to 10 s of speech. Longer ones are not limited by launches, and their graphs
would keep memory that grows with the square of the length."""


CONV_STRIDE = 2
PIECES_TOGETHER = 8
"""Pieces of 30 s of one batch."""
SEARCH_POINTS = 512
"""Points compared with the whole codebook at once: 34 MB of distances."""


class Layer(nn.Module):
    """Attention to what came before, then the MLP, each behind a norm and added to the stream.

    The stream stays float32 whatever the weights are: sums of 16 layers then lose nothing to 16
    bits.
    """

    def __init__(self, config: WhisperVqConfig) -> None:
        super().__init__()
        dim = config.d_model
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, config.ffn_dim)
        self.fc2 = nn.Linear(config.ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [pieces, steps, dim] -> the same"""
        dtype = self.qkv.weight.dtype
        heads = self.qkv(self.attention_norm(x).to(dtype)).unflatten(-1, (3, self.num_heads, -1))
        # [pieces, heads, steps, dim / heads] each
        query, key, value = heads.transpose(1, 3).unbind(2)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.fc2(gelu(self.fc1(self.mlp_norm(x).to(dtype))))


class Encoder(nn.Module):
    """Features -> codes."""

    positions: Tensor
    codebook: Tensor
    codebook_square: Tensor

    def __init__(self, config: WhisperVqConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(WHISPER_MEL.num_mels, config.d_model, 3)
        self.conv2 = nn.Conv1d(config.d_model, config.d_model, 3, stride=CONV_STRIDE)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.register_buffer("positions", torch.empty(config.max_steps, config.d_model))
        self.register_buffer("codebook", torch.empty(config.num_codes, config.d_model))
        self.register_buffer("codebook_square", torch.empty(config.num_codes))

    def forward(self, features: Tensor) -> Tensor:
        """float32 [segments, 128, frames] -> int64 [segments, frames / 8]"""
        return self.codes(self.points(features))

    def points(self, features: Tensor) -> Tensor:
        """float32 [segments, 128, frames] -> queries float32 [segments, frames / 8, dim]."""
        dtype = self.conv1.weight.dtype
        x = gelu(_causal_conv(features.transpose(1, 2).to(dtype), self.conv1))
        x = gelu(_causal_conv(x, self.conv2)).float()  # [pieces, steps, dim]
        x = x + self.positions[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x.unflatten(1, (-1, self.config.steps_per_code)).mean(2)

    def codes(self, points: Tensor) -> Tensor:
        """float32 [..., dim] -> the nearest codebook row int64 [...]; -1 for a non-finite point."""
        found = [self._search(part) for part in points.flatten(0, -2).split(SEARCH_POINTS)]
        return torch.cat(found).view(points.shape[:-1])

    def _search(self, points: Tensor) -> Tensor:
        distance = torch.addmm(self.codebook_square, points, self.codebook.T, alpha=-2)
        nearest, code = distance.min(-1)
        return torch.where(nearest.isfinite(), code, -1)


def _causal_conv(x: Tensor, conv: nn.Conv1d) -> Tensor:
    """[segments, steps, channels] -> [segments, steps / stride, out], as a matrix product.

    A GPU would round a convolution to 10 bits.
    """
    windows = pad(x, (0, 0, conv.kernel_size[0] - 1, 0)).unfold(
        1, conv.kernel_size[0], conv.stride[0]
    )
    return linear(windows.flatten(2), conv.weight.flatten(1), conv.bias)


class WhisperVq:
    """wave -> codes. `encode` may be called from any thread; the network is shared and only
    read."""

    def __init__(self, encoder: Encoder, device: torch.device) -> None:
        self.network, self._device = encoder, device
        self._graphs: dict[int, Callable[[Tensor], tuple[Tensor, ...]]] = {}
        self._one_at_a_time = threading.Lock()
        self.num_codes = encoder.config.num_codes
        self.samples_per_code = WHISPER_MEL.hop_size * CONV_STRIDE * encoder.config.steps_per_code
        """Of speech at 16 kHz."""

    def tensors(self) -> list[Tensor]:
        """All that it keeps on its device."""
        return [*self.network.parameters(), *self.network.buffers()]

    def capture(self) -> None:
        """Run single segments from CUDA graphs of LENGTHS from now on; on a GPU, before others use
        it. A graph of a longer segment gives the same codes: the network is causal, and what is
        filled up lies behind."""
        on_gpu = self._device.type == "cuda"
        lane = torch.cuda.Stream(self._device) if on_gpu else None
        pool = torch.cuda.graph_pool_handle() if on_gpu else None
        for length in reversed(LENGTHS):  # the longest first, which takes the most memory
            frames = length * self.samples_per_code // WHISPER_MEL.hop_size
            self._graphs[frames] = lambda features: (self.network(features),)
            if lane is not None:  # else the network itself runs
                features = torch.zeros(1, WHISPER_MEL.num_mels, frames, device=self._device)
                with torch.inference_mode():
                    self._graphs[frames] = Graph(self._graphs[frames], (features,), lane, pool)

    @torch.inference_mode()
    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """float32 [samples] mono, any rate -> one code per started 80 ms; none for an empty wave.

        Longer sounds are cut into pieces of 30 s that know nothing of each other; all are filled up
        with silence to the length of the longest, as the published codec does. Raises
        EngineFaultError where the network did not give finite values.
        """
        samples = torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32))
        heard = to_16_khz(samples.to(self._device, non_blocking=True), sample_rate_hz)
        if not len(heard):
            return []
        pieces = heard.split(MAX_PIECE_SAMPLES)
        counts = [-(-len(piece) // self.samples_per_code) for piece in pieces]
        length = max(counts) * self.samples_per_code
        filled = torch.stack([pad(piece, (0, length - len(piece))) for piece in pieces])
        parts = whisper_features(filled).split(PIECES_TOGETHER)
        rows = torch.cat([self._run(features) for features in parts]).tolist()
        codes = [code for row, count in zip(rows, counts, strict=True) for code in row[:count]]
        if any(code < 0 for code in codes):
            raise EngineFaultError(
                "The speech encoder gave values that are no numbers; start the program with "
                "--codec-dtype float32 or bfloat16."
            )
        return codes

    def _run(self, features: Tensor) -> Tensor:
        """[pieces, 128, frames] -> int64 [pieces, codes]"""
        pieces, _, frames = features.shape
        room = min((found for found in self._graphs if found >= frames), default=None)
        if pieces > 1 or room is None:
            return self.network(features)
        with self._one_at_a_time:
            (codes,) = self._graphs[room](pad(features, (0, room - frames)))
        return codes[:, : frames * WHISPER_MEL.hop_size // self.samples_per_code]


def load_whisper_vq(
    folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> WhisperVq:
    """The encoder of a published codec folder.

    `dtype` is that of the products' weights; norms, positions, codebook and the search for the
    nearest code stay float32. Raises CheckpointError that names the file or tensor which is
    missing, unknown or different.
    """
    config = WhisperVqConfig.from_folder(folder)
    check_settings(folder / PREPROCESSOR_NAME)
    stored = read_encoder_header(folder, config)
    return build_whisper_vq(
        config, {name: read_finite(stored[name]) for name in stored}, device, dtype
    )


def build_whisper_vq(
    config: WhisperVqConfig,
    tensors: Mapping[str, Tensor],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> WhisperVq:
    """The encoder with exactly the tensors of `expected_tensors`, under their published names."""
    with torch.device("meta"):
        encoder = Encoder(config)
    floats = _network_tensors(lambda name, _: tensors[name].float(), config)
    encoder.load_state_dict(floats, strict=True, assign=True)
    for module in encoder.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            module.to(dtype)
    return WhisperVq(encoder.to(device).eval().requires_grad_(False), torch.device(device))
