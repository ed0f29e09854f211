"""Which codec a folder holds, and what loads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.codec.base import CodecOptions, SpeechCodec, VoiceCloner
from moss_engine.codec.files import read_config
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.codec.moss.load import MossVoiceCloner, is_moss_codec, load_moss_codec
from moss_engine.codec.nano import FSQ_TYPE, load_nano_codec
from moss_engine.codec.vocoder.make import KINDS, pick_folder
from moss_engine.config import NANO_CHECKPOINT

DEFAULT_VOCODER = NANO_CHECKPOINT / "vocoder"
"""Vocoders on the mel that both codecs share."""
PUBLISHED = "MOSS-Speech-Codec"
"""The codec whose folder has the layout of its publisher, and no `type`."""


def load_codec(folder: Path, device: torch.device | str = "cpu", **options: Any) -> SpeechCodec:
    """The codec of a folder; `options` are the fields of `CodecOptions`.

    Raises CheckpointError for a missing or damaged file and for a type without a loader,
    ConfigError for an option that this codec does not have, MelSpecError where codec and vocoder do
    not belong together, MissingPackageError where a package is absent.
    """
    found = codec_type(folder)
    if found not in LOADERS:
        raise CheckpointError(
            f"{folder} holds a codec of type {found!r}; this version knows {', '.join(LOADERS)}, "
            "so name another folder with --codec."
        )
    return LOADERS[found](folder, torch.device(device), CodecOptions(**options))


def codec_type(folder: Path) -> str:
    """PUBLISHED, or the `type` in codec/config.json; raises CheckpointError without a codec."""
    if is_moss_codec(folder):
        return PUBLISHED
    if not (folder / "codec").is_dir():
        raise CheckpointError(f"{folder} holds no codec; name the codec's folder with --codec.")
    return read_config(folder / "codec")["type"]


def _load_published(folder: Path, device: torch.device, options: CodecOptions) -> SpeechCodec:
    place = options.vocoder_folder
    if options.vocoder in KINDS:
        place = pick_folder(place or DEFAULT_VOCODER, options.vocoder, device)
    elif place is not None:
        raise ConfigError(
            "--vocoder-folder names a vocoder in place of HiFT; ask for it with --vocoder bigvgan."
        )
    return load_moss_codec(
        folder, device, dtype=options.dtype, vocoder_folder=place, voices=options.voices
    )


def _load_nano(folder: Path, device: torch.device, options: CodecOptions) -> SpeechCodec:
    for name, value, allowed in (
        ("vocoder", options.vocoder, ("auto", *KINDS)),
        ("codec-dtype", options.dtype, ("auto",)),
        ("voices", options.voices, (None,)),
    ):
        if value not in allowed:
            raise ConfigError(
                f"--{name} {value} is for the MOSS-Speech codec, not for the one in {folder}; "
                "omit it, or name that codec's folder with --codec."
            )
    place = pick_folder(options.vocoder_folder or folder / "vocoder", options.vocoder, device)
    return load_nano_codec(folder / "codec", place, device)


LOADERS: dict[str, Callable[[Path, torch.device, CodecOptions], SpeechCodec]] = {
    PUBLISHED: _load_published,
    FSQ_TYPE: _load_nano,
}
"""What loads the codec of each type."""


def load_cloner(codec: SpeechCodec, folder: Path) -> VoiceCloner:
    """What makes voices of recordings for a codec that was loaded from `folder`.

    Raises ConfigError for a codec without cloning, CheckpointError and MissingPackageError where
    its speaker network cannot run.
    """
    if not isinstance(codec, MossCodec):
        raise ConfigError(
            "--own-voice is for the MOSS-Speech codec; name it with --codec, or omit --own-voice."
        )
    return MossVoiceCloner(codec, folder)
