"""A tiny speech encoder and speaker network with random weights, in the published layout, for tests.

python -m scripts.make_tiny_encoder FOLDER     writes config.json, preprocessor_config.json, model.safetensors and
                                               flow/campplus.onnx
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.voice import SPEAKER_DIM
from moss_engine.codec.whisper_config import CONFIG_NAME, WhisperVqConfig, expected_tensors
from moss_engine.codec.whisper_features import PREPROCESSOR_NAME, SETTINGS
from moss_engine.models.checkpoint import FILE_NAME, save_tensors

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["WhisperVQEncoder"], "model_type": "whisper", "d_model": 32, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "encoder_layers": 4, "quantize_position": 2, "pooling_position": 2, "pooling_kernel_size": 4,
    "pooling_type": "avg", "quantize_vocab_size": 64, "max_source_positions": 1500, "num_mel_bins": 128,
    "activation_function": "gelu", "encoder_causal_attention": True, "encoder_causal_convolution": True,
    "quantize_encoder_only": True, "scale_embedding": False,
}  # fmt: skip
PUBLISHED_CONFIG = TINY_CONFIG | {
    "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
    "quantize_position": 16, "pooling_position": 16, "quantize_vocab_size": 16_384,
}  # fmt: skip
SPEAKER_BANDS = 80


def make_tensors(config: WhisperVqConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random float32 weights of the published names; the same on every machine."""
    return {name: _random(name, shape, seed) for name, shape in expected_tensors(config).items()}


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    values = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(shape)
    if "norm" in name:
        values = 0.1 * values + name.endswith("weight")
    elif len(shape) == 1:
        values = 0.1 * values
    elif name.endswith(("codebook.weight", "embed_positions.weight")):
        values = 0.7 * values
    else:
        values = values / np.prod(shape[1:]) ** 0.5
    return torch.from_numpy(values.astype(np.float32))


def make_tiny_encoder(folder: Path, seed: int = 0, num_codes: int = 64) -> None:
    """Write the encoder half of a codec folder, about 500 kB, with the leftovers of training that a real one has."""
    folder.mkdir(parents=True, exist_ok=True)
    values = TINY_CONFIG | {"quantize_vocab_size": num_codes}
    config = WhisperVqConfig.from_dict(values, source="tiny")
    leftovers = {"encoder.embed_positions2.weight": (375, 32), "encoder.ema_count": (num_codes,),
                 "encoder.layer_norm.weight": (32,), "encoder.layers.2.fc1.weight": (64, 32),
                 "decoder.layers.0.fc1.weight": (64, 32)}
    tensors = make_tensors(config, seed) | {name: torch.zeros(shape) for name, shape in leftovers.items()}
    save_tensors(folder / FILE_NAME, tensors)
    (folder / CONFIG_NAME).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    (folder / PREPROCESSOR_NAME).write_text(json.dumps(SETTINGS, indent=1) + "\n", encoding="utf-8")
    (folder / "flow").mkdir(exist_ok=True)
    (folder / "flow" / "campplus.onnx").write_bytes(tiny_campplus(seed))


def tiny_campplus(seed: int = 0) -> bytes:
    """An ONNX network from fbank [1, frames, 80] to a speaker vector [1, 192]: mean of squares over frames, times
    `speaker_matrix`.

    Written out field by field in the wire format of ONNX's protocol buffers, so that no package is needed for it.
    """
    weights = (_number(1, SPEAKER_BANDS) + _number(1, SPEAKER_DIM) + _number(2, 1) + _field(8, b"matrix")
               + _field(9, speaker_matrix(seed).tobytes()))
    axes = _field(1, b"axes") + _number(8, 1) + _number(20, 7)
    keep = _field(1, b"keepdims") + _number(3, 0) + _number(20, 2)
    nodes = (
        _field(1, b"fbank") + _field(1, b"fbank") + _field(2, b"squares") + _field(4, b"Mul"),
        _field(1, b"squares") + _field(2, b"mean") + _field(4, b"ReduceMean") + _field(5, axes) + _field(5, keep),
        _field(1, b"mean") + _field(1, b"matrix") + _field(2, b"speaker") + _field(4, b"MatMul"),
    )
    given, made = _value(b"fbank", (1, None, SPEAKER_BANDS)), _value(b"speaker", (1, SPEAKER_DIM))
    graph = (b"".join(_field(1, node) for node in nodes) + _field(2, b"tiny") + _field(5, weights) + _field(11, given)
             + _field(12, made))
    return _number(1, 8) + _field(7, graph) + _field(8, _field(1, b"") + _number(2, 13))


def speaker_matrix(seed: int = 0) -> np.ndarray:
    """float32 [80, 192]"""
    return np.random.RandomState(seed).standard_normal((SPEAKER_BANDS, SPEAKER_DIM)).astype("<f4") / 9


def _value(name: bytes, sizes: tuple[int | None, ...]) -> bytes:
    shape = b"".join(_field(1, _field(2, b"frames") if size is None else _number(1, size)) for size in sizes)
    return _field(1, name) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make_tiny_encoder(args.folder, args.seed)
    print(f"{args.folder}: speech encoder and speaker network with random weights")


if __name__ == "__main__":
    main()
