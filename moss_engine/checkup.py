"""Checks of checkpoint folders by headers and configurations alone, without a device or weights.

Nothing in a file is executed: safetensors headers are JSON, and torch files are read as plain
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from moss_engine.api.errors import CheckpointError, MossError
from moss_engine.api.small_files import read_json
from moss_engine.codec.files import check_state, read_tensors
from moss_engine.codec.load import load_codec
from moss_engine.codec.moss.flow.weights import flow_shapes, read_flow_config
from moss_engine.codec.moss.load import CONFIG, FLOW_CHUNK, HIFT, is_moss_codec, read_configs
from moss_engine.codec.moss.speaker import CAMPPLUS_NAME, INSTALL, SpeakerEncoder
from moss_engine.codec.moss.voice import list_voices, load_voice
from moss_engine.codec.moss.whisper import (
    PREPROCESSOR_NAME,
    WhisperVqConfig,
    check_settings,
    codec_digest,
    read_encoder_header,
)
from moss_engine.codec.moss.whisper import expected_tensors as expected_encoder
from moss_engine.codec.vocoder.hift.weights import fold_weight_norm, hift_shapes, read_hift_config
from moss_engine.models.checkpoint import check_tensors, expected_tensors, read_index
from moss_engine.models.config import ModelConfig, assumed
from moss_engine.models.manifest import MANIFEST_NAME, verify_manifest
from moss_engine.text.processor import load_processor

MAX_TEXT_CHARS = 4000


@dataclass(frozen=True)
class Finding:
    """What was found in one place or, if something is wrong there, a sentence about that."""

    subject: str
    detail: str
    is_fault: bool = False


def check_network(folder: Path) -> Iterator[Finding]:
    """Check the language model: configuration, tokenizer, and every tensor's name and shape."""
    path = folder / "config.json"
    try:
        model = ModelConfig.from_file(path)
    except MossError as error:
        yield Finding("config.json", str(error), is_fault=True)
        return
    yield Finding("config.json", _describe_config(model))
    if taken := assumed(read_json(path)):
        ids = ", ".join(f"{name} {value}" for name, value in taken.items())
        yield Finding("config.json", f"leaves out what the published vocabulary says: {ids}")
    yield from _look("tokenizer.json", lambda: _describe_tokenizer(folder, model))
    yield from _look("tensors", lambda: require_network_tensors(folder, model))
    if (folder / MANIFEST_NAME).exists():
        yield from _look(
            MANIFEST_NAME,
            lambda: str(verify_manifest(folder) and "every file is as it was released"),
        )


def require_network_tensors(folder: Path, model: ModelConfig) -> str:
    """Describe the network's tensors; raises CheckpointError unless exactly they are stored."""
    stored, expected = read_index(folder), expected_tensors(model)
    check_tensors(folder, stored, expected)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in stored.values()}
    files = len({tensor.path for tensor in stored.values()})
    num_bytes = sum(tensor.num_bytes for tensor in stored.values())
    return (
        f"{len(expected)} tensors in {files} {'file' if files == 1 else 'files'}, "
        f"{', '.join(sorted(dtypes))}, {num_bytes / 1e9:.2f} GB"
    )


def _describe_config(model: ModelConfig) -> str:
    num_values = sum(math.prod(shape) for shape in expected_tensors(model).values())
    return (
        f"MOSS-Speech, {num_values / 1e9:.3f} billion parameters, {model.num_shared_layers} + 2 x "
        f"{model.num_modality_layers} layers, rope_theta {model.rope_theta:,.0f}, "
        f"{model.special.num_codes} codes"
    )


def _describe_tokenizer(folder: Path, model: ModelConfig) -> str:
    processor = load_processor(folder, model, MAX_TEXT_CHARS)
    return f"modes: {', '.join(mode.name for mode in processor.modes)}"


def check_codec(folder: Path, voices: Path) -> Iterator[Finding]:
    """Check the codec: the published one part by part, the built-in one by loading it."""
    if not is_moss_codec(folder) and (folder / "codec").is_dir():
        yield from _look("codec", lambda: f"built-in, {load_codec(folder).num_codes} codes")
        return
    if not is_moss_codec(folder) and not (folder / PREPROCESSOR_NAME).is_file():
        yield Finding(
            "codec",
            f"{folder} holds no codec; name the folder of one after the language model's (for "
            "app.py: --codec).",
            is_fault=True,
        )
        return
    for subject, check in {**PUBLISHED_PARTS, CAMPPLUS_NAME: _speaker}.items():
        yield from _look(subject, lambda check=check: check(folder))
    yield from _check_voices(folder, voices)


def require_codec_tensors(folder: Path) -> None:
    """Raise CheckpointError unless a published codec has the settings, tensor names and shapes that
    replies need. Other codecs are small enough to be checked by loading them.
    """
    if is_moss_codec(folder):
        for check in PUBLISHED_PARTS.values():
            check(folder)


def _describe_encoder(folder: Path) -> str:
    config = WhisperVqConfig.from_folder(folder)
    return (
        f"causal Whisper-VQ, {config.num_layers} of {config.declared_layers} layers, "
        f"{config.num_codes} codes"
    )


def _settings(folder: Path) -> str:
    check_settings(folder / PREPROCESSOR_NAME)
    return "16 kHz, 128 bands, 30 s"


def _encoder_tensors(folder: Path) -> str:
    config = WhisperVqConfig.from_folder(folder)
    read_encoder_header(folder, config)
    return f"{len(expected_encoder(config))} encoder tensors"


def _describe_decoder(folder: Path) -> str:
    flow, hift = read_configs(folder)
    return f"{flow.code_rate_hz:g} codes/s -> {flow.num_mels} mel bands -> {hift.sample_rate_hz} Hz"


def _flow_tensors(folder: Path) -> str:
    shapes, path = flow_shapes(read_flow_config(folder / CONFIG)), folder / FLOW_CHUNK
    check_state(read_tensors(path), shapes, path)
    return f"{len(shapes)} tensors"


def _hift_tensors(folder: Path) -> str:
    shapes = hift_shapes(read_hift_config(folder / CONFIG))
    check_state(fold_weight_norm(read_tensors(folder / HIFT)), shapes, folder / HIFT)
    return f"{len(shapes)} tensors"


PUBLISHED_PARTS: dict[str, Callable[[Path], str]] = {
    "config.json": _describe_encoder,
    PREPROCESSOR_NAME: _settings,
    "model.safetensors": _encoder_tensors,
    CONFIG: _describe_decoder,
    FLOW_CHUNK: _flow_tensors,
    HIFT: _hift_tensors,
}
"""The files of the published codec that replies need -> a check that describes what it found."""


def _speaker(folder: Path) -> str:
    path = folder / CAMPPLUS_NAME
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; download the codec again.")
    if find_spec("onnxruntime") is None:
        return f"not looked into: that needs onnxruntime, as making voices does ({INSTALL})"
    SpeakerEncoder(path)
    return "speaker network, 192 values"


def _check_voices(folder: Path, voices: Path) -> Iterator[Finding]:
    names = list_voices(voices)
    if not names:
        yield Finding(
            "voices",
            f"none in {voices}; make one with: python -m scripts.voice make sample.wav NAME",
        )
    for name in names:
        yield from _look(
            f"voice {name}",
            lambda name=name: f"{len(load_voice(voices / name, codec_digest(folder)).codes)} codes",
        )


def check_together(network: Path, codec: Path) -> Iterator[Finding]:
    """Check that network and codec have equally many codes; nothing if one could not be read."""
    if not is_moss_codec(codec):
        return
    try:
        spoken = ModelConfig.from_file(network / "config.json").special.num_codes
        heard = WhisperVqConfig.from_folder(codec).num_codes
    except MossError:
        return
    yield Finding(
        "codes", f"the network has {spoken} and the codec {heard}", is_fault=spoken != heard
    )


def _look(subject: str, check: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield Finding(subject, check())
    except MossError as error:
        yield Finding(subject, str(error), is_fault=True)
