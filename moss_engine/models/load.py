"""Checkpoint folder -> `MossSpeech`: the reference network with weights, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.models.checkpoint import expected_tensors, load_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.network import MossSpeech

TIED_ROWS = 1024
TABLES_AND_HEADS = {
    "model.embed_tokens.weight": "text_lm_head.weight",
    "model.audio_embed.weight": "audio_lm_head.weight",
}


def load_model(
    folder: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> MossSpeech:
    """The network of a checkpoint folder, for inference.

    The tensors that are read become its parameters, so memory holds them once. Raises
    CheckpointError.
    """
    config = ModelConfig.from_file(folder / "config.json")
    tensors = load_tensors(folder, expected_tensors(config), dtype=dtype, device=device)
    refuse_tied(folder, tensors)
    with torch.device("meta"):
        model = MossSpeech(config)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.requires_grad_(False).eval()


class TiedHeads:
    """Streaming form of `refuse_tied`: keeps the first rows of heads and tables."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._first_rows: dict[str, Tensor] = {}

    def see(self, name: str, tensor: Tensor) -> None:
        if name in TABLES_AND_HEADS or name in TABLES_AND_HEADS.values():
            self._first_rows[name] = tensor[:TIED_ROWS].clone()

    def refuse(self) -> None:
        """Raise CheckpointError as `refuse_tied` does, once all tensors were seen."""
        refuse_tied(self._folder, self._first_rows)


def refuse_tied(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a head copies its channel's embedding table (by first rows)."""
    for table, head in TABLES_AND_HEADS.items():
        rows = tensors[table][:TIED_ROWS], tensors[head][:TIED_ROWS]
        if rows[0].dtype is rows[1].dtype and torch.equal(*rows):
            raise CheckpointError(
                f"{folder}: {head} equals {table}, as if tied; export the checkpoint again with "
                f"untied heads."
            )
