"""Speech -> codes: the front half of a causal Whisper encoder, and a codebook.

Two causal convolutions, 16 pre-norm layers with causal attention, the mean of every four steps, and
the nearest of the 16,384 codebook rows: 12.5 codes a second. The tensors of `model.safetensors`
under `encoder.` are its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, scaled_dot_product_attention

from moss_engine.api.errors import EngineFaultError
from moss_engine.codec.moss.whisper.config import WhisperVqConfig, read_encoder_header
from moss_engine.codec.moss.whisper.features import (
    MAX_PIECE_SAMPLES,
    PREPROCESSOR_NAME,
    WHISPER_MEL,
    check_settings,
    to_16_khz,
    whisper_features,
)
from moss_engine.codec.moss.whisper.graphs import EncoderGraphs
from moss_engine.models.checkpoint import read_finite

CONV_STRIDE = 2
BATCH_FRAMES = 8 * MAX_PIECE_SAMPLES // WHISPER_MEL.hop_size
"""Frames of one batch after padding: 8 segments of 30 s, or 60 of 4 s."""
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
        query, key, value = heads.transpose(1, 3).unbind(
            2
        )  # [pieces, heads, steps, dim / heads] each
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
        self.graphs: EncoderGraphs | None = None
        self.num_codes = encoder.config.num_codes
        self.samples_per_code = WHISPER_MEL.hop_size * CONV_STRIDE * encoder.config.steps_per_code
        """Of speech at 16 kHz."""

    def tensors(self) -> list[Tensor]:
        """All that it keeps on its device."""
        return [*self.network.parameters(), *self.network.buffers()]

    def capture(self) -> None:
        """Run single segments from CUDA graphs from now on; on a GPU, before others use it."""
        frames_per_code = self.samples_per_code // WHISPER_MEL.hop_size
        bands, network = WHISPER_MEL.num_mels, self.network
        self.graphs = EncoderGraphs(
            lambda features: network.codes(network.points(features)),
            bands,
            frames_per_code,
            self._device,
        )

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """float32 [samples] mono, any rate -> one code per started 80 ms; none for an empty wave.

        Longer sounds are cut into pieces of 30 s that know nothing of each other. Raises
        EngineFaultError where the network did not give finite values.
        """
        return self.encode_together([(wave, sample_rate_hz)])[0]

    @torch.inference_mode()
    def encode_together(self, waves: Sequence[tuple[np.ndarray, int]]) -> list[list[int]]:
        """As `encode` for each, run as one batch; the codes come back in one copy."""
        features: list[Tensor] = []
        num_codes: list[list[int]] = []
        for wave, sample_rate_hz in waves:
            samples = torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32))
            found, counts = self._features(
                to_16_khz(samples.to(self._device, non_blocking=True), sample_rate_hz)
            )
            features += found
            num_codes.append(counts)
        if not features:
            return [[] for _ in waves]
        rows = iter(torch.cat([self._run(batch) for batch in batches(features)]).tolist())
        codes = [[code for count in counts for code in next(rows)[:count]] for counts in num_codes]
        if any(code < 0 for clip in codes for code in clip):
            raise EngineFaultError(
                "The speech encoder gave values that are no numbers; start the program with "
                "--codec-dtype float32 or bfloat16."
            )
        return codes

    def _features(self, wave: Tensor) -> tuple[list[Tensor], list[int]]:
        """One clip at 16 kHz -> features [128, frames] and number of codes of each segment.

        The pieces of a clip are filled up with silence to the length of its longest, as the
        published codec does.
        """
        pieces = list(wave.split(MAX_PIECE_SAMPLES)) if len(wave) else []
        counts = [-(-len(piece) // self.samples_per_code) for piece in pieces]
        length = max(counts, default=0) * self.samples_per_code
        if not pieces:
            return [], []
        filled = torch.stack([pad(piece, (0, length - len(piece))) for piece in pieces])
        return list(whisper_features(filled)), counts

    def _run(self, features: Sequence[Tensor]) -> Tensor:
        """[128, frames] each -> int64 [segments, most codes]; padded behind a segment's."""
        frames = max(piece.shape[1] for piece in features)
        batch = torch.stack([pad(piece, (0, frames - piece.shape[1])) for piece in features])
        codes = self.graphs(batch) if self.graphs is not None and len(batch) == 1 else None
        if codes is None:
            codes = self.network.codes(self.network.points(batch))
        return pad(codes, (0, self.network.config.max_codes - codes.shape[1]))


def batches(features: Sequence[Tensor]) -> list[list[Tensor]]:
    """[128, frames] each -> the same in order, grouped to at most BATCH_FRAMES after padding."""
    groups: list[list[Tensor]] = []
    longest = 0
    for piece in features:
        longest = max(longest, piece.shape[1])
        if not groups or (len(groups[-1]) + 1) * longest > BATCH_FRAMES:
            groups.append([])
            longest = piece.shape[1]
        groups[-1].append(piece)
    return groups


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
    floats = {name: tensor.float() for name, tensor in tensors.items()}
    encoder.load_state_dict(_network_tensors(config, floats), strict=True, assign=True)
    for module in encoder.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            module.to(dtype)
    return WhisperVq(encoder.to(device).eval().requires_grad_(False), torch.device(device))


def _network_tensors(config: WhisperVqConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published tensor names -> those of `Encoder`; query, key and value become one matrix."""
    network = {
        f"{conv}.{part}": tensors[f"encoder.{conv}.{part}"]
        for conv in ("conv1", "conv2")
        for part in ("weight", "bias")
    }
    codebook = tensors["encoder.codebook.weight"]
    network |= {
        "positions": tensors["encoder.embed_positions.weight"],
        "codebook": codebook,
        "codebook_square": codebook.square().sum(1),
    }
    renamed = {
        "self_attn_layer_norm": "attention_norm",
        "self_attn.out_proj": "out",
        "final_layer_norm": "mlp_norm",
        "fc1": "fc1",
        "fc2": "fc2",
    }
    for i in range(config.num_layers):
        layer = f"encoder.layers.{i}"
        for old, new in renamed.items():
            network |= {
                f"layers.{i}.{new}.{part}": tensors[f"{layer}.{old}.{part}"]
                for part in ("weight", "bias")
            }
        query_bias = tensors[f"{layer}.self_attn.q_proj.bias"]
        biases = [
            query_bias,
            torch.zeros_like(query_bias),
            tensors[f"{layer}.self_attn.v_proj.bias"],
        ]
        weights = [tensors[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"]
        network |= {
            f"layers.{i}.qkv.weight": torch.cat(weights),
            f"layers.{i}.qkv.bias": torch.cat(biases),
        }
    return network
