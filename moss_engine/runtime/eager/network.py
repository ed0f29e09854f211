"""The network as the torch runtime runs it: the mathematics of `models.network` with fewer and
larger operations.

Rows of all sequences of a step are packed along one axis, decode rows first. q, k and v are one
matrix, gate and up another, and both embedding tables lie in one. q and k heads are stored with the
two halves of a rotary pair side by side, which makes the rotation one complex product; their dot
products do not change. Weights are floats, or int8 with a scale per row, kept as they are stored:
an int8 layer has one kernel for decode rows and another for prefill rows, and both compute every
row independently of the others, so that a sequence gets the same values in any batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.tokens import Row, is_audio_row
from moss_engine.models.checkpoint import SCALE_SUFFIX, quantise, slot_prefixes
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import MERGED

INT8 = "int8"
FINE_STEP, COARSE_STEP = 16, 64
"""16-bit products on a CPU have numbers of rows that are multiples of these: of the first up to
COARSE_STEP rows, beyond of the second."""


class Linear(Protocol):
    """x [rows, in], of which the first `num_decode` are decode rows -> [rows, out]."""

    def __call__(self, x: Tensor, num_decode: int) -> Tensor: ...


class FloatLinear:
    """weight: [out, in], in the dtype to compute in; the result has that dtype."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor, num_decode: int) -> Tensor:
        x = x.to(self.weight.dtype)
        return F.linear(x, self.weight) if num_decode == len(x) else _product(x, self.weight)


class Int8Linear:
    """values: int8 [out, in]; scale: float32 [out]; weight = values * scale; the result is float32.

    Decode rows go through torch's weight-only int8 kernel with bfloat16 activations. Prefill rows,
    where arithmetic and not the reading of weights takes the time, go through an ordinary product
    in `prefill_dtype`, in which int8 values are exact. The scale is applied afterwards in float32,
    as bfloat16 would round it.
    """

    def __init__(self, values: Tensor, scale: Tensor, prefill_dtype: torch.dtype):
        self.values = values.contiguous()
        self.scale = scale.float()
        self.prefill_dtype = prefill_dtype
        self._ones = torch.ones(values.shape[0], dtype=torch.bfloat16, device=values.device)

    def __call__(self, x: Tensor, num_decode: int) -> Tensor:
        if num_decode == x.shape[0]:
            return self._decode(x)
        if num_decode == 0:
            return self._prefill(x)
        return torch.cat([self._decode(x[:num_decode]), self._prefill(x[num_decode:])])

    def _decode(self, x: Tensor) -> Tensor:
        return (
            torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self.values, self._ones) * self.scale
        )

    def _prefill(self, x: Tensor) -> Tensor:
        return _product(x.to(self.prefill_dtype), self.values.to(self.prefill_dtype)) * self.scale


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] times weight [out, in]: the same values for a row whatever comes with it.

    For 16-bit values on a CPU, oneDNN makes a kernel for every number of rows and PyTorch keeps a
    thousand of them, of a megabyte each; so rows are filled up to one of a few numbers.
    """
    rows = x.shape[0]
    if x.dtype is torch.float32 or x.device.type != "cpu":
        return F.linear(x, weight)
    step = FINE_STEP if rows <= COARSE_STEP else COARSE_STEP
    return F.linear(F.pad(x, (0, 0, 0, -rows % step)), weight)[:rows]


CLEARLY = 1.3
"""How many times as fast another number format must be to be chosen: a smaller difference may come
from what else the machine does."""


def int8_decodes_well(threads: int) -> bool:
    """Whether this CPU multiplies one row by int8 weights about as fast as by float32 weights, or
    faster (takes a few ms). Without the vector instructions that torch's kernel is written for, it
    can be far slower.
    """
    # 19 MB of float32 in all: as in a model, more than the caches near the core
    size, num_matrices = (768, 8)
    weights = [torch.randn(size, size) for _ in range(num_matrices)]
    values = [weight.mul(10).to(torch.int8) for weight in weights]
    x, ones = torch.randn(1, size), torch.ones(size, dtype=torch.bfloat16)
    int8_s, float32_s = _fastest_s(
        threads,
        lambda: [torch.ops.aten._weight_int8pack_mm(x.bfloat16(), v, ones) for v in values],
        lambda: [F.linear(x, w) for w in weights],
    )
    return int8_s < CLEARLY * float32_s


def fastest_prefill_dtype(threads: int) -> torch.dtype:
    """bfloat16, unless this CPU multiplies matrices of many rows clearly faster in float32 (takes a
    few ms)."""
    values, x = torch.ones(512, 512, dtype=torch.int8), torch.randn(64, 512)
    bfloat16_s, float32_s = _fastest_s(
        threads,
        lambda: F.linear(x.bfloat16(), values.bfloat16()),
        lambda: F.linear(x, values.float()),
    )
    return torch.float32 if CLEARLY * float32_s < bfloat16_s else torch.bfloat16


def _fastest_s(threads: int, *runs: Callable[[], object]) -> list[float]:
    """The shortest of nine times of each, taken in turns, so that a busy moment hits all."""

    def once(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [
            min(taken)
            for taken in zip(*([once(run) for run in runs] for _ in range(9)), strict=True)
        ]
    finally:
        torch.set_num_threads(before)


class PackedAttend(Protocol):
    """Causal attention of a step's rows over their sequences' cached and new rows, in the KV slot
    of one layer.

    q: float32 [rows, heads, head_dim]; kv: float32 [rows, 2 * kv_heads, head_dim], keys before
    values. Keys and queries are normed and rotated. Returns [rows, heads * head_dim].
    """

    def __call__(self, slot: int, q: Tensor, kv: Tensor) -> Tensor: ...


class CheckpointWeights:
    """Loaded tensors by the checkpoint's names, given up one by one as they are joined."""

    def __init__(self, tensors: dict[str, Tensor], linear_dtype: torch.dtype | str, threads: int):
        self._tensors = tensors
        self._int8 = linear_dtype == INT8
        self._prefill_dtype = fastest_prefill_dtype(threads) if self._int8 else None

    def vector(self, name: str) -> Tensor:
        """A norm's weight: float32 [size]."""
        return self._tensors.pop(name).float()

    def linear(self, names: list[str], order: Tensor | None = None) -> Linear:
        """The named matrices joined along their output rows, which `order` rearranges."""
        if not self._int8:
            return FloatLinear(self._join([self._tensors.pop(name) for name in names], order))
        values, scales = zip(*[self._pop_int8(name) for name in names], strict=True)
        assert self._prefill_dtype is not None
        return Int8Linear(
            self._join(list(values), order), self._join(list(scales), order), self._prefill_dtype
        )

    def embedding(self, names: list[str]) -> Callable[[Tensor], Tensor]:
        """The named tables joined along their rows: ids [n] -> float32 [n, hidden]."""
        if not self._int8:
            table = self._join([self._tensors.pop(name) for name in names], None)
            return lambda ids: F.embedding(ids, table).float()
        values, scales = zip(*[self._pop_int8(name) for name in names], strict=True)
        table, scale = torch.cat(values), torch.cat(scales).unsqueeze(1)
        return lambda ids: F.embedding(ids, table) * F.embedding(ids, scale)

    def _pop_int8(self, name: str) -> tuple[Tensor, Tensor]:
        tensor = self._tensors.pop(name)
        if tensor.dtype is torch.int8:
            return tensor, self._tensors.pop(name + SCALE_SUFFIX)
        values, scale = quantise(tensor)
        return values, scale.float()

    @staticmethod
    def _join(tensors: list[Tensor], order: Tensor | None) -> Tensor:
        joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return joined if order is None else joined[order.to(joined.device)]


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


class _Step(NamedTuple):
    """What all layers of a step share."""

    rotary: Tensor
    attend: PackedAttend
    num_decode: int


class PackedNetwork:
    """Rows and positions of a step -> logits of its selected rows."""

    def __init__(
        self,
        config: ModelConfig,
        weights: CheckpointWeights,
        device: torch.device,
        max_seq_len: int,
    ):
        self.config = config
        self._pairs = torch.arange(config.head_dim).view(2, -1).T.flatten()
        shared, branch = config.num_shared_layers, config.num_modality_layers
        layers = [
            self._layer(prefix, slot, weights) for slot, prefix in enumerate(slot_prefixes(config))
        ]
        self._shared, self._text = layers[:shared], layers[shared : shared + branch]
        self._audio = layers[shared + branch :]
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
        # [rows, 1, head_dim / 2]
        self._rotary = torch.polar(torch.ones_like(angles), angles).unsqueeze(1).to(device)

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
        step = _Step(self._rotary.index_select(0, positions), attend, num_decode)
        x = self._run(self._shared, self._embed(indices), step)
        if not text_logits:
            before = self._run(self._text[:-1], x, step)
            self._attended(self._text[-1], before, step)  # writes keys and values
        audio = self._run(self._audio, x, step, select)
        num_selected = audio.shape[0]
        audio_logits = self._audio_head(self._audio_norm(audio), num_selected).float()
        if not text_logits:
            return audio_logits.new_zeros(num_selected, self.config.vocab_size), audio_logits
        text = self._run(self._text, x, step, select)
        return self._text_head(self._text_norm(text), num_selected).float(), audio_logits

    def _run(
        self, layers: list[PackedLayer], x: Tensor, step: _Step, select: Tensor | None = None
    ) -> Tensor:
        """Some layers; with `select`, what is behind the last one's attention is computed for these
        rows only."""
        num_decode = step.num_decode
        for layer in layers:
            attended = self._attended(layer, x, step)
            if select is not None and layer is layers[-1]:
                x, attended = x.index_select(0, select), attended.index_select(0, select)
            x = x + layer.output(attended, num_decode)
            gate, up = layer.gate_up(layer.mlp_norm(x), num_decode).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up, num_decode)
        return x

    def _attended(self, layer: PackedLayer, x: Tensor, step: _Step) -> Tensor:
        """The attention of one layer, which writes its keys and values: [rows, heads *
        head_dim]."""
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        qkv = layer.qkv(layer.input_norm(x), step.num_decode).float()
        qkv = qkv.unflatten(1, (heads + 2 * kv_heads, -1))
        qk = qkv[:, : heads + kv_heads]
        normed = torch.view_as_complex(layer.qk_norm(qk).unflatten(2, (-1, 2)))
        torch.mul(normed, step.rotary, out=torch.view_as_complex(qk.unflatten(2, (-1, 2))))
        return step.attend(layer.slot, qkv[:, :heads], qkv[:, heads:])

    def _layer(self, prefix: str, slot: int, weights: CheckpointWeights) -> PackedLayer:
        config, eps = self.config, self.config.rms_norm_eps
        heads = config.num_attention_heads
        kv_heads = config.num_key_value_heads
        head_dim = config.head_dim
        head_starts = torch.arange(heads + 2 * kv_heads).unsqueeze(1) * head_dim
        order = head_starts + torch.arange(head_dim)
        # v heads stay as they are
        order[: heads + kv_heads] = head_starts[: heads + kv_heads] + self._pairs

        def sources(name: str) -> list[str]:
            return [f"{prefix}{source}.weight" for source in MERGED[name]]

        q_norm, k_norm = (
            weights.vector(*sources(name))[self._pairs] for name in ("q_norm", "k_norm")
        )
        return PackedLayer(
            slot=slot,
            input_norm=Norm(weights.vector(*sources("input_norm")), eps),
            qkv=weights.linear(sources("qkv"), order.flatten()),
            qk_norm=Norm(torch.cat([q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)]), eps),
            output=weights.linear(sources("o")),
            mlp_norm=Norm(weights.vector(*sources("mlp_norm")), eps),
            gate_up=weights.linear(sources("gate_up")),
            down=weights.linear(sources("down")),
        )
