"""The network as the torch runtime runs it: the mathematics of `models.network` with fewer and
larger operations.

Rows of all sequences of a step are packed along one axis. q, k and v are one matrix, gate and up
another, and both embedding tables lie in one. q and k heads are stored with the two halves of a
rotary pair side by side, which makes the rotation one complex product; their dot products do not
change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.tokens import Row, is_audio_row
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.eager.linear import Linear


class PackedAttend(Protocol):
    """Causal attention of a step's rows over their sequences' cached and new rows, in the KV slot
    of one layer.

    q: float32 [rows, heads, head_dim]; kv: float32 [rows, 2 * kv_heads, head_dim], keys before
    values. Keys and queries are normed and rotated. Returns [rows, heads * head_dim].
    """

    def __call__(self, slot: int, q: Tensor, kv: Tensor) -> Tensor: ...


class WeightSource(Protocol):
    """Where the network takes its parameters from, by the checkpoint's names."""

    def vector(self, name: str) -> Tensor:
        """A norm's weight: float32 [size]."""
        ...

    def linear(self, names: list[str], order: Tensor | None = None) -> Linear:
        """The named matrices joined along their output rows, which `order` rearranges."""
        ...

    def embedding(self, names: list[str]) -> Callable[[Tensor], Tensor]:
        """The named tables joined along their rows: ids [n] -> float32 [n, hidden]."""
        ...


class Norm:
    """RMSNorm over the last axis in float32; weight: [..., size]."""

    def __init__(self, weight: Tensor, eps: float):
        size = weight.shape[-1]
        self.weight = weight * size**0.5
        self.floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        # x / sqrt(sum(x^2) + size * eps) * weight * sqrt(size), which takes half the time of
        # F.rms_norm on a CPU
        return (
            x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)
        ).mul_(self.weight)


@dataclass(frozen=True)
class PackedLayer:
    slot: int
    input_norm: Norm
    qkv: Linear
    qk_norm: Norm
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear


class PackedNetwork:
    """Rows and positions of a step -> logits of its selected rows."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, device: torch.device, max_seq_len: int
    ):
        self.config = config
        self._pairs = torch.arange(config.head_dim).view(2, -1).T.flatten()
        shared, branch = config.num_shared_layers, config.num_modality_layers
        self._shared = self._block("shared_block", 0, shared, weights)
        self._text = self._block("text_block", shared, branch, weights)
        self._audio = self._block("audio_block", shared + branch, branch, weights)
        self._embed = weights.embedding(["model.embed_tokens.weight", "model.audio_embed.weight"])
        self._text_norm = Norm(weights.vector("model.text_norm.weight"), config.rms_norm_eps)
        self._audio_norm = Norm(weights.vector("model.audio_norm.weight"), config.rms_norm_eps)
        self._text_head = weights.linear(["text_lm_head.weight"])
        self._audio_head = weights.linear(["audio_lm_head.weight"])
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = (
            torch.arange(max_seq_len, dtype=torch.float32).unsqueeze(1)
            * config.rope_theta**-exponents
        )
        self._rotary = (
            torch.polar(torch.ones_like(angles), angles).unsqueeze(1).to(device)
        )  # [rows, 1, head_dim / 2]

    def table_index(self, row: Row) -> int:
        """Which row of the joined embedding tables a row reads: select, never sum."""
        return (
            self.config.vocab_size + row.audio
            if is_audio_row(row, self.config.special)
            else row.text
        )

    def forward(
        self,
        indices: Tensor,
        positions: Tensor,
        attend: PackedAttend,
        num_decode: int,
        select: Tensor | None,
        *,
        text_logits: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Run a step's rows, of which the first `num_decode` are decode rows.

        indices: `table_index` of every row [rows]; positions: [rows]; select: the rows whose logits
        are wanted, all decode rows first (None for all rows). Returns float32 logits [selected,
        vocab] and [selected, audio vocab]; without `text_logits` the former are zeros.
        """
        rotary = self._rotary.index_select(0, positions)
        x = self._embed(indices)
        for layer in self._shared:
            x = self._run(layer, x, rotary, attend, num_decode, None)
        if not text_logits:
            self._fill_branch(self._text, x, rotary, attend, num_decode)
        audio = self._run_branch(self._audio, x, rotary, attend, num_decode, select)
        num_selected = audio.shape[0]
        audio_logits = self._audio_head(self._audio_norm(audio), num_selected).float()
        if not text_logits:
            return audio_logits.new_zeros(num_selected, self.config.vocab_size), audio_logits
        x = self._run_branch(self._text, x, rotary, attend, num_decode, select)
        return self._text_head(self._text_norm(x), num_selected).float(), audio_logits

    def _fill_branch(
        self,
        layers: list[PackedLayer],
        x: Tensor,
        rotary: Tensor,
        attend: PackedAttend,
        num_decode: int,
    ) -> None:
        """Write a branch's keys and values, and compute nothing behind them."""
        for layer in layers[:-1]:
            x = self._run(layer, x, rotary, attend, num_decode, None)
        self._attended(layers[-1], x, rotary, attend, num_decode)

    def _run_branch(
        self,
        layers: list[PackedLayer],
        x: Tensor,
        rotary: Tensor,
        attend: PackedAttend,
        num_decode: int,
        select: Tensor | None,
    ) -> Tensor:
        for layer in layers[:-1]:
            x = self._run(layer, x, rotary, attend, num_decode, None)
        return self._run(layers[-1], x, rotary, attend, num_decode, select)

    def _run(
        self,
        layer: PackedLayer,
        x: Tensor,
        rotary: Tensor,
        attend: PackedAttend,
        num_decode: int,
        select: Tensor | None,
    ) -> Tensor:
        """One layer; with `select`, the part behind the attention is computed for these rows
        only."""
        attended = self._attended(layer, x, rotary, attend, num_decode)
        if select is not None:
            x, attended = x.index_select(0, select), attended.index_select(0, select)
        x = x + layer.output(attended, num_decode)
        gate, up = layer.gate_up(layer.mlp_norm(x), num_decode).chunk(2, dim=-1)
        return x + layer.down(F.silu(gate) * up, num_decode)

    def _attended(
        self, layer: PackedLayer, x: Tensor, rotary: Tensor, attend: PackedAttend, num_decode: int
    ) -> Tensor:
        """The attention of one layer, which writes its keys and values: [rows, heads *
        head_dim]."""
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        qkv = (
            layer.qkv(layer.input_norm(x), num_decode)
            .float()
            .unflatten(1, (heads + 2 * kv_heads, -1))
        )
        qk = qkv[:, : heads + kv_heads]
        normed = torch.view_as_complex(layer.qk_norm(qk).unflatten(2, (-1, 2)))
        torch.mul(normed, rotary, out=torch.view_as_complex(qk.unflatten(2, (-1, 2))))
        return attend(layer.slot, qkv[:, :heads], qkv[:, heads:])

    def _block(
        self, block: str, first_slot: int, num_layers: int, weights: WeightSource
    ) -> list[PackedLayer]:
        return [
            self._layer(f"model.{block}.layers.{i}.", first_slot + i, weights)
            for i in range(num_layers)
        ]

    def _layer(self, prefix: str, slot: int, weights: WeightSource) -> PackedLayer:
        config, eps = self.config, self.config.rms_norm_eps
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        head_starts = torch.arange(heads + 2 * kv_heads).unsqueeze(1) * head_dim
        order = head_starts + torch.arange(head_dim)
        order[: heads + kv_heads] = (
            head_starts[: heads + kv_heads] + self._pairs
        )  # v heads stay as they are
        q_norm = weights.vector(prefix + "self_attn.q_norm.weight")[self._pairs]
        k_norm = weights.vector(prefix + "self_attn.k_norm.weight")[self._pairs]
        return PackedLayer(
            slot=slot,
            input_norm=Norm(weights.vector(prefix + "input_layernorm.weight"), eps),
            qkv=weights.linear(
                [prefix + f"self_attn.{name}_proj.weight" for name in "qkv"], order.flatten()
            ),
            qk_norm=Norm(torch.cat([q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)]), eps),
            output=weights.linear([prefix + "self_attn.o_proj.weight"]),
            mlp_norm=Norm(weights.vector(prefix + "post_attention_layernorm.weight"), eps),
            gate_up=weights.linear(
                [prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"]
            ),
            down=weights.linear([prefix + "mlp.down_proj.weight"]),
        )
