"""Random weights under the published codec's names and shapes; configurations of its encoder."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.moss.flow.config import FlowConfig, flow_shapes
from moss_engine.codec.vocoder.hift.config import HiftConfig, hift_shapes

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
