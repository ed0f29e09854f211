"""The language model being trained: its losses over packed batches, its optimiser, averaged weights
and state files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from moss_engine.models.checkpoint import expected_tensors, load_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.network import MossSpeech
from scripts.nano.lm.layout import NANO_CONFIG
from scripts.nano.lm.ranks import Ranks
from scripts.nano.lm.sequences import IGNORE, WIDTHS, Shape
from scripts.nano.speech.voices import RATE_TOKENS, VOICE_TOKENS
from scripts.nano.tokenizer import load_tokenizer
from scripts.nano.training.schedule import load_state, save_state

PEAK_RATE = 1.5e-3
WEIGHT_DECAY = 0.1
TEXT_WEIGHT = 0.4
DROPOUT = 0.1
EMA_DECAY = 0.999


def cell_attention(shape: Shape, dtype: torch.dtype):
    """`Attend` over a flat batch: causal attention inside each cell."""

    sizes = [width * count for width, count in zip(WIDTHS, shape.cells)]

    def attend(slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        cells = [t.split(sizes) for t in (q, k, v)]
        seen = []
        for width, count, *cell in zip(WIDTHS, shape.cells, *cells):
            heads_first = [t.unflatten(0, (count, width)).transpose(1, 2) for t in cell]
            out = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
            seen.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(seen)

    return attend


def with_dropout(model: MossSpeech, rate: float) -> MossSpeech:
    """Dropout on embeddings and on what each layer adds; the serving network stays without it."""

    def drop(module: nn.Module, args: object, out: Tensor) -> Tensor:
        return F.dropout(out, rate, module.training)

    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("self_attn", "mlp", "embed_tokens", "audio_embed"):
            module.register_forward_hook(drop)
    return model


def initialise(model: MossSpeech) -> None:
    depth = model.config.num_layers
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(
                weight,
                std=0.02 / (2 * depth) ** 0.5 if "o_proj" in name or "down_proj" in name else 0.02,
            )


class LossOf(nn.Module):
    """A batch -> (text loss, audio loss), means over the predicted rows."""

    def __init__(self, model: MossSpeech, shape: Shape, device: torch.device):
        super().__init__()
        self.model = model
        self.attend = cell_attention(
            shape, torch.bfloat16 if device.type == "cuda" else torch.float32
        )
        spans = [torch.arange(width).repeat(count) for width, count in zip(WIDTHS, shape.cells)]
        self.register_buffer("positions", torch.cat(spans).to(device), persistent=False)

    def forward(
        self,
        rows: Tensor,
        text_at: Tensor,
        text_target: Tensor,
        audio_at: Tensor,
        audio_target: Tensor,
    ) -> tuple[Tensor, Tensor]:
        states = self.model(rows, self.positions, self.attend)
        text = self.model.text_lm_head(states.text[text_at])
        audio = self.model.audio_lm_head(states.audio[audio_at])
        return (
            F.cross_entropy(text.float(), text_target, ignore_index=IGNORE),
            F.cross_entropy(audio.float(), audio_target, ignore_index=IGNORE),
        )


class Staging:
    """Packed batches -> tensors on the device, through a few page-locked buffers, without waiting
    for the device."""

    def __init__(self, shape: Shape, device: torch.device, depth: int = 4):
        self.sizes, self.device, self.next = shape.packed_sizes, device, 0
        is_cuda = device.type == "cuda"
        self.buffers = [
            torch.empty(sum(self.sizes), dtype=torch.int32, pin_memory=is_cuda)
            for _ in range(depth)
        ]
        self.copied = [torch.cuda.Event() for _ in range(depth)] if is_cuda else []

    def to_device(self, packed: np.ndarray) -> Tensor:
        """-> int32 on the device"""
        buffer = self.buffers[self.next]
        if self.copied:
            self.copied[self.next].synchronize()
        buffer.copy_(torch.from_numpy(packed))
        batch = buffer.to(self.device, non_blocking=True, copy=True)
        if self.copied:
            self.copied[self.next].record()
        self.next = (self.next + 1) % len(self.buffers)
        return batch

    def unpack(self, batch: Tensor) -> list[Tensor]:
        """-> rows [N, 2], text_at, text_target, audio_at, audio_target, all int64"""
        rows, *others = batch.long().split(self.sizes)
        return [rows.view(-1, 2), *others]

    def load(self, packed: np.ndarray) -> list[Tensor]:
        return self.unpack(self.to_device(packed))


def optimiser_of(model: MossSpeech, device: torch.device) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=device.type == "cuda")


def begin_with(model: MossSpeech, folder: Path, new_codes: bool) -> None:
    """The weights of a checkpoint. What is new to it stays as it was initialised: the tokens of
    voices and rates, if it has none, and with `new_codes` the codes."""
    config = model.config
    found = load_tensors(folder, expected_tensors(config), dtype=torch.float32, device="cpu")
    known = load_tokenizer(folder / "tokenizer.json").get_vocab(with_added_tokens=True)
    own, voices = model.state_dict(), [*VOICE_TOKENS.values(), *RATE_TOKENS]
    for name, tensor in found.items():
        if tensor.shape[0] == config.audio_vocab_size and new_codes:
            tensor[: config.eosp_token_id] = own[name][: config.eosp_token_id].cpu()
        elif tensor.shape[0] == config.vocab_size and not known.keys() >= set(voices):
            tensor[-len(voices) :] = own[name][-len(voices) :].cpu()
    model.load_state_dict(found)


def export_folder(weights: dict[str, Tensor], work: Path) -> None:
    """lm/: config.json, tokenizer.json, model.safetensors in float32; replaced in one move."""
    partial, folder = work / "lm.part", work / "lm"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "config.json").write_text(json.dumps(NANO_CONFIG, indent=2) + "\n")
    shutil.copy(work / "tokenizer.json", partial / "tokenizer.json")
    save_file(
        {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()},
        partial / "model.safetensors",
    )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def steps_done(work: Path) -> int:
    state = load_state(work / "lm.pt", torch.device("cpu"))
    return 0 if state is None else state["step"]


class Trainer:
    """Model, optimiser and averaged weights; goes on from DIR/lm.pt, else from the weights of
    `init`, else anew."""

    def __init__(
        self,
        work: Path,
        config: ModelConfig,
        shape: Shape,
        device: torch.device,
        compiled: bool,
        init: Path | None,
        ranks: Ranks,
        new_codes: bool = False,
    ):
        self.work, self.device, self.text_weight, self.ranks = work, device, TEXT_WEIGHT, ranks
        self.model = with_dropout(MossSpeech(config), DROPOUT).to(device)
        initialise(self.model)
        if init is not None:
            begin_with(self.model, init, new_codes)
        self.optimiser = optimiser_of(self.model, device)
        self.ema = [p.detach().clone() for p in self.model.parameters()]
        self.step, self.spent_s = 0, 0.0
        self.loss_of = LossOf(self.model, shape, device)
        self.run = torch.compile(self.loss_of) if compiled else self.loss_of
        state = load_state(work / "lm.pt", device)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            for mine, saved in zip(self.ema, state["ema"]):
                mine.copy_(saved)
            self.step, self.spent_s = state["step"], state["spent_s"]

    def losses(self, run: Callable[..., Any], tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return run(*tensors)

    def train_step(self, tensors: list[Tensor], rate: float) -> tuple[Tensor, Tensor]:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        text, audio = self.losses(self.run, tensors)
        (self.text_weight * text + audio).backward()
        self.ranks.average([p.grad for p in self.model.parameters() if p.grad is not None])
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.ema, [p.detach() for p in self.model.parameters()], 1 - decay)
        return text.detach(), audio.detach()

    def averaged(self) -> dict[str, Tensor]:
        return dict(zip((name for name, _ in self.model.named_parameters()), self.ema))

    @torch.no_grad()
    def held_losses(self, held: list[list[Tensor]]) -> tuple[float, float]:
        """Losses of the averaged weights on the held-out batches; not compiled, as it runs once a
        minute."""
        live = [p.detach().clone() for p in self.model.parameters()]
        self._copy_in(self.ema)
        self.model.eval()
        found = torch.tensor(
            [[float(x) for x in self.losses(self.loss_of, tensors)] for tensors in held]
        ).mean(0)
        self.model.train()
        self._copy_in(live)
        return float(found[0]), float(found[1])

    def _copy_in(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.model.parameters(), values):
            parameter.detach().copy_(value)

    def save(self, spent_s: float) -> None:
        save_state(
            self.work / "lm.pt",
            {
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "ema": self.ema,
                "step": self.step,
                "spent_s": spent_s,
            },
        )
        export_folder(self.averaged(), self.work)
