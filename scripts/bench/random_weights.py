"""Random weights under the published codec's names and shapes, and whole codecs of them."""

from __future__ import annotations

import dataclasses
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.moss.codec import HISTORY_CODES, MossCodec
from moss_engine.codec.moss.flow.cuda import CudaFlow
from moss_engine.codec.moss.flow.decoder import run_chunks
from moss_engine.codec.moss.flow.weights import FlowConfig, flow_shapes, pack_flow
from moss_engine.codec.moss.load import CHUNK_CODES, hift_vocoder
from moss_engine.codec.moss.voice import SPEAKER_DIM, Voice
from moss_engine.codec.moss.whisper import (
    WhisperVq,
    WhisperVqConfig,
    build_whisper_vq,
    expected_tensors,
)
from moss_engine.codec.vocoder.hift.weights import HiftConfig, hift_shapes, pack_hift

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["WhisperVQEncoder"], "model_type": "whisper", "d_model": 32,
    "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "encoder_layers": 4,
    "quantize_position": 2, "pooling_position": 2, "pooling_kernel_size": 4, "pooling_type": "avg",
    "quantize_vocab_size": 64, "max_source_positions": 1500, "num_mel_bins": 128,
    "activation_function": "gelu", "encoder_causal_attention": True,
    "encoder_causal_convolution": True, "quantize_encoder_only": True, "scale_embedding": False,
}  # fmt: skip
PUBLISHED_CONFIG = TINY_CONFIG | {
    "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
    "quantize_position": 16, "pooling_position": 16, "quantize_vocab_size": 16_384,
}  # fmt: skip


def random_flow(config: FlowConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names; the same on every machine. What they make of codes is
    a log-mel."""
    tensors = {name: _random(name, shape, seed) for name, shape in flow_shapes(config).items()}
    for name, tensor in tensors.items():
        if name.endswith(
            (
                "norm1.weight",
                "norm3.weight",
                "norm.weight",
                "norm_mha.weight",
                "norm_ff.weight",
                ".block.2.weight",
                "embed.out.1.weight",
            )
        ):
            tensor += 1
    return tensors


def random_hift(config: HiftConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names, weight norm folded; a log-mel has a voice's pitch."""
    tensors = {name: _random(name, shape, seed) for name, shape in hift_shapes(config).items()}
    for name, tensor in tensors.items():
        if name.endswith("alpha"):
            tensor.abs_().add_(0.5)
        elif name.endswith("weight") and name.startswith(
            ("resblocks", "source_resblocks", "conv_post")
        ):
            tensor *= 0.3
    tensors["conv_pre.weight"] *= 0.2
    tensors["f0_predictor.classifier.weight"] *= 30
    tensors["f0_predictor.classifier.bias"][:] = 150
    return tensors


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    values = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(
        shape
    )
    scale = (
        0.1
        if len(shape) == 1
        else 1.0
        if name == "input_embedding.weight"
        else math.prod(shape[1:]) ** -0.5
    )
    return torch.from_numpy((scale * values).astype(np.float32))


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are the published codec's, and replies of 60 s."""

    flow: FlowConfig = FlowConfig()
    hift: HiftConfig = HiftConfig()
    encoder: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(PUBLISHED_CONFIG))
    voice_codes: int = 60
    reply_codes: int = 750
    compared_codes: int = 100
    history_codes: int = HISTORY_CODES
    streams: tuple[int, ...] = (1, 4, 8, 16)
    repeats: int = 20

    @property
    def num_codes(self) -> int:
        return int(self.encoder["quantize_vocab_size"])


class Parts:
    """Random weights, made once, and codecs of them in any number format."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.flow, self.hift = random_flow(sizes.flow), random_hift(sizes.hift)
        random = np.random.RandomState(0)
        codes = random.randint(0, sizes.num_codes, sizes.voice_codes).tolist()
        mel = (
            torch.from_numpy(random.standard_normal((80, 4 * sizes.voice_codes)).astype(np.float32))
            * 2
            - 5
        )
        self.voice = Voice(
            "random",
            tuple(codes),
            mel,
            torch.from_numpy(random.standard_normal(SPEAKER_DIM).astype(np.float32)),
        )

    def codec(self, dtype: torch.dtype, max_together: int) -> MossCodec:
        """As `load_moss_codec` joins one."""
        weights = pack_flow(self.flow, self.sizes.flow, self.device, dtype)
        vocoder = hift_vocoder(
            pack_hift(self.hift, self.sizes.hift, self.device), self.sizes.flow, max_together
        )
        run = (
            CudaFlow(weights, CHUNK_CODES, max_together)
            if self.device.type == "cuda"
            else run_chunks
        )
        encoder = self.encoder(dtype)
        if self.device.type == "cuda":
            encoder.capture()
        return MossCodec(
            encoder,
            weights,
            vocoder,
            [self.voice],
            num_codes=self.sizes.num_codes,
            run=run,
            max_together=max_together,
        )

    def encoder(self, dtype: torch.dtype) -> WhisperVq:
        """The speech encoder alone."""
        config = WhisperVqConfig.from_dict(self.sizes.encoder, source="the bench")
        generator = torch.Generator(self.device).manual_seed(0)

        def values(name: str, shape: tuple[int, ...]) -> Tensor:
            tensor = torch.randn(shape, generator=generator, device=self.device)
            if "norm" in name:
                return 0.1 * tensor + name.endswith("weight")
            return tensor * (0.1 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5)

        tensors = {name: values(name, shape) for name, shape in expected_tensors(config).items()}
        return build_whisper_vq(config, tensors, self.device, dtype)
