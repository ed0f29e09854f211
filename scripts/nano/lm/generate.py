"""Replies to many prompts in one padded batch, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.tokens import Row, is_stop
from moss_engine.models.config import ModelConfig
from moss_engine.models.network import MossSpeech
from scripts.nano.speech.voices import ADA

MAX_ROWS = 900


@dataclass(frozen=True)
class Settings:
    """Sampling of a run; temperature 0 is greedy, top_k 0 and top_p 1 switch filters off."""

    audio_temperature: float
    audio_top_k: int
    audio_top_p: float
    text_temperature: float
    seed: int
    voice: str = ADA
    speed: float = 1.0


class PaddedCache:
    """`Attend` over a batch of left-padded sequences of equal progress."""

    def __init__(self, config: ModelConfig, padding: Tensor, capacity: int, like: Tensor):
        batch = len(padding)
        shape = (config.num_layers, batch, config.num_key_value_heads, capacity, config.head_dim)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.padding, self.filled = padding, 0
        self.columns = torch.arange(capacity, device=like.device)

    def attend(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, end = q.shape[1], self.filled + q.shape[1]
        self.keys[slot, :, :, self.filled : end] = k.transpose(1, 2)
        self.values[slot, :, :, self.filled : end] = v.transpose(1, 2)
        columns = self.columns[:end]
        now = self.columns[self.filled : end]
        seen = (columns[None, None] >= self.padding[:, None, None]) & (
            columns[None, None] <= now[None, :, None]
        )
        seen = seen | (
            columns[None, None] == now[None, :, None]
        )  # padding rows see themselves, so that nothing is NaN
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            self.keys[slot, :, :, :end],
            self.values[slot, :, :, :end],
            attn_mask=seen[:, None],
            enable_gqa=True,
        )
        assert out.shape[2] == rows
        return out.transpose(1, 2)


def pick(
    logits: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator
) -> Tensor:
    """[batch, vocab] -> sampled ids [batch]."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ranked, order = logits.softmax(-1).sort(-1, descending=True)
        dropped = (ranked.cumsum(-1) - ranked >= top_p).scatter(
            -1, order, ranked.cumsum(-1) - ranked >= top_p
        )
        logits = logits.masked_fill(dropped, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


class Bound:
    """The text channel of replies that read: a word's next id, or speech between words; the end
    after the last."""

    def __init__(
        self, config: ModelConfig, texts: Sequence[Sequence[Sequence[int]]], device: torch.device
    ):
        self.config, longest = config, max(sum(map(len, words)) for words in texts) + 1
        self.ids = torch.full((len(texts), longest), config.eos_token_id, device=device)
        self.opens = torch.zeros(self.ids.shape, dtype=torch.bool, device=device)
        for i, words in enumerate(texts):
            flat = [piece for word in words for piece in word]
            self.ids[i, : len(flat)] = torch.tensor(flat, device=device)
            starts = np.cumsum([0, *map(len, words)])
            self.opens[i, torch.from_numpy(starts).to(device)] = True
        self.at = torch.zeros(len(texts), dtype=torch.long, device=device)
        self.unspoken = torch.zeros(len(texts), dtype=torch.bool, device=device)
        self.rows = torch.arange(len(texts), device=device)

    def choose(self, logits: Tensor, speaks: Tensor) -> Tensor:
        """[batch, vocab] -> the text id of every reply; those that speak keep their place."""
        wanted, sosp = self.ids[self.rows, self.at], self.config.sosp_token_id
        may_open = self.opens[self.rows, self.at] & self.unspoken
        is_over = wanted == self.config.eos_token_id
        prefers = logits[:, sosp] > logits.gather(1, wanted[:, None])[:, 0]
        opens = may_open & (prefers | is_over)
        moved = ~opens & ~speaks
        last = self.ids.shape[1] - 1
        self.at = torch.where(moved, (self.at + 1).clamp(max=last), self.at)
        self.unspoken = torch.where(speaks, self.unspoken, moved)
        return torch.where(opens, sosp, wanted)


@torch.inference_mode()
def generate(
    model: MossSpeech,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    max_rows: int = MAX_ROWS,
    bound: Bound | None = None,
) -> list[list[Row]]:
    """Replies to all prompts; one that does not stop has `max_rows` rows."""
    config, device = model.config, model.audio_lm_head.weight.device
    generator = torch.Generator(device=device).manual_seed(settings.seed)
    rows, padding = _padded(prompts, config, device)
    cache = PaddedCache(config, padding, rows.shape[1] + max_rows, model.audio_lm_head.weight)
    speaks = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    over = torch.zeros_like(speaks)
    made: list[Tensor] = []
    for step in range(max_rows):
        positions = (
            torch.arange(cache.filled, cache.filled + rows.shape[1], device=device)[None]
            - padding[:, None]
        ).clamp(min=0)
        states = model(
            rows, positions, cache.attend, torch.tensor([rows.shape[1] - 1], device=device)
        )
        cache.filled += rows.shape[1]
        text_logits = model.text_lm_head(states.text[:, 0])
        if bound is None:
            text = pick(text_logits, settings.text_temperature, 0, 1.0, generator)
        else:
            text = bound.choose(text_logits.float(), speaks)
        audio_logits = model.audio_lm_head(states.audio[:, 0])
        audio_logits[:, config.eosp_token_id + 1 :] = -torch.inf
        audio = pick(
            audio_logits,
            settings.audio_temperature,
            settings.audio_top_k,
            settings.audio_top_p,
            generator,
        )
        text = torch.where(speaks, config.modality_pad_token_id, text)
        rows = torch.stack([torch.where(over, config.pad_token_id, text), audio], -1)[:, None]
        made.append(rows[:, 0])
        speaks = torch.where(speaks, audio != config.eosp_token_id, text == config.sosp_token_id)
        over = over | (text == config.eos_token_id) | (text == config.pad_token_id)
        if step % 16 == 15 and bool(over.all()):
            break
    replies = torch.stack(made, 1).tolist()
    return [_until_stop([Row(*row) for row in reply], config) for reply in replies]


def _padded(
    prompts: Sequence[Sequence[int]], config: ModelConfig, device: torch.device
) -> tuple[Tensor, Tensor]:
    """-> rows [prompts, longest, 2], padded on the left, and the padding of each [prompts]"""
    longest = max(map(len, prompts))
    padding = torch.tensor([longest - len(p) for p in prompts], device=device)
    rows = torch.full(
        (len(prompts), longest, 2), config.audio_pad_token_id, dtype=torch.long, device=device
    )
    for i, prompt in enumerate(prompts):
        rows[i, :, 0] = torch.tensor(
            [config.pad_token_id] * (longest - len(prompt)) + list(prompt), device=device
        )
    return rows, padding


def _until_stop(rows: list[Row], config: ModelConfig) -> list[Row]:
    end = next((i + 1 for i, row in enumerate(rows) if is_stop(row, config.special)), len(rows))
    return rows[:end]
