"""The published codec from its folder, with its voices and the vocoder that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from moss_engine.api.errors import CheckpointError, MissingPackageError
from moss_engine.codec.base import MOSS_MEL, MelVocoder
from moss_engine.codec.files import check_state, read_tensors
from moss_engine.codec.moss.codec import CHUNK_CODES, MossCodec, RunChunks
from moss_engine.codec.moss.flow.network import run_chunks
from moss_engine.codec.moss.flow.weights import (
    FlowConfig,
    FlowWeights,
    flow_shapes,
    pack_flow,
    read_flow_config,
)
from moss_engine.codec.moss.speaker import CAMPPLUS_NAME, SpeakerEncoder
from moss_engine.codec.moss.voice import Voice, advice, list_voices, load_voice, make_voice
from moss_engine.codec.moss.whisper import WhisperVqConfig, codec_digest, load_whisper_vq
from moss_engine.codec.vocoder.hift.cuda import CudaHift
from moss_engine.codec.vocoder.hift.generator import Hift
from moss_engine.codec.vocoder.hift.weights import (
    HiftConfig,
    HiftWeights,
    fold_weight_norm,
    hift_shapes,
    pack_hift,
    read_hift_config,
)
from moss_engine.codec.vocoder.make import make_vocoder, vocoder_mel

FLOW_FOLDER = "flow"
CONFIG = f"{FLOW_FOLDER}/config.yaml"
FLOW_CHUNK = f"{FLOW_FOLDER}/flow-chunk-5.pt"
"""Trained with chunks of CHUNK_CODES."""
HIFT = f"{FLOW_FOLDER}/hift.pt"


def is_moss_codec(folder: Path) -> bool:
    """Whether a folder is laid out as the published codec is."""
    return (folder / FLOW_FOLDER).is_dir()


def load_flow(folder: Path, device: torch.device, dtype: torch.dtype) -> FlowWeights:
    """The flow for chunks of CHUNK_CODES; raises CheckpointError."""
    config, path = read_flow_config(folder / CONFIG), folder / FLOW_CHUNK
    tensors = read_tensors(path)
    check_state(tensors, flow_shapes(config), path)
    return pack_flow(tensors, config, device, dtype)


def load_hift(folder: Path, device: torch.device) -> HiftWeights:
    """HiFT in float32; CheckpointError names what is missing or does not fit."""
    config, path = read_hift_config(folder / CONFIG), folder / HIFT
    tensors = fold_weight_norm(read_tensors(path))
    check_state(tensors, hift_shapes(config), path)
    return pack_hift(tensors, config, device)


def read_configs(folder: Path) -> tuple[FlowConfig, HiftConfig]:
    """Settings of flow and HiFT; raises CheckpointError for another codec's rates or mel."""
    path = folder / CONFIG
    flow, hift = read_flow_config(path), read_hift_config(path)
    frame_rate_hz = MOSS_MEL.sample_rate_hz / MOSS_MEL.hop_size
    found = {
        "mel bands": (flow.num_mels, MOSS_MEL.num_mels),
        "mel bands for HiFT": (hift.num_mels, MOSS_MEL.num_mels),
        "Hz": (hift.sample_rate_hz, MOSS_MEL.sample_rate_hz),
        "samples a mel frame": (hift.samples_per_frame, MOSS_MEL.hop_size),
        "codes a second": (flow.code_rate_hz, frame_rate_hz / flow.ratio),
    }
    wrong = [
        f"{value:g} {what} instead of {wanted:g}"
        for what, (value, wanted) in found.items()
        if value != wanted
    ]
    if wrong:
        raise CheckpointError(
            f"{path} describes another codec ({'; '.join(wrong)}); "
            "use the published MOSS-Speech codec."
        )
    return flow, hift


VOICES_FOLDER = "voices"

CUDA_STREAMS, MANY_CUDA_STREAMS = 16, 64
"""Replies that a GPU speaks in one run."""


def most_together(device: torch.device, dtype: torch.dtype, *, with_hift: bool) -> int:
    """Replies of one run: many with HiFT in float16 on a GPU with shared memory for the flow's plan
    for many rows."""
    if device.type != "cuda" or dtype != torch.float16 or not with_hift:
        return CUDA_STREAMS
    from moss_engine.codec.moss.flow.cuda import SHARED_FOR_MANY

    shared_bytes = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return MANY_CUDA_STREAMS if shared_bytes >= SHARED_FOR_MANY else CUDA_STREAMS


def load_moss_codec(
    folder: Path,
    device: torch.device,
    *,
    dtype: str = "auto",
    vocoder_folder: Path | None = None,
    voices: Path | None = None,
    max_together: int | None = None,
) -> MossCodec:
    """The codec of a published folder, with HiFT or the vocoder of `vocoder_folder`; encoder and
    flow have the number format `dtype`, "auto" being float16 on a GPU and else float32.

    On a GPU at most `max_together` replies are spoken at a time, by default `most_together`. Small
    files are read first. Raises CheckpointError for a missing or damaged file and where there is no
    voice, MelSpecError for a vocoder of another mel, MissingPackageError where a package is absent.
    """
    on_gpu = device.type == "cuda"
    if on_gpu and find_spec("triton") is None:
        raise MissingPackageError(
            "The MOSS-Speech codec on a GPU needs triton; install it with: pip install triton"
        )
    usual = "float16" if on_gpu else "float32"
    torch_dtype: torch.dtype = getattr(torch, usual if dtype == "auto" else dtype)
    max_together = max_together or most_together(
        device, torch_dtype, with_hift=vocoder_folder is None
    )
    flow_config, _ = read_configs(folder)
    if vocoder_folder is not None:
        mel = vocoder_mel(vocoder_folder)
        MOSS_MEL.check_equal(mel, ours=str(folder), theirs=str(vocoder_folder))
    encoder_config = WhisperVqConfig.from_folder(folder)
    spoken = load_voices(folder, voices)
    if flow_config.vocab_size < encoder_config.num_codes:
        raise CheckpointError(
            f"The flow in {folder} knows {flow_config.vocab_size} codes, the encoder makes "
            f"{encoder_config.num_codes}; fetch the codec again."
        )
    flow = load_flow(folder, device, torch_dtype)
    if vocoder_folder is None:
        vocoder: MelVocoder = hift_vocoder(load_hift(folder, device), flow.config, max_together)
    else:
        chunk = (CHUNK_CODES * flow.config.ratio,)
        vocoder = make_vocoder(vocoder_folder, device, chunk, max_together, steady=True)
    encoder = load_whisper_vq(folder, device, torch_dtype)
    if on_gpu:
        encoder.capture()
    run, together = runner(flow, device, max_together)
    codec = MossCodec(
        encoder,
        flow,
        vocoder,
        spoken,
        num_codes=encoder_config.num_codes,
        run=run,
        max_together=together,
    )
    codec.open_stream()  # the default voice's prompt, before anybody waits for it
    return codec


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


def hift_vocoder(weights: HiftWeights, flow: FlowConfig, max_together: int) -> Hift:
    """HiFT for the chunks of a flow; on a GPU it runs up to `max_together` replies at a time."""
    if weights.window.device.type != "cuda":
        return Hift(weights)
    last = [flow.ratio * codes for codes in range(flow.look_ahead, flow.look_ahead + CHUNK_CODES)]
    return Hift(weights, CudaHift(weights, CHUNK_CODES * flow.ratio, last, max_together))


def runner(flow: FlowWeights, device: torch.device, max_together: int) -> tuple[RunChunks, int]:
    """What runs chunks on this device, and how many streams at a time."""
    if device.type != "cuda":
        return run_chunks, 1
    from moss_engine.codec.moss.flow.cuda import CudaFlow

    return CudaFlow(flow, CHUNK_CODES, max_together), max_together


class MossVoiceCloner:
    """See `VoiceCloner`; raises CheckpointError and MissingPackageError where the speaker network
    of the codec's folder cannot run."""

    def __init__(self, codec: MossCodec, folder: Path):
        self._codec, self._speaker = codec, SpeakerEncoder(folder / CAMPPLUS_NAME)

    def add(
        self, name: str, wave: np.ndarray, sample_rate_hz: int, codes: tuple[int, ...]
    ) -> str | None:
        """See `VoiceCloner`."""
        voice = make_voice(name, wave, sample_rate_hz, codes, self._speaker)
        self._codec.add_voice(voice)
        return advice(len(wave) / sample_rate_hz)

    def remove(self, name: str) -> None:
        """See `VoiceCloner`."""
        self._codec.remove_voice(name)
