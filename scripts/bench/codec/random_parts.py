"""The MOSS-Speech codec with random weights, at its published size or another."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.moss.codec import HISTORY_CODES, MossCodec
from moss_engine.codec.moss.flow.config import FlowConfig
from moss_engine.codec.moss.flow.cuda import CudaFlow
from moss_engine.codec.moss.flow.decoder import run_chunks
from moss_engine.codec.moss.flow.weights import pack_flow
from moss_engine.codec.moss.layout import CHUNK_CODES
from moss_engine.codec.moss.load import hift_vocoder
from moss_engine.codec.moss.voice import SPEAKER_DIM, Voice
from moss_engine.codec.moss.whisper.config import WhisperVqConfig, expected_tensors
from moss_engine.codec.moss.whisper.vq import WhisperVq, build_whisper_vq
from moss_engine.codec.vocoder.hift.config import HiftConfig
from moss_engine.codec.vocoder.hift.weights import pack_hift
from scripts.bench.common.random_codec import PUBLISHED_CONFIG, random_flow, random_hift


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
