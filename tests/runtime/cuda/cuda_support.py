"""What the tests of the CUDA runtime share: a device that can run Triton kernels, a small network
and its reference.

The kernels run on a GPU, or, with TRITON_INTERPRET=1 and Triton installed, statement by statement
on the CPU.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.models.config import ModelConfig
from moss_engine.models.network import MossSpeech, causal_attend
from moss_engine.runtime.base import Limits, ScheduledSequence

pytest.importorskip("triton", reason="Triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip(
        "no GPU, and Triton does not interpret (TRITON_INTERPRET=1)", allow_module_level=True
    )

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

from moss_engine.runtime.cuda.runtime import CudaRuntime  # noqa: E402
from moss_engine.runtime.cuda.weights import Float8, Weights, allocate, fill_at_random, places  # noqa: E402

# Three query heads a KV head and sizes that are no powers of two, so that every kernel masks
# something.
SMALL = ModelConfig(
    hidden_size=48,
    intermediate_size=80,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    num_shared_layers=1,
    num_modality_layers=2,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=512,
    vocab_size=150,
    audio_vocab_size=80,
    sosp_token_id=140,
    eosp_token_id=64,
    modality_pad_token_id=141,
    audio_pad_token_id=65,
    eos_token_id=142,
    pad_token_id=143,
)
LIMITS = Limits(block_size=4, num_blocks=90, max_batch=6, max_step_rows=64, max_seq_len=200)


def make_weights(
    config: ModelConfig = SMALL,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
    float8: Float8 = Float8.NONE,
) -> Weights:
    """Random weights, large enough that attention and gates are far from linear."""
    weights = allocate(config, dtype, DEVICE, float8)
    fill_at_random(weights, config, seed, std=0.1)
    return weights


def make_runtime(
    weights: Weights,
    config: ModelConfig = SMALL,
    limits: Limits = LIMITS,
    *,
    graphs: bool = not INTERPRETED,
    kv_int8: bool = False,
) -> CudaRuntime:
    info = RuntimeInfo("torch", "", "", "", "random")
    return CudaRuntime(config, limits, weights, info, graphs=graphs, kv_int8=kv_int8)


class Reference:
    """The plain network in float32 over the same weights; whole sequences, no cache."""

    def __init__(self, weights: Weights, config: ModelConfig = SMALL):
        with torch.device("meta"):
            self._network = MossSpeech(config)
        state = {name: place.widened() for name, place in places(weights, config).items()}
        self._network.load_state_dict(state, assign=True)

    @torch.inference_mode()
    def logits(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        """Both heads' logits of the last row."""
        ids = torch.tensor(rows, device=DEVICE).unsqueeze(0)
        states = self._network(
            ids, torch.arange(len(rows), device=DEVICE).unsqueeze(0), causal_attend
        )
        return self._network.text_lm_head(states.text)[0, -1], self._network.audio_lm_head(
            states.audio
        )[0, -1]


def random_rows(count: int, seed: int, config: ModelConfig = SMALL) -> list[Row]:
    """Text and audio rows in a random mixture."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, config.sosp_token_id, (count,), generator=generator)
    audio = torch.randint(0, config.eosp_token_id, (count,), generator=generator)
    is_audio = torch.rand(count, generator=generator) < 0.5
    text[is_audio] = config.modality_pad_token_id
    return [Row(int(a), int(b)) for a, b in zip(text, audio, strict=True)]


def share(
    rows: list[Row], start: int, end: int, table: tuple[int, ...], sample: bool = True
) -> ScheduledSequence:
    return ScheduledSequence(tuple(rows[start:end]), start, table, sample)


def relative_error(value: Tensor, wanted: Tensor) -> float:
    return ((value.float() - wanted.float()).norm() / wanted.float().norm()).item()
