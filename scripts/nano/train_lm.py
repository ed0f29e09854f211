"""Stage 6: prompts, codes and tokenizer -> lm/: config.json, tokenizer.json, model.safetensors in
float32.

    python -m scripts.nano.train_lm --work WORK
"""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from moss_engine.models.network import MossSpeech
from scripts.nano.lm.batches import IGNORE, WIDTHS, EndlessBatches, Shape, batches, shape_of
from scripts.nano.lm.sequences import NANO_CONFIG, Corpus
from scripts.nano.stage import begin_training, one_cycle, set_rate, stage_parser

PEAK_RATE, WEIGHT_DECAY, DROPOUT, EMA_DECAY = 1.2e-3, 0.1, 0.1, 0.999
TEXT_WEIGHT = 0.8
"""The weight of the text's loss, where that of the codes is 1."""
REPORT_EVERY_STEPS = 200
HELD_BATCHES = 8


def cell_attention(shape: Shape, dtype: torch.dtype):
    """An `Attend` for a flat batch, with causal attention inside each of its cells."""

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
    """Add dropout to embeddings and to what each layer adds; the served network has none."""

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
            adds = "o_proj" in name or "down_proj" in name
            nn.init.normal_(weight, std=0.02 / (2 * depth) ** 0.5 if adds else 0.02)


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


def optimiser_of(model: MossSpeech, device: torch.device) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=device.type == "cuda")


class Trainer:
    """Model, optimiser and averaged weights."""

    def __init__(self, model: MossSpeech, shape: Shape, device: torch.device):
        initialise(model)
        self.model, self.device = with_dropout(model, DROPOUT).to(device), device
        self.optimiser = optimiser_of(self.model, device)
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.loss_of, self.held_loss_of = (
            LossOf(network, shape, device) for network in (self.model, self.average)
        )
        self.run = torch.compile(self.loss_of) if device.type == "cuda" else self.loss_of
        self.step = 0

    def losses(self, run: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return run(*tensors)

    def train_step(self, tensors: Sequence[Tensor], rate: float) -> tuple[Tensor, Tensor]:
        set_rate(self.optimiser, rate)
        text, audio = self.losses(self.run, tensors)
        (TEXT_WEIGHT * text + audio).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        averaged, learnt = self.average.parameters(), self.model.parameters()
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged), list(learnt), 1 - decay)
        return text.detach(), audio.detach()

    @torch.no_grad()
    def held_losses(self, held: list[list[Tensor]]) -> tuple[float, float]:
        """Losses of the averaged weights on the held-out batches."""
        losses = [[float(loss) for loss in self.losses(self.held_loss_of, one)] for one in held]
        text, audio = torch.tensor(losses).mean(0).tolist()
        return text, audio


def export_folder(trainer: Trainer, work: Path) -> Path:
    """Write the averaged weights as the language model of a checkpoint."""
    folder = work / "lm"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(NANO_CONFIG, indent=2) + "\n")
    shutil.copy(work / "tokenizer.json", folder / "tokenizer.json")
    averaged = trainer.average.named_parameters()
    weights = {name: tensor.float().cpu() for name, tensor in averaged}
    save_file(weights, folder / "model.safetensors")
    return folder


def main() -> None:
    parser = stage_parser("train_lm", __doc__)
    parser.add_argument("--steps", type=int, default=16_000, help="length of the training")
    parser.add_argument("--rows", type=int, default=110_592, help="rows of one step")
    parser.add_argument("--workers", type=int, default=14, help="processes that prepare batches")
    args, device = begin_training(parser)
    corpus, held_corpus = Corpus(args.work, "train"), Corpus(args.work, "held")
    shape = shape_of(corpus, args.rows, args.seed)
    found = batches(held_corpus, shape, args.seed, dropout=False, epochs=1)
    held = [
        [torch.from_numpy(part).to(device).long() for part in batch]
        for batch in islice(found, HELD_BATCHES)
    ]
    loader = DataLoader(
        EndlessBatches(corpus, shape, args.seed),
        batch_size=None,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    trainer = Trainer(MossSpeech(corpus.config), shape, device)
    print(f"lm: {len(corpus.reads)} texts to read", flush=True)
    began = time.monotonic()
    for batch in islice(loader, args.steps):
        rate = one_cycle(trainer.step / args.steps, PEAK_RATE, warm_up=0.02)
        tensors = [part.to(device, non_blocking=True).long() for part in batch]
        text, audio = map(float, trainer.train_step(tensors, rate))
        assert text + audio < float("inf"), "the loss is not finite"
        if trainer.step % REPORT_EVERY_STEPS == 0 or trainer.step == args.steps:
            held_text, held_audio = trainer.held_losses(held)
            print(
                f"lm step {trainer.step} of {args.steps} at {time.monotonic() - began:.0f} s: text "
                f"{text:.4f}, audio {audio:.4f}, held out {held_text:.4f}, {held_audio:.4f}",
                flush=True,
            )
    print(f"lm: {export_folder(trainer, args.work)}")


if __name__ == "__main__":
    main()
