"""Bring a checkpoint into the layout that the engine builders read:

    python -m scripts.convert CHECKPOINT OUT --dtype bf16|fp16|fp8

Every tensor is used exactly once: q, k and v of a layer become one matrix, gate and up another; q
and k norms, both embedding tables, both final norms and both heads are kept, and every layer has a
slot of its own. One tensor at a time goes through memory. OUT gets a file a layer and manifest.json
with their digests. A conversion that was interrupted, or that filled the disk, goes on with the
same command where it stopped. fp8 needs a checkpoint that `python -m scripts.quantize` has
calibrated.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError
from moss_engine.api.small_files import read_json
from moss_engine.models.checkpoint import (
    TIED_ROWS,
    check_tensors,
    expected_tensors,
    read_index,
    refuse_tied,
)
from moss_engine.models.config import ModelConfig
from moss_engine.models.converted import DTYPE_OPTIONS, FORMAT, copy_config, file_of, files_of
from moss_engine.models.float8 import load_largest_inputs, stream_float8_parts
from moss_engine.models.layout import parts, stream_parts
from moss_engine.models.manifest import (
    MANIFEST_NAME,
    checkpoint_digest,
    verify_manifest,
    write_manifest,
)
from moss_engine.models.tensor_file import StoredTensor, read_tensor, stored_bytes, write_tensors
from scripts.command import make_parser, run_command
from scripts.disk import refuse_inside, require_space, writing_to

JOURNAL_NAME = ".conversion.json"
TO_GO_ON = (
    "make it writable, or free some space, and give the same command again, which goes on from "
    "there; or name another folder"
)


def convert(checkpoint: Path, out: Path, dtype: str) -> dict[str, int]:
    """Write the layout of `checkpoint` in `dtype` ("bfloat16", ...) into `out`.

    Returns how many tensors, files and bytes there are now, and how many files an earlier run had
    written. Raises CheckpointError for the checkpoint and ConfigError for the output folder.
    """
    config = ModelConfig.from_file(checkpoint / "config.json")
    refuse_inside(out, checkpoint)
    stored = read_index(checkpoint)
    check_tensors(checkpoint, stored, expected_tensors(config))
    refuse_tied(
        checkpoint,
        {
            name: _first_rows(stored[name])
            for name in expected_tensors(config)
            if "embed" in name or "head" in name
        },
    )
    if dtype == "float8":
        load_largest_inputs(checkpoint, config)
    if (checkpoint / MANIFEST_NAME).exists():
        verify_manifest(checkpoint)
    files = files_of(config, dtype)
    made_by = {"format": FORMAT, "dtype": dtype, "checkpoint_digest": checkpoint_digest(checkpoint)}
    sizes = {name: stored_bytes(entries) for name, entries in files.items()}
    total = sum(sizes.values())
    with writing_to(out, TO_GO_ON):
        kept = _open_output(out, made_by, sizes)
        done = sum(sizes[name] for name in kept)
        require_space(out, total - done, "The conversion")
        digests = {}
        for name in [name for name in files if name not in kept]:
            tensors = _tensors_of(name, checkpoint, config, dtype)
            digests[name] = write_tensors(out / name, files[name], tensors)
            done += sizes[name]
            print(f"{done / total:4.0%} of {total / 1e9:,.2f} GB  {name}", file=sys.stderr)
        copy_config(checkpoint, out)
        write_manifest(out, made_by, digests)
        (out / JOURNAL_NAME).unlink(missing_ok=True)
    return {
        "tensors": sum(map(len, files.values())),
        "files": len(files),
        "files_kept": len(kept),
        "bytes": total,
    }


def _tensors_of(
    file: str, checkpoint: Path, config: ModelConfig, dtype: str
) -> Iterator[tuple[str, Tensor]]:
    names = [name for name in parts(config) if file_of(name) == file]
    if dtype == "float8":
        return stream_float8_parts(checkpoint, config, names)
    return stream_parts(checkpoint, config, getattr(torch, dtype), names)


def _first_rows(stored: StoredTensor) -> Tensor:
    rows = min(TIED_ROWS, stored.shape[0])
    num_bytes = stored.num_bytes // stored.shape[0] * rows
    return read_tensor(
        dataclasses.replace(stored, shape=(rows, *stored.shape[1:]), num_bytes=num_bytes)
    )


def _open_output(out: Path, made_by: dict[str, str], sizes: dict[str, int]) -> list[str]:
    """Make the folder, or find the whole files that an earlier run left there."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder for the converted checkpoint.")
    out.mkdir(parents=True, exist_ok=True)
    journal, unfinished = out / JOURNAL_NAME, out / f"{JOURNAL_NAME}.partial"
    present = sorted(path.name for path in out.iterdir() if path != unfinished)
    if not journal.exists():
        if present:
            raise ConfigError(
                f"{out} is not empty (it holds {present[0]}); name another folder, or remove it "
                f"first."
            )
        unfinished.write_text(json.dumps(made_by), encoding="utf-8")
        unfinished.replace(journal)
        return []
    again = f"remove {out} and convert again."
    before = read_json(journal, again=again, error=ConfigError)
    for field, value in made_by.items():
        if before.get(field) != value:
            raise ConfigError(
                f"{out} holds an unfinished conversion with {field} {before.get(field)!r}, not "
                f"{value!r}; name another folder, or remove it first."
            )
    return [name for name, size in sizes.items() if _has_size(out / name, size)]


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def main(argv: list[str] | None = None) -> None:
    parser = make_parser("convert", __doc__)
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint folder as downloaded")
    add("out", type=Path, metavar="OUT", help="folder to make, or one that was interrupted")
    add("--dtype", choices=list(DTYPE_OPTIONS), default="bf16",
        help="number format of the layout (default: bf16)")  # fmt: skip
    args = parser.parse_args(argv)
    report = convert(args.checkpoint, args.out, DTYPE_OPTIONS[args.dtype])
    print(json.dumps({"converted": args.out.name, "dtype": args.dtype, **report}))


if __name__ == "__main__":
    run_command(main)
