"""Which codec a folder holds."""

from __future__ import annotations

from pathlib import Path

import torch

from moss_engine.codec.base import SpeechCodec
from moss_engine.codec.moss_layout import is_moss_codec
from moss_engine.codec.moss_load import load_moss_codec
from moss_engine.codec.nano import load_nano_codec
from moss_engine.codec.store import FSQ_TYPE, read_config
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.errors import CheckpointError, ConfigError

DEFAULT_VOCODER = NANO_CHECKPOINT / "vocoder"
"""A BigVGAN on the mel that both codecs share."""


def load_codec(folder: Path, device: torch.device | str = "cpu", *, dtype: str = "auto", vocoder: str = "auto",
               vocoder_folder: Path | None = None, voices: Path | None = None) -> SpeechCodec:
    """The codec of a folder: the published one in its own layout, or nano's in `codec/` and `vocoder/`.

    `dtype`, `vocoder`, `vocoder_folder` and `voices` are the options of those names. Raises CheckpointError for a
    missing or damaged file and for a type of codec that is not known here, ConfigError for an option that this codec
    does not have, MelSpecError where codec and vocoder do not belong together, MissingPackageError where a package is
    absent.
    """
    if is_moss_codec(folder):
        if vocoder_folder is not None and vocoder != "bigvgan":
            raise ConfigError("--vocoder-folder names a BigVGAN; ask for it with --vocoder bigvgan.")
        return load_moss_codec(folder, device, dtype=dtype, vocoder="hift" if vocoder == "auto" else vocoder,
                               vocoder_folder=vocoder_folder or DEFAULT_VOCODER, voices=voices)
    if not (folder / "codec").is_dir():
        raise CheckpointError(f"{folder} holds no codec; name the codec's folder with --codec.")
    kind = read_config(folder / "codec")["type"]
    if kind != FSQ_TYPE:
        raise CheckpointError(f"{folder} holds a codec of type {kind!r}; this version knows {FSQ_TYPE!r} and the "
                              "published layout of MOSS-Speech-Codec.")
    for name, value, usual in (("vocoder", vocoder, ("auto", "bigvgan")), ("codec-dtype", dtype, ("auto",)),
                               ("voices", voices, (None,))):
        if value not in usual:
            raise ConfigError(f"--{name} {value} is for the MOSS-Speech codec, not for the one in {folder}; leave it "
                              "out, or name that codec's folder with --codec.")
    return load_nano_codec(folder / "codec", vocoder_folder or folder / "vocoder", device)
