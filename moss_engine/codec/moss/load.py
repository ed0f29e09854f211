"""The published codec from its folder, with its voices and the vocoder that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from moss_engine.api.errors import (
    CheckpointError,
    MelSpecError,
    MissingPackageError,
    ParameterError,
)
from moss_engine.codec.base import MOSS_MEL, MelSpec
from moss_engine.codec.moss.codec import MossCodec, RunChunks
from moss_engine.codec.moss.flow.config import FlowConfig
from moss_engine.codec.moss.flow.cuda import CudaFlow
from moss_engine.codec.moss.flow.decoder import flow_voice, run_chunks, whole_mel
from moss_engine.codec.moss.flow.weights import FlowWeights
from moss_engine.codec.moss.layout import CHUNK_CODES, load_flow, load_hift, read_configs
from moss_engine.codec.moss.voice import Voice, list_voices, load_voice
from moss_engine.codec.moss.whisper.config import WhisperVqConfig, codec_digest
from moss_engine.codec.moss.whisper.vq import load_whisper_vq
from moss_engine.codec.vocoder.hift.cuda import CudaHift
from moss_engine.codec.vocoder.hift.generator import source_noise, whole_wave
from moss_engine.codec.vocoder.hift.stream import Hift
from moss_engine.codec.vocoder.hift.weights import HiftWeights
from moss_engine.codec.vocoder.make import make_steady_vocoder
from moss_engine.codec.vocoder.mel_vocoder import HiftVocoder, MelVocoder, StreamedMelVocoder
from moss_engine.codec.vocoder.store import vocoder_mel

VOICES_FOLDER = "voices"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

CUDA_STREAMS = 16
"""Replies that a GPU speaks in one run."""


def codec_dtype(name: str, device: torch.device) -> torch.dtype:
    """Number format of encoder and flow: `auto` is float16 on a GPU, else float32."""
    if name == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    return DTYPES[name]


def load_moss_codec(
    folder: Path,
    device: torch.device | str = "cpu",
    *,
    dtype: str = "auto",
    vocoder: str = "hift",
    vocoder_folder: Path | None = None,
    voices: Path | None = None,
    max_together: int = CUDA_STREAMS,
) -> MossCodec:
    """The codec of a published folder; `vocoder` is "hift", or another from `vocoder_folder`.

    On a GPU at most `max_together` replies are spoken at a time. Small files are read first. Raises
    CheckpointError for a missing or damaged file and where there is no voice, MelSpecError for a
    BigVGAN of another mel, MissingPackageError where a package is absent.
    """
    device = torch.device(device)
    if device.type == "cuda" and find_spec("triton") is None:
        raise MissingPackageError(
            "The MOSS-Speech codec on a GPU needs triton; install it with: pip install triton"
        )
    torch_dtype = codec_dtype(dtype, device)
    flow_config, _ = read_configs(folder)
    if vocoder != "hift":
        assert vocoder_folder is not None, "another vocoder than HiFT has a folder"
        check_vocoder_mel(folder, vocoder_folder)
    encoder_config = WhisperVqConfig.from_folder(folder)
    spoken = load_voices(folder, voices)
    if flow_config.vocab_size < encoder_config.num_codes:
        raise CheckpointError(
            f"The flow in {folder} knows {flow_config.vocab_size} codes, the encoder makes "
            f"{encoder_config.num_codes}; fetch the codec again."
        )
    flow = load_flow(folder, device, torch_dtype)
    speaker = _load_vocoder(folder, vocoder, vocoder_folder, flow, device, max_together)
    encoder = load_whisper_vq(folder, device, torch_dtype)
    if device.type == "cuda":
        encoder.capture()
    run, together = _runner(flow, device, max_together)
    codec = MossCodec(
        encoder,
        flow,
        speaker,
        spoken,
        num_codes=encoder_config.num_codes,
        run=run,
        max_together=together,
    )
    codec.open_stream()  # the default voice's prompt, before anybody waits for it
    return codec


def speak_whole(
    folder: Path, codes: Sequence[int], voice: Voice, device: torch.device, *, dtype: str = "auto"
) -> np.ndarray:
    """Codes -> samples float32 [codes * 1920] in one run, with HiFT and FLOW_WHOLE.

    Time and memory grow with the square of the length. Raises CheckpointError and ParameterError.
    """
    num_codes = WhisperVqConfig.from_folder(folder).num_codes
    if not codes or not 0 <= min(codes) <= max(codes) < num_codes:
        raise ParameterError(f"A reply has one or more codes, from 0 to {num_codes - 1}.")
    flow, hift = (
        load_flow(folder, device, codec_dtype(dtype, device), whole=True),
        load_hift(folder, device),
    )
    mel = whole_mel(flow, flow_voice(flow, voice.codes, voice.mel, voice.speaker), codes, None)
    return whole_wave(hift, mel, source_noise(hift.config).to(device)).cpu().numpy()


def load_voices(folder: Path, voices: Path | None) -> Sequence[Voice]:
    """Every installed voice; raises CheckpointError without one, for another codec's, and for codes
    that it has not."""
    place = voices or folder / VOICES_FOLDER
    names = list_voices(place)
    if not names:
        raise CheckpointError(
            f"{place} holds no voice, and this codec speaks in sampled voices only; make one with: "
            f"python -m scripts.voice make sample.wav NAME --codec {folder}"
        )
    digest, num_codes = codec_digest(folder), WhisperVqConfig.from_folder(folder).num_codes
    loaded = [load_voice(place / name, digest) for name in names]
    for voice in loaded:
        if max(voice.codes) >= num_codes:
            raise CheckpointError(
                f"The voice {voice.name!r} in {place} holds code {max(voice.codes)}, but the codec "
                f"has {num_codes}; make it again with python -m scripts.voice make."
            )
    return loaded


def check_vocoder_mel(folder: Path, vocoder_folder: Path) -> MelSpec:
    """The mel of a vocoder folder; MelSpecError, with both in full, unless it is the codec's."""
    found = vocoder_mel(vocoder_folder)
    if found != MOSS_MEL:
        raise MelSpecError(
            f"The vocoder in {vocoder_folder} was trained on {found}, the codec in {folder} makes "
            f"{MOSS_MEL}; choose a vocoder of that mel with --vocoder-folder, or --vocoder hift."
        )
    return found


def _load_vocoder(
    folder: Path,
    vocoder: str,
    vocoder_folder: Path | None,
    flow: FlowWeights,
    device: torch.device,
    max_together: int,
) -> MelVocoder:
    if vocoder == "hift":
        return hift_vocoder(load_hift(folder, device), flow.config, max_together)
    frames = CHUNK_CODES * flow.config.ratio
    assert vocoder_folder is not None
    return StreamedMelVocoder(make_steady_vocoder(vocoder_folder, device, frames, max_together))


def hift_vocoder(weights: HiftWeights, flow: FlowConfig, max_together: int) -> HiftVocoder:
    """HiFT for the chunks of a flow; on a GPU it runs up to `max_together` replies at a time."""
    if weights.window.device.type != "cuda":
        return HiftVocoder(Hift(weights))
    last = [flow.ratio * codes for codes in range(flow.look_ahead, flow.look_ahead + CHUNK_CODES)]
    return HiftVocoder(
        Hift(weights, CudaHift(weights, CHUNK_CODES * flow.ratio, last, max_together))
    )


def _runner(flow: FlowWeights, device: torch.device, max_together: int) -> tuple[RunChunks, int]:
    """What runs chunks on this device, and how many streams at a time."""
    if device.type != "cuda":
        return run_chunks, 1
    return CudaFlow(flow, CHUNK_CODES, max_together), max_together
