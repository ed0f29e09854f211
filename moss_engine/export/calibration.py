"""What calibration rows put through a network's layers, and how near a rounded network is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moss_engine.api.tokens import Row
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import MERGED
from moss_engine.models.network import MossSpeech, causal_attend

AT_ONCE_BYTES = 6 << 30
"""Products of inputs that are kept at a time; more layers than these take another pass."""


@dataclass(frozen=True)
class Agreement:
    """A rounded network led along the rows of another, in one channel: the share of rows of the
    same best id, and the RMS of the logits' differences over their deviation."""

    channel: str
    rows: int
    same_best: float
    logit_error: float


def input_products(
    network: MossSpeech, config: ModelConfig, rows: Sequence[list[Row]]
) -> Iterator[dict[str, Tensor]]:
    """Some layers' sums of x^T x over all rows at a time, float32 [inputs, inputs], by the name of
    each matrix of the layers; matrices of one input share a tensor."""
    waiting, kept = [], 0
    for names, size in _groups(config):
        if waiting and kept + 4 * size * size > AT_ONCE_BYTES:
            yield _watch(network, waiting, rows)
            waiting, kept = [], 0
        waiting.append(names)
        kept += 4 * size * size
    if waiting:
        yield _watch(network, waiting, rows)


def compare(
    wanted: Sequence[tuple[Tensor, Tensor]], found: Sequence[tuple[Tensor, Tensor]]
) -> list[Agreement]:
    """Both channels' agreement; each sequence's logits are text [rows, vocabulary] and audio."""
    reports = []
    for index, channel in enumerate(("text", "audio")):
        first, second = (
            torch.cat([logits[index] for logits in pairs]) for pairs in (wanted, found)
        )
        spread = first - first.mean(1, keepdim=True)
        error = ((second - first).square().mean() / spread.square().mean()).sqrt().item()
        same = (first.argmax(1) == second.argmax(1)).float().mean().item()
        reports.append(Agreement(channel, len(first), same, error))
    return reports


@torch.inference_mode()
def logits_of(network: MossSpeech, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Both heads' logits of every row, float32 on the CPU."""
    device = network.text_lm_head.weight.device
    ids = torch.tensor(rows, device=device)
    states = network(ids, torch.arange(len(rows), device=device), causal_attend)
    return (
        network.text_lm_head(states.text).float().cpu(),
        network.audio_lm_head(states.audio).float().cpu(),
    )


def _groups(config: ModelConfig) -> Iterator[tuple[list[str], int]]:
    """Matrices that have the same input, and the size of that."""
    sizes = {
        "qkv": config.hidden_size,
        "o": config.num_attention_heads * config.head_dim,
        "gate_up": config.hidden_size,
        "down": config.intermediate_size,
    }
    blocks = (
        ("shared_block", config.num_shared_layers),
        ("text_block", config.num_modality_layers),
        ("audio_block", config.num_modality_layers),
    )
    for block, count in blocks:
        for layer in range(count):
            for merged, size in sizes.items():
                prefix = f"model.{block}.layers.{layer}."
                yield [f"{prefix}{source}.weight" for source in MERGED[merged]], size


def _watch(
    network: MossSpeech, groups: list[list[str]], rows: Sequence[list[Row]]
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    hooks = [_add_up(network.get_submodule(names[0].removesuffix(".weight")), names[0], sums)
             for names in groups]  # fmt: skip
    for sequence in rows:
        logits_of(network, sequence)
    for hook in hooks:
        hook.remove()
    return {name: sums[names[0]] for names in groups for name in names}


def _add_up(module: nn.Module, name: str, sums: dict[str, Tensor]):
    def add(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].float().flatten(0, -2)
        sums[name] = sums[name].addmm_(x.T, x) if name in sums else x.T @ x

    return module.register_forward_pre_hook(add)
