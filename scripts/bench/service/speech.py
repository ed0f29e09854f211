"""How long sampling, the vocoder and a whole spoken reply take on a GPU. Used by
`scripts.bench`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from moss_engine.api.request import ChannelSampling, Sampling
from moss_engine.api.tokens import Modality, Row
from moss_engine.codec.vocoder.bigvgan import build_generator
from moss_engine.codec.vocoder.cuda import FusedGenerator
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import (
    BatchSampling,
    Logits,
    ScheduledBatch,
    ScheduledSequence,
    SequenceSampling,
)
from moss_engine.runtime.cuda.runtime import CudaRuntime
from moss_engine.runtime.cuda.sampler import KernelSampler
from moss_engine.runtime.sampler import Sampler, TorchSampler
from scripts.bench.common.timing import (
    REPEATS,
    Ceilings,
    Figure,
    device_times_ms,
    figure,
    wall_times_ms,
)
from scripts.bench.lm.baselines import captured

CODES_PER_S = 12.5
VOCODER_24KHZ = {
    "resblock": "1",
    "upsample_rates": [4, 4, 2, 2, 2, 2],
    "upsample_kernel_sizes": [8, 8, 4, 4, 4, 4],
    "upsample_initial_channel": 1536,
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
    "activation": "snakebeta",
    "snake_logscale": True,
    "num_mels": 100,
    "n_fft": 1024,
    "hop_size": 256,
    "win_size": 1024,
    "sampling_rate": 24000,
    "fmin": 0,
    "fmax": None,
}
CHUNK_CODES, CHUNK_FRAMES, LEFT_FRAMES, RIGHT_FRAMES = (
    5,
    38,
    20,
    20,
)  # 5 codes are 37.5 frames of this mel
VOCODER_FLOP_PER_FRAME = 1.834e9


class Vocoder:
    """BigVGAN of 112 M parameters: one CUDA graph for windows of a fixed number of frames."""

    def __init__(self, batch: int, frames: int, dtype: torch.dtype, device: torch.device):
        generator = build_generator(VOCODER_24KHZ, weight_norm=False).eval().requires_grad_(False)
        self.network = network = FusedGenerator(generator).to(
            device, dtype
        )  # the graph does not hold its memory
        self.mel = torch.randn(batch, VOCODER_24KHZ["num_mels"], frames, device=device, dtype=dtype)
        waves: list[torch.Tensor] = []
        with (
            torch.inference_mode(),
            torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=4),
        ):
            self.replay = captured(lambda: waves.append(network(self.mel)))
        self.wave = waves[-1]  # what the graph writes


def measure_vocoder(ceilings: Ceilings | None, device: torch.device) -> Iterator[Figure]:
    frames = LEFT_FRAMES + CHUNK_FRAMES + RIGHT_FRAMES
    for batch in (1, 16):
        vocoder = Vocoder(batch, frames, torch.float16, device)
        limit_ms = (
            None
            if ceilings is None
            else 1e3 * batch * frames * VOCODER_FLOP_PER_FRAME / ceilings.dense_flop_per_s
        )
        name = f"vocoder, {batch} window{'s' * (batch > 1)} of {frames} frames, float16"
        yield figure(name, device_times_ms(vocoder.replay), limit_ms, "device")


def measure_speech(
    runtime: CudaRuntime,
    config: ModelConfig,
    prompt: tuple[Row, ...],
    device: torch.device,
    num_codes: int = 100,
) -> Iterator[Figure]:
    """Wall times of a spoken reply to a prompt: to the first samples on the host, and of all per
    second of audio.

    As it is served: unused heads are left out, the vocoder is in float16.
    """
    values = ChannelSampling(0.7, 20, 0.95, 1.1)
    vocoder = Vocoder(1, LEFT_FRAMES + CHUNK_FRAMES + RIGHT_FRAMES, torch.float16, device)
    table_blocks = tuple(range((len(prompt) + num_codes) // runtime.limits.block_size + 1))
    wave = torch.empty(CHUNK_FRAMES * 256, dtype=torch.float32, pin_memory=device.type == "cuda")
    start_sample = LEFT_FRAMES * 256

    def speak(codes: int) -> tuple[float, float]:
        """Seconds to the first chunk and to the last one."""
        said, sampling, finished = list(prompt), Sampling(values, values, codes, codes, 1), ("a",)
        torch.cuda.synchronize()
        start, first_s = time.perf_counter(), 0.0
        rows, cached = prompt, 0
        for index in range(codes):
            part = ScheduledSequence(rows, cached, table_blocks, True, text_logits=False)
            step = ScheduledBatch((part,))
            cached += len(rows)
            drawn = SequenceSampling("a", said, index, sampling, Modality.AUDIO)
            row = runtime.step(step, BatchSampling((drawn,), config.special, finished))[0]
            assert row is not None
            rows, finished = (row,), ()
            said.append(row)
            if (index + 1) % CHUNK_CODES == 0:
                vocoder.replay()
                wave.copy_(
                    vocoder.wave[0, 0, start_sample : start_sample + len(wave)].float(),
                    non_blocking=True,
                )
                torch.cuda.synchronize()
                first_s = first_s or time.perf_counter() - start
        return first_s, time.perf_counter() - start

    speak(CHUNK_CODES)
    first = [1e3 * speak(CHUNK_CODES)[0] for _ in range(REPEATS)]
    yield figure(
        f"to the first {CHUNK_CODES} codes' samples, {len(prompt)} rows", first, None, "wall"
    )
    whole = [1e3 * speak(num_codes)[1] / (num_codes / CODES_PER_S) for _ in range(REPEATS)]
    yield figure(f"per second of speech, {num_codes} codes", whole, None, "wall")


def measure_sampler(
    config: ModelConfig, prompt: tuple[Row, ...], batches: list[int], device: torch.device
) -> Iterator[Figure]:
    for batch in batches:
        logits = Logits(
            *(
                torch.randn(batch, size, device=device)
                for size in (config.vocab_size, config.audio_vocab_size)
            )
        )
        for name, sampler in (
            ("kernels", KernelSampler(config, batch, device)),
            ("torch", TorchSampler()),
        ):
            run = Replies(sampler, config, prompt, logits)
            yield figure(f"sampling by {name}, batch {batch}", wall_times_ms(run), None, "wall")


class Replies:
    """Speaking replies to one prompt; a call draws the next row of each from the same logits."""

    def __init__(
        self, sampler: Sampler, config: ModelConfig, prompt: tuple[Row, ...], logits: Logits
    ):
        self._sampler, self._logits = sampler, logits
        self._special_ids, self._num_prompt_rows = config.special, len(prompt)
        self._rows = [list(prompt) for _ in logits.audio]

    def __call__(self) -> None:
        values, count = ChannelSampling(0.7, 20, 0.95, 1.1), len(self._rows[0])
        sequences = tuple(
            SequenceSampling(
                str(i),
                rows,
                count - self._num_prompt_rows,
                Sampling(values, values, 10**6, 0, i),
                Modality.AUDIO,
            )
            for i, rows in enumerate(self._rows)
        )
        drawn = self._sampler.sample(self._logits, BatchSampling(sequences, self._special_ids))
        for rows, row in zip(self._rows, drawn, strict=True):
            assert row is not None
            rows.append(row)
