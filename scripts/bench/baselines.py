"""Alternatives to the CUDA runtime with the same layer shapes and random weights.

`transformers` generates with a Qwen3 model of as many layers and head rows: with its default cache,
and with a static one, for which it compiles the network into CUDA graphs. `plain` is the reference
network with a contiguous KV cache, captured as one CUDA graph: once as it is, and once with its
layers compiled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.models.config import ModelConfig
from moss_engine.models.network import Layer, MossSpeech
from scripts.bench.common import Report
from scripts.bench.gpu import CONTEXT_ROWS, REPEATS, Ceilings, Needs, add_figure, measure


def measure_baselines(config: ModelConfig, ceilings: Ceilings, report: Report) -> None:
    report.add(baselines_load_average=round(os.getloadavg()[0], 1))
    limit_ms = Needs(config, "bfloat16").decode_ms(ceilings, 1, CONTEXT_ROWS)
    step = PlainStep(config, CONTEXT_ROWS)
    measure(report, "plain PyTorch, CUDA graph", "device", captured(step), limit_ms)
    step.compile_layers()
    measure(report, "compiled PyTorch, CUDA graph", "device", captured(step), limit_ms)
    del step
    for cache, times_ms in transformers_step_ms(config, CONTEXT_ROWS):
        name = f"transformers generate, {cache} cache, a token"
        add_figure(report, name, times_ms, "wall", limit_ms)


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """A function that replays the call as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def transformers_step_ms(
    config: ModelConfig, context: int, device: str = "cuda"
) -> Iterator[tuple[str, list[float]]]:
    """Milliseconds between one token of a sampling `generate` and the next, by the kind of cache:
    the one that grows ("dynamic"), then the "static" one."""
    model = _qwen3(config, device)
    ids = torch.randint(0, config.vocab_size, (1, context), device=device)
    for cache, warm_up_rows in (("dynamic", 4), ("static", REPEATS + 1)):
        for num_rows in (warm_up_rows, REPEATS + 1):
            times_s = _generate(model, ids, cache, num_rows)
        yield cache, [1e3 * (end - start) for start, end in pairwise(times_s)]


def _qwen3(config: ModelConfig, device: str) -> Any:
    """A Qwen3 model with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # pyright: ignore[reportMissingImports]

    shapes = Qwen3Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size + config.audio_vocab_size,
        tie_word_embeddings=False,
        max_position_embeddings=config.max_position_embeddings,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return Qwen3ForCausalLM(shapes).eval()
    finally:
        torch.set_default_dtype(default)


def _generate(model: Any, ids: Tensor, cache: str, num_rows: int) -> list[float]:
    """Generate `num_rows` tokens; the time in seconds at which each was there."""
    from transformers import StoppingCriteriaList  # pyright: ignore[reportMissingImports]

    times_s: list[float] = []

    def noted(ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        """Stops nothing."""
        ids[:, -1].tolist()  # waits for the device
        times_s.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_rows,
        min_new_tokens=num_rows,
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.95,
        pad_token_id=0,
        cache_implementation=cache,
        stopping_criteria=StoppingCriteriaList([noted]),
    )
    return times_s


class PlainStep:
    """One decode step of the reference network over a contiguous cache of `context` rows."""

    def __init__(self, config: ModelConfig, context: int):
        with torch.device("meta"):
            network = MossSpeech(config).to(torch.bfloat16)
        self.network = network.to_empty(device="cuda").requires_grad_(False)
        for parameter in self.network.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.02)
        shape = (config.num_layers, 1, config.num_key_value_heads, context + 1, config.head_dim)
        self._keys, self._values = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )
        self._rows = torch.tensor([[[1, 2]]], device="cuda")
        self._positions = torch.tensor([[context]], device="cuda")
        self._context = context

    def attend(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._keys[slot, :, :, self._context] = k[:, 0]
        self._values[slot, :, :, self._context] = v[:, 0]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), self._keys[slot], self._values[slot], enable_gqa=True
        )
        return out.transpose(1, 2)

    @torch.inference_mode()
    def __call__(self) -> tuple[Tensor, Tensor]:
        states = self.network(self._rows, self._positions, self.attend)
        return self.network.text_lm_head(states.text), self.network.audio_lm_head(states.audio)

    def compile_layers(self) -> None:
        """Compile the code between the attentions, once for all layers."""
        for block in (
            self.network.model.shared_block,
            self.network.model.text_block,
            self.network.model.audio_block,
        ):
            for layer in block.layers:
                assert isinstance(layer, Layer)
                layer.mlp.compile(mode="max-autotune-no-cudagraphs")
                layer.input_layernorm.compile()
                layer.post_attention_layernorm.compile()
