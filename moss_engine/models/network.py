"""MOSS-Speech in plain PyTorch: one class for every size.

A Qwen3-type decoder whose trunk of shared layers feeds two branches, text and audio, each with its
own layers, final norm and untied head. The module tree gives exactly the checkpoint's tensor names.
Attention is passed in as a function: training runs whole sequences, the tests cached ones. It is
the reference that serving runtimes are held to; docs/networks.md names the networks and their
tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moss_engine.models.checkpoint import expected_tensors, load_tensors, refuse_tied
from moss_engine.models.config import ModelConfig


class Attend(Protocol):
    """Causal attention of new rows over a sequence's cached and new rows.

    `slot` is the layer's KV slot, 0 .. num_layers - 1. `q` is [..., rows, heads, head_dim], `k` and
    `v` are [..., rows, kv_heads, head_dim], all normed and rotated. Returns [..., rows, heads,
    head_dim].
    """

    def __call__(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class BranchStates(NamedTuple):
    """Normed last hidden states of the two branches: each [..., rows, hidden]."""

    text: Tensor
    audio: Tensor


class RMSNorm(nn.Module):
    """[..., size] -> the same, divided by the root of its mean square and scaled."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary_tables(
    positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for NeoX rotary embedding.

    positions: [..., rows] integers. Returns two tensors [..., rows, 1, head_dim]; computed in
    float32.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = (
        positions.to(torch.float32).unsqueeze(-1) * theta**-exponent
    )  # [..., rows, head_dim / 2]
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(-2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotary_pairs(config: ModelConfig, num_positions: int, device: torch.device) -> Tensor:
    """float32 [positions, 2, head_dim / 2]: the cosines of every pair, then its sines."""
    positions, half = torch.arange(num_positions, device=device), config.head_dim // 2
    tables = rotary_tables(positions, config.head_dim, config.rope_theta, torch.float32)
    return torch.stack([table[:, 0, :half] for table in tables], dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply NeoX (rotate-half) rotary embedding; x: [..., rows, heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention with normed heads: [..., rows, hidden] -> the same shape.

    `slot` is its layer's KV slot.
    """

    def __init__(self, config: ModelConfig, slot: int):
        super().__init__()
        self.slot = slot
        self.head_dim = config.head_dim
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        q, k = rotate(self.q_norm(q), *rotary), rotate(self.k_norm(k), *rotary)
        return self.o_proj(attend(self.slot, q, k, v).flatten(-2))


class MLP(nn.Module):
    """SwiGLU: [..., hidden] -> the same."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then MLP, each on a normed copy and added: [..., rows, hidden] -> the same."""

    def __init__(self, config: ModelConfig, slot: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, slot)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Block(nn.Module):
    """A stack of layers with consecutive KV slots."""

    def __init__(self, config: ModelConfig, first_slot: int, num_layers: int):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, first_slot + i) for i in range(num_layers))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        for layer in self.layers:
            x = layer(x, rotary, attend)
        return x


class Body(nn.Module):
    """Everything under the checkpoint's `model.` prefix."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        shared, branch = config.num_shared_layers, config.num_modality_layers
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.audio_embed = nn.Embedding(config.audio_vocab_size, config.hidden_size)
        self.shared_block = Block(config, 0, shared)
        self.text_block = Block(config, shared, branch)
        self.audio_block = Block(config, shared + branch, branch)
        self.text_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.audio_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class MossSpeech(nn.Module):
    """The two-branch decoder.

    KV slots: shared layers first, then the text branch's, then the audio branch's; every row has a
    KV entry in all of them.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.text_lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.audio_lm_head = nn.Linear(config.hidden_size, config.audio_vocab_size, bias=False)

    def embed(self, rows: Tensor) -> Tensor:
        """Select, never sum: [..., 2] (text, audio) ids -> [..., hidden].

        The channel that does not count is replaced by a valid id before the look-up, as its value
        is arbitrary.
        """
        text, audio = rows.unbind(-1)
        is_audio = text == self.config.modality_pad_token_id
        return torch.where(
            is_audio.unsqueeze(-1),
            self.model.audio_embed(audio.where(is_audio, torch.zeros_like(audio))),
            self.model.embed_tokens(text),
        )

    def forward(
        self, rows: Tensor, positions: Tensor, attend: Attend, select: Tensor | None = None
    ) -> BranchStates:
        """Run new rows through trunk and branches.

        rows: [..., rows, 2]; positions: [..., rows]; select: indices along the rows axis whose
        final states are wanted (None for all). Returns states after each branch's final norm;
        `text_lm_head` and `audio_lm_head` turn them into logits.
        """
        x = self.embed(rows)
        rotary = rotary_tables(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        trunk = self.model.shared_block(x, rotary, attend)
        text = self.model.text_block(trunk, rotary, attend)
        audio = self.model.audio_block(trunk, rotary, attend)
        if select is not None:
            text, audio = text.index_select(-2, select), audio.index_select(-2, select)
        return BranchStates(self.model.text_norm(text), self.model.audio_norm(audio))


def causal_attend(slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`Attend` over whole sequences without a cache: the reference, and what training uses.

    q: [..., rows, heads, head_dim]; k, v: [..., rows, kv_heads, head_dim].
    """
    q, k, v = (t.transpose(-2, -3) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(
        -2, -3
    )


def load_model(
    folder: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> MossSpeech:
    """The network of a checkpoint folder, for inference.

    The tensors that are read become its parameters, so memory holds them once. Raises
    CheckpointError.
    """
    config = ModelConfig.from_file(folder / "config.json")
    tensors = load_tensors(folder, expected_tensors(config), dtype=dtype, device=device)
    refuse_tied(folder)
    with torch.device("meta"):
        model = MossSpeech(config)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.requires_grad_(False).eval()
