"""The folder of a vocoder: its configuration, its weights, and what streams it on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL, ChunkVocoder, MelSpec
from moss_engine.codec.files import CONFIG_NAME, filled, read_config, unusable, write
from moss_engine.codec.vocoder.bigvgan import (
    WindowVocoder,
    build_generator,
    context_frames,
    fold_activations,
    mel_spec_of,
)
from moss_engine.codec.vocoder.cuda import CudaVocoder, FusedGenerator
from moss_engine.codec.vocoder.source_bigvgan import SourceBigVgan
from moss_engine.codec.vocoder.source_filter import CachedVocoder, SourceFilter

BIGVGAN_TYPE = "bigvgan"
SOURCE_TYPES: dict[str, type[nn.Module]] = {
    "source-filter": SourceFilter,
    "source-bigvgan": SourceBigVgan,
}
TYPES = (BIGVGAN_TYPE, *SOURCE_TYPES)


def vocoder_mel(folder: Path) -> MelSpec:
    """The mel that the folder's vocoder was trained on; CheckpointError for an unknown type."""
    return _read(folder)[1]


def load_vocoder(folder: Path, device: torch.device | str = "cpu") -> tuple[Any, dict[str, Any]]:
    """A generator in float32, ready to run but not to be trained, and its config.

    On a GPU a plain BigVGAN is a `FusedGenerator` in float16; raises MissingPackageError where
    Triton is absent.
    """
    config, _ = _read(folder)
    source = SOURCE_TYPES.get(config["type"])
    build = partial(source, **config["sizes"]) if source else partial(build_generator, config)
    network = filled(build, folder, device)
    if source is None and torch.device(device).type == "cuda":
        return FusedGenerator(network), config
    fold_activations(network)
    return network, config


def _read(folder: Path) -> tuple[dict[str, Any], MelSpec]:
    """A vocoder's config, which is usable, and its mel; raises CheckpointError."""
    config = read_config(folder)
    if (kind := config["type"]) == BIGVGAN_TYPE:
        return config, mel_spec_of(config)
    if kind not in SOURCE_TYPES:
        raise CheckpointError(
            f"{folder} holds a vocoder of type {kind!r}; known are {', '.join(TYPES)}, so name "
            "another folder with --vocoder-folder."
        )
    sizes = dict.fromkeys(SOURCE_TYPES[kind].SIZES, 1)  # pyright: ignore
    example = {"type": kind, "sizes": sizes, "gain": 1.0, "mel": dataclasses.asdict(MOSS_MEL)}
    wrong = unusable(config, example)
    if not wrong and not 0 < config["gain"] < 100:
        wrong.append("gain")
    if not wrong and MelSpec(**config["mel"]) != MOSS_MEL:
        wrong.append("mel (this type of vocoder has one mel)")
    if wrong:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has unusable {', '.join(wrong)}; export the vocoder again."
        )
    return config, MOSS_MEL


def save_source_vocoder(
    folder: Path, kind: str, sizes: Mapping[str, int], gain: float, network: nn.Module, dtype: str
) -> None:
    """Write a generator that shapes pulses as "float32", "float16", or large weights as "int8"."""
    config = {"type": kind, "sizes": dict(sizes), "gain": gain, "mel": dataclasses.asdict(MOSS_MEL)}
    write(folder, config, network.state_dict(), dtype)


CONTEXT_SHARE = 0.8
"""Context of a plain BigVGAN's window as a share of its nominal support. The outermost frames act
through products of filter edges only: on a trained one, 0.8 of the support differs from all of it
by rounding noise (-127 dB), 0.6 of it by -44 dB. Less on the right lets first samples out earlier,
less on either side makes every chunk cheaper; with 1 the joins are exact for any weights."""
KINDS = ("source_filter", "bigvgan")
"""Vocoders that a checkpoint may hold side by side, in folders of these names."""


def pick_folder(folder: Path, kind: str, device: torch.device) -> Path:
    """Which vocoder of a checkpoint's `vocoder/` to use: the only one, or the one of `kind`.

    "auto" is the source-filter generator on a CPU, whose cost is the smaller, and the BigVGAN on a
    GPU. Raises CheckpointError where there is none of that kind.
    """
    if (folder / CONFIG_NAME).exists():
        return folder
    if kind == "auto":
        kind = "bigvgan" if device.type == "cuda" else "source_filter"
    if not (folder / kind).is_dir():
        raise CheckpointError(
            f"{folder} holds no vocoder {kind!r}; fetch the checkpoint again, or name a vocoder's "
            "folder with --vocoder-folder."
        )
    return folder / kind


def make_vocoder(
    folder: Path,
    device: torch.device,
    chunk_frames: tuple[int, ...],
    max_together: int,
    *,
    steady: bool = False,
) -> ChunkVocoder:
    """The folder's vocoder, its sound coming in chunks of `chunk_frames`, the last one repeated;
    where mel comes in such chunks (`steady`, of one size), as soon as a frame is final.

    On a GPU at most `max_together` replies at a time, and a plain BigVGAN runs in half precision as
    a CUDA graph; the others run operation by operation in float32 there.
    """
    network, config = load_vocoder(folder, device)
    if config["type"] != BIGVGAN_TYPE:
        chunks = (1,) if steady else chunk_frames
        return CachedVocoder(network, MOSS_MEL, config["gain"], chunks, device)
    context = context_frames(config, CONTEXT_SHARE)
    mel = mel_spec_of(config)
    return window_vocoder(network, mel, chunk_frames, context, device, max_together, steady=steady)


def window_vocoder(
    generator: Any,
    mel: MelSpec,
    chunk_frames: tuple[int, ...],
    context: int,
    device: torch.device,
    max_together: int,
    *,
    steady: bool = False,
) -> WindowVocoder:
    """See `make_vocoder`: a plain BigVGAN, with `context` frames on either side of a chunk; its
    windows have two lengths at most on a GPU."""
    on_gpu, lengths = device.type == "cuda", tuple[int, ...]()
    if steady:
        (frames,) = chunk_frames
        chunk_frames, lengths = (frames - context % frames, frames), (2 * context + frames,)
    elif on_gpu:
        lengths = tuple(sorted({n + 2 * context for n in (chunk_frames[0], max(chunk_frames))}))
    if on_gpu:
        generator = CudaVocoder(generator, mel.num_mels, lengths, max_together, device)
    return WindowVocoder(generator, mel, chunk_frames, context, lengths, device)
