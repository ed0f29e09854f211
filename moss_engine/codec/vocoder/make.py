"""A vocoder folder -> something that streams it on a device."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MelSpec
from moss_engine.codec.store import CONFIG_NAME, read_config
from moss_engine.codec.tally import Cost, cost_of
from moss_engine.codec.vocoder.bigvgan import mel_spec_of
from moss_engine.codec.vocoder.cached import CachedVocoder, Network
from moss_engine.codec.vocoder.cuda import CudaVocoder
from moss_engine.codec.vocoder.mel_vocoder import StreamVocoder
from moss_engine.codec.vocoder.store import BIGVGAN_TYPE, load_vocoder, vocoder_mel
from moss_engine.codec.vocoder.stream import WindowPlan, WindowVocoder, context_frames

CONTEXT_SHARE = 0.8
"""Context of a plain BigVGAN's window as a share of its nominal support. The outermost frames act
through products of filter edges only: on a trained one, 0.8 of the support differs from all of it
by rounding noise (-127 dB), 0.6 of it by -44 dB."""
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
    context_share: float = CONTEXT_SHARE,
) -> StreamVocoder:
    """The folder's vocoder, its sound coming in chunks of `chunk_frames`, the last one repeated.

    On a GPU at most `max_together` replies at a time, and a plain BigVGAN runs in half precision as
    a CUDA graph; the others run operation by operation in float32 there.
    """
    if read_config(folder)["type"] == BIGVGAN_TYPE:
        generator, config = load_vocoder(folder, device)
        context = context_frames(config, context_share)
        spec = mel_spec_of(config)
        return window_vocoder(generator, spec, chunk_frames, context, device, max_together)
    mel = vocoder_mel(folder)
    network, config = load_vocoder(folder, device)
    return CachedVocoder(cast("Network", network), mel, config["gain"], chunk_frames, device)


def make_steady_vocoder(
    folder: Path, device: torch.device, frames: int, max_together: int
) -> StreamVocoder:
    """As `make_vocoder` for mel that comes `frames` at a time: sound as soon as a frame is
    final."""
    if read_config(folder)["type"] != BIGVGAN_TYPE:
        return make_vocoder(folder, device, (1,), max_together)
    generator, config = load_vocoder(folder, device)
    context, spec = context_frames(config, CONTEXT_SHARE), mel_spec_of(config)
    lengths = (2 * context + frames,)
    plan = WindowPlan((frames - context % frames, frames), context, context, lengths)
    if device.type != "cuda":
        return WindowVocoder(generator, spec, plan, device, generator_cost(generator, spec))
    run = CudaVocoder(generator, spec.num_mels, lengths, max_together, device)
    return WindowVocoder(run, spec, plan, device, run.cost)


def generator_cost(generator: nn.Module, mel: MelSpec) -> Cost:
    """What a BigVGAN's run costs, by that over a frame or two."""
    weights = list(generator.parameters())

    def run(frames: int) -> None:
        generator(weights[0].new_zeros(1, mel.num_mels, frames))

    return cost_of(run, 1, 2, *weights)


def window_vocoder(
    generator: nn.Module,
    mel: MelSpec,
    chunk_frames: tuple[int, ...],
    context: int,
    device: torch.device,
    max_together: int,
) -> WindowVocoder:
    """A plain BigVGAN that is ready to run, with `context` frames on either side of a chunk."""
    if device.type != "cuda":
        plan = WindowPlan(chunk_frames, context, context)
        return WindowVocoder(generator, mel, plan, device, generator_cost(generator, mel))
    lengths = tuple(sorted({chunk_frames[0] + 2 * context, max(chunk_frames) + 2 * context}))
    run = CudaVocoder(generator, mel.num_mels, lengths, max_together, device)
    plan = WindowPlan(chunk_frames, context, context, lengths)
    return WindowVocoder(run, mel, plan, device, run.cost)
