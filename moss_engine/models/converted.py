"""A converted checkpoint: the builders' layout, one file a layer, and a manifest of digests."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import INPUT_SCALE, WEIGHT_SCALE, is_float8
from moss_engine.models.layout import parts
from moss_engine.models.manifest import verify_manifest
from moss_engine.models.tensor_file import DTYPES, StoredTensor, read_header, read_tensor

FORMAT = "moss-engine layout 1"
DTYPE_OPTIONS = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
_FILE_DTYPES = {**DTYPES, "F8_E4M3": torch.float8_e4m3fn}
_AGAIN = "convert the checkpoint again with `python -m scripts.convert`."

Entry = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Converted:
    """`dtype` is "bfloat16", "float16" or "float8"; `checkpoint_digest` identifies the source."""

    config: ModelConfig
    dtype: str
    checkpoint_digest: str
    tensors: Mapping[str, StoredTensor]

    def read(self, name: str) -> Tensor:
        """A tensor of the layout in memory of its own, on the CPU."""
        return read_tensor(self.tensors[name])


def entries_of(config: ModelConfig, dtype: str) -> dict[str, Entry]:
    """Name -> (dtype, shape) of every tensor of a converted checkpoint, in network order."""
    found: dict[str, Entry] = {}
    for name, part in parts(config).items():
        if dtype != "float8":
            found[name] = getattr(torch, dtype), part.shape
        elif is_float8(name, part):
            found[name] = torch.float8_e4m3fn, part.shape
            found[name + WEIGHT_SCALE] = found[name + INPUT_SCALE] = torch.float32, (1,)
        else:
            found[name] = torch.bfloat16, part.shape
    return found


def file_of(name: str) -> str:
    """The file of a tensor: one for each layer slot, one for tables, one for norms and heads."""
    group, _, rest = name.partition(".")
    if group == "layers":
        return f"layer_{int(rest.partition('.')[0]):03}.safetensors"
    return "tables.safetensors" if group == "embed" else "heads.safetensors"


def files_of(config: ModelConfig, dtype: str) -> dict[str, dict[str, Entry]]:
    """Every file with its tensors."""
    files: dict[str, dict[str, Entry]] = {}
    for name, entry in entries_of(config, dtype).items():
        files.setdefault(file_of(name), {})[name] = entry
    return files


def open_converted(folder: Path) -> Converted:
    """Read a folder that `scripts.convert` has finished, after comparing every file's digest.

    Raises CheckpointError: for an unfinished or altered folder, and for a tensor that is missing,
    unknown or of another type or shape.
    """
    if not (folder / "manifest.json").is_file():
        raise CheckpointError(
            f"{folder} holds no finished conversion, as manifest.json is missing in it; {_AGAIN}"
        )
    made_by = verify_manifest(folder)
    dtype, digest = str(made_by.get("dtype")), str(made_by.get("checkpoint_digest"))
    if made_by.get("format") != FORMAT or dtype not in DTYPE_OPTIONS.values():
        raise CheckpointError(
            f"{folder} is no conversion of this program's kind ({made_by.get('format')!r}, not "
            f"{FORMAT!r}); {_AGAIN}"
        )
    config = ModelConfig.from_file(folder / "config.json")
    stored: dict[str, StoredTensor] = {}
    for file, entries in files_of(config, dtype).items():
        found = read_header(folder / file, _FILE_DTYPES)
        for name in [*entries, *(found.keys() - entries.keys())]:
            here = (found[name].dtype, found[name].shape) if name in found else None
            if here != entries.get(name):
                raise CheckpointError(
                    f"{folder / file}: {name} is {here} instead of {entries.get(name)}; {_AGAIN}"
                )
        stored |= found
    return Converted(config, dtype, digest, stored)


def copy_config(checkpoint: Path, folder: Path) -> None:
    """The checkpoint's config.json as it is, so that a converted folder stands alone."""
    shutil.copyfile(checkpoint / "config.json", folder / "config.json")
