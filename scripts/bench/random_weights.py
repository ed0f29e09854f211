"""Random weights of the published sizes, since speed and memory do not depend on their values: the
MOSS-Speech codec, a stand-in for it with a BigVGAN, and a service of either.

The stand-in turns 12.5 codes a second into sound as the published codec does, but in two stages of
this program's own: the small voice's decoder (codes -> log-mel) with 16,384 codes and 4 frames a
code, and a BigVGAN of 116 M parameters that makes 480 samples of each frame at 158 GFLOP a second
of audio (the published 24 kHz one: 112 M, 169 GFLOP). It costs less than the published codec.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.modes import Mode
from moss_engine.api.request import ChannelSampling, Message, Request, Sampling, Text
from moss_engine.api.tokens import Row, SpecialIds
from moss_engine.build import describe
from moss_engine.codec.base import SpeechCodec, samples_per_code
from moss_engine.codec.moss.codec import HISTORY_CODES, MossCodec
from moss_engine.codec.moss.flow.weights import FlowConfig, flow_shapes, pack_flow
from moss_engine.codec.moss.load import hift_vocoder, runner
from moss_engine.codec.moss.voice import SPEAKER_DIM, Voice
from moss_engine.codec.moss.whisper import (
    WhisperVq,
    WhisperVqConfig,
    build_whisper_vq,
    expected_tensors,
)
from moss_engine.codec.nano import FsqConfig, NanoCodec, NanoFsq
from moss_engine.codec.vocoder.bigvgan import build_generator
from moss_engine.codec.vocoder.cuda import FusedGenerator
from moss_engine.codec.vocoder.hift.weights import HiftConfig, hift_shapes, pack_hift
from moss_engine.codec.vocoder.make import window_vocoder
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.engine.sequence import Segment
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.runtime.base import Runtime
from moss_engine.runtime.make import resolve_device
from moss_engine.service.local import LocalService
from moss_engine.service.recordings import Transcriber
from moss_engine.text.modes import PUBLISHED_MODES
from scripts.bench.gpu import make_runtime
from scripts.bench.listeners import MakeRequest

CONFIGS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TINY_CONFIG: dict[str, Any] = CONFIGS["tiny encoder"]
PUBLISHED_CONFIG = TINY_CONFIG | CONFIGS["published encoder"]
STAND_IN_VOCODER: dict[str, Any] = CONFIGS["stand-in vocoder"]
STAND_IN_FSQ = FsqConfig(
    frames_per_code=4, levels=(8, 8, 16, 16), encoder_dim=16, encoder_blocks=(1, 1), decoder_dim=512
)
CONTEXT_FRAMES = 16  # on either side of a chunk; 28 can reach it, the outer ones hardly
SAMPLED = ChannelSampling(0.7, 20, 0.95, 1.1)
CODECS = {
    "moss": "the published one: flow and HiFT, float16",
    "bigvgan": "a stand-in: the small voice's decoder and a BigVGAN of 116 M parameters, float16",
}
NORMS = tuple(
    f"{name}.weight" for name in "norm1 norm3 norm norm_mha norm_ff .block.2 embed.out.1".split()
)


def random_flow(config: FlowConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names, the same on every machine; what they turn codes into
    has the range of a log-mel."""
    tensors = {name: _random(name, shape, seed) for name, shape in flow_shapes(config).items()}
    for name, tensor in tensors.items():
        if name.endswith(NORMS):
            tensor += 1
    return tensors


def random_hift(config: HiftConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names, weight norm folded; the pitch is that of a voice."""
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


def random_encoder(config: WhisperVqConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors by the published names; the same on every machine."""
    return {n: _random_of_encoder(n, shape, seed) for n, shape in expected_tensors(config).items()}


def _random_of_encoder(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    values = _normal(name, shape, seed)
    if "norm" in name:
        values = 0.1 * values + name.endswith("weight")
    elif len(shape) == 1:
        values = 0.1 * values
    elif name.endswith(("codebook.weight", "embed_positions.weight")):
        values = 0.7 * values
    else:
        values = values / np.prod(shape[1:]) ** 0.5
    return torch.from_numpy(values.astype(np.float32))


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    scale = 0.1 if len(shape) == 1 else math.prod(shape[1:]) ** -0.5
    if name == "input_embedding.weight":
        scale = 1.0
    return torch.from_numpy((scale * _normal(name, shape, seed)).astype(np.float32))


def _normal(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(shape)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the codec; the defaults are those of the published one."""

    flow: FlowConfig = FlowConfig()
    hift: HiftConfig = HiftConfig()
    encoder: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(PUBLISHED_CONFIG))
    voice_codes: int = 60
    history_codes: int = HISTORY_CODES

    @property
    def num_codes(self) -> int:
        return int(self.encoder["quantize_vocab_size"])


class Parts:
    """Random weights, made once, from which codecs in any number format are joined."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.flow, self.hift = random_flow(sizes.flow), random_hift(sizes.hift)
        random = np.random.RandomState(0)
        codes = random.randint(0, sizes.num_codes, sizes.voice_codes).tolist()
        mel = random.standard_normal((80, 4 * sizes.voice_codes)).astype(np.float32)
        speaker = random.standard_normal(SPEAKER_DIM).astype(np.float32)
        self.voice = Voice(
            "random", tuple(codes), torch.from_numpy(mel) * 2 - 5, torch.from_numpy(speaker)
        )

    def codec(self, dtype: torch.dtype, max_together: int) -> MossCodec:
        """A codec of these weights, joined as `load_moss_codec` does."""
        weights = pack_flow(self.flow, self.sizes.flow, self.device, dtype)
        vocoder = hift_vocoder(
            pack_hift(self.hift, self.sizes.hift, self.device), self.sizes.flow, max_together
        )
        run, _ = runner(weights, self.device, max_together)
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
        return build_whisper_vq(config, random_encoder(config), self.device, dtype)


def stand_in_codec(device: torch.device, max_together: int = 16) -> NanoCodec:
    """The stand-in that this module's docstring describes, on a GPU with its graphs captured."""
    torch.manual_seed(0)
    with torch.device(device):
        fsq = NanoFsq(STAND_IN_FSQ).eval().requires_grad_(False)
        generator = build_generator(STAND_IN_VOCODER)
        generator = generator.eval().requires_grad_(False)
    if device.type == "cuda":
        generator = FusedGenerator(generator)
    together = max_together if device.type == "cuda" else 1
    chunks = tuple(codes * fsq.config.frames_per_code for codes in (5, 10, 20))
    mel = fsq.config.mel
    vocoder = window_vocoder(generator, mel, chunks, CONTEXT_FRAMES, device, together)
    return NanoCodec(fsq, vocoder, device, max_together=together)


def make_codec(name: str, together: int, device: torch.device) -> SpeechCodec:
    """One of CODECS, which makes sound for up to `together` replies in a run."""
    if name == "bigvgan":
        return stand_in_codec(device, together)
    codec = Parts(Sizes(), device).codec(torch.float16, together)
    codec.open_stream()  # the voice's prompt
    return codec


class FixedSize:
    """A processor whose prompts are `prompt_rows` random rows and whose replies have `num_codes`
    codes. It is its own text decoder, which says nothing."""

    def __init__(self, ids: SpecialIds, prompt_rows: int, num_codes: int):
        self.ids = ids
        self._size = prompt_rows, num_codes

    def speaks(self, request: Request) -> bool:
        return True

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        num_rows, num_codes = self._size
        chance = random.Random(request.request_id)
        codes = (
            Row(self.ids.modality_pad, chance.randrange(self.ids.num_codes))
            for _ in range(num_rows - 1)
        )
        return (Segment((*codes, Row(self.ids.sosp, self.ids.audio_pad)), num_codes),)

    def open_text_decoder(self) -> FixedSize:
        return self

    def push(self, text_id: int) -> str:
        return ""

    def end_segment(self, goes_on: bool) -> str:
        return ""


def random_service(
    model: ModelConfig,
    runtime: Runtime,
    codec: SpeechCodec,
    prompt_rows: int,
    num_codes: int,
    modes: tuple[Mode, ...] = PUBLISHED_MODES.modes,
    transcriber: Transcriber | None = None,
) -> LocalService:
    """A service of a runtime and codec, not started; prompts and replies have a fixed length."""
    limits = runtime.limits
    config = EngineConfig(
        max_sessions=limits.max_batch,
        max_waiting=4 * limits.max_batch,
        lease_s=60.0,
        kv_rows=limits.num_blocks * limits.block_size,
        max_step_rows=limits.max_step_rows,
    )
    processor = FixedSize(model.special, prompt_rows, num_codes)
    engine = Engine(runtime, processor, config, samples_per_code=samples_per_code(codec))
    info = describe(engine, codec, config, modes, fixed_sampling(num_codes))
    info = replace(info, recogniser=transcriber.name if transcriber else None)
    one_gpu = runtime.info.device != "CPU"
    return LocalService(engine, codec, config, info, None, transcriber, one_gpu=one_gpu)


def published_service(
    places: int, kv_rows: int, prompt_rows: int, num_codes: int, **settings: Any
) -> LocalService:
    """The published size in bfloat16 on the GPU, with settings of `random_service`; raises
    ConfigError without a GPU, or where its memory is too small."""
    device, step_rows = resolve_device("cuda"), max(512, places)
    runtime = make_runtime(PUBLISHED, places, kv_rows, "bfloat16", step_rows, device=device)
    codec = make_codec("moss", 16, device)
    return random_service(PUBLISHED, runtime, codec, prompt_rows, num_codes, **settings)


def fixed_sampling(num_codes: int, seed: int = 0) -> Sampling:
    """Sampling of replies that no end marker cuts short."""
    return Sampling(SAMPLED, SAMPLED, max_rows=num_codes, min_rows=num_codes + 2, seed=seed)


def fixed_requests(num_codes: int, level: int) -> MakeRequest:
    def make(listener: int, number: int) -> Request:
        name, sampling = f"{level}-{listener}", fixed_sampling(num_codes, number)
        messages = (Message("user", Text("speak")),)
        return Request(f"{name}-{number}", name, messages, "speech", sampling)

    return make
