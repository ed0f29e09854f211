"""Many listeners of the full-size network with random weights, through the whole service. Used by
`scripts.bench`.

The codec turns 12.5 codes a second into sound as the published one does, but in two stages of this
program's own: the small voice's decoder (codes -> log-mel) with 16,384 codes and 4 frames a code,
and a BigVGAN of 116 M parameters that makes 480 samples of each frame at 158 GFLOP a second of
audio (the published 24 kHz one: 112 M, 169 GFLOP).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from moss_engine.api.request import ChannelSampling, Message, Request, Sampling, Text
from moss_engine.codec.base import MOSS_MEL, SpeechCodec, samples_per_code
from moss_engine.codec.nano.codec import NanoCodec, join
from moss_engine.codec.nano.fsq import FsqConfig, NanoFsq
from moss_engine.codec.vocoder.bigvgan import build_generator
from moss_engine.codec.vocoder.cuda import FusedGenerator
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Runtime
from moss_engine.service.core import ServiceCore
from scripts.bench.common.load import (
    FixedSize,
    Load,
    MakeRequest,
    load_table,
    run_arrivals,
    run_load,
)

VOCODER: dict[str, Any] = {
    "resblock": "1",
    "upsample_rates": [5, 4, 4, 3, 2],
    "upsample_kernel_sizes": [11, 8, 8, 7, 4],
    "upsample_initial_channel": 1536,
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
    "activation": "snakebeta",
    "snake_logscale": True,
    "num_mels": MOSS_MEL.num_mels,
    "n_fft": MOSS_MEL.n_fft,
    "hop_size": MOSS_MEL.hop_size,
    "win_size": MOSS_MEL.win_size,
    "sampling_rate": MOSS_MEL.sample_rate_hz,
    "fmin": 0,
    "fmax": MOSS_MEL.fmax_hz,
}
FSQ = FsqConfig(
    mel=MOSS_MEL,
    frames_per_code=4,
    levels=(8, 8, 16, 16),
    mel_mean=-5.0,
    mel_scale=2.0,
    kernel_size=7,
    mlp_ratio=3,
    encoder_dim=16,
    encoder_blocks=(1, 1),
    decoder_dim=512,
    decoder_blocks=(4, 4),
)
# on either side of a chunk; 28 can reach it, the outer ones hardly (see
# moss_engine.codec.nano.codec)
CONTEXT_FRAMES = 16
CHUNK_CODES = (5, 10, 20)
SAMPLED = ChannelSampling(0.7, 20, 0.95, 1.1)


@dataclass(frozen=True)
class Level:
    """One level of load: `listeners` in a closed loop, or `arrivals_per_s` in an open one.

    Listeners ask again when they have heard a reply out, or, without `hears_out`, as soon as it was
    made.
    """

    replies: int
    listeners: int = 0
    arrivals_per_s: float = 0.0
    hears_out: bool = True


@dataclass(frozen=True)
class StreamSetup:
    """What the figures of many streams depend on."""

    prompt_rows: int
    codes: int
    chunk_codes: tuple[int, ...] = CHUNK_CODES
    max_together: int = 16


class Silent:
    """A text decoder that says nothing."""

    def push(self, text_id: int) -> str:
        return ""

    def end_segment(self) -> str:
        return ""


def random_codec(
    setup: StreamSetup, device: torch.device, vocoder: dict[str, Any] | None = None
) -> NanoCodec:
    """The codec of this module's docstring, with random weights and everything captured."""
    torch.manual_seed(0)
    with torch.device(device):
        fsq = NanoFsq(FSQ).eval().requires_grad_(False)
        generator = (
            build_generator(vocoder or VOCODER, weight_norm=False).eval().requires_grad_(False)
        )
    if device.type == "cuda":
        generator = FusedGenerator(generator)
    return join(
        fsq, generator.to(device), CONTEXT_FRAMES, setup.chunk_codes, device, setup.max_together
    )


def random_service(
    model: ModelConfig, runtime: Runtime, codec: SpeechCodec, setup: StreamSetup
) -> ServiceCore:
    """A service of a given runtime and codec; prompts and replies have the sizes of `setup`."""
    limits = runtime.limits
    config = EngineConfig(
        max_sessions=limits.max_batch,
        max_waiting=4 * limits.max_batch,
        lease_s=60.0,
        kv_rows=limits.num_blocks * limits.block_size,
        max_step_rows=limits.max_step_rows,
    )
    processor = FixedSize(model.special, Silent, setup.prompt_rows, setup.codes)
    engine = Engine(runtime, processor, config, samples_per_code=samples_per_code(codec))
    return ServiceCore(engine, codec, config, one_gpu=runtime.info.device != "CPU")


def requests(setup: StreamSetup, level: int) -> MakeRequest:
    """Requests that the end marker cannot cut short."""

    def make(listener: int, number: int) -> Request:
        sampling = Sampling(
            SAMPLED, SAMPLED, max_rows=setup.codes, min_rows=setup.codes + 2, seed=number
        )
        name = f"{level}-{listener}"
        return Request(
            f"{name}-{number}", name, (Message("user", Text("speak")),), "speech", sampling
        )

    return make


def measure_levels(
    service: ServiceCore, setup: StreamSetup, levels: Sequence[Level], reply_s: float
) -> Iterator[Load]:
    """Each level in turn; listeners of a closed loop start spread over `reply_s`."""
    service.start()
    try:
        asyncio.run(
            run_load(service.stream, requests(setup, -1), 1, 1)
        )  # compiles what is compiled at first use
        for index, level in enumerate(levels):
            make = requests(setup, index)
            if level.listeners:
                load = run_load(
                    service.stream,
                    make,
                    level.listeners,
                    level.replies,
                    to_the_end=level.hears_out,
                    ramp_s=reply_s if level.hears_out else 0.0,
                )
            else:
                load = run_arrivals(service.stream, make, level.arrivals_per_s, level.replies)
            yield asyncio.run(load)
    finally:
        service.close()


def measure_streams(
    model: ModelConfig,
    runtime: Runtime,
    setup: StreamSetup,
    levels: Sequence[Level],
    codec: NanoCodec,
    device: torch.device,
) -> Iterator[dict[str, Any]]:
    """What was measured so far, after each of the `levels`, whose tables are printed. Closes the
    runtime."""
    report: dict[str, Any] = {
        "setup": dataclasses.asdict(setup),
        "context_frames": CONTEXT_FRAMES,
        "load": [],
    }
    service = random_service(model, runtime, codec, setup)
    reply_s = float(setup.codes / codec.code_rate_hz)
    for load in measure_levels(service, setup, levels, reply_s):
        print(load_table(load), flush=True)
        report["load"].append(dataclasses.asdict(load))
        if device.type == "cuda":
            report["memory_gib"] = torch.cuda.max_memory_reserved(device) / 2**30
        yield report
