"""Which codec a checkpoint folder holds."""

from __future__ import annotations

from pathlib import Path

import torch

from moss_engine.codec.base import SpeechCodec
from moss_engine.codec.nano import load_nano_codec
from moss_engine.codec.store import FSQ_TYPE, read_config
from moss_engine.errors import CheckpointError


def load_codec(checkpoint: Path, device: torch.device | str = "cpu") -> SpeechCodec:
    """The codec of a checkpoint folder, from its `codec/` and `vocoder/`.

    Raises CheckpointError for a missing or damaged file and for a type of codec that is not known here, MelSpecError
    where codec and vocoder do not belong together, MissingPackageError where the vocoder's package is absent.
    """
    folder = checkpoint / "codec"
    kind = read_config(folder)["type"]
    if kind != FSQ_TYPE:
        raise CheckpointError(f"{folder} holds a codec of type {kind!r}; this version knows {FSQ_TYPE!r} only.")
    return load_nano_codec(folder, checkpoint / "vocoder", device)
