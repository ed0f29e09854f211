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

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import ConfigError, MossError
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
from scripts.disk import refuse_inside, require_space, writing_to
from scripts.progress import Progress

JOURNAL_NAME = ".conversion.json"
PARTIAL = ".partial"
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
        done = _open_output(out, made_by, sizes)
        require_space(out, total - sum(sizes[name] for name in done), "The conversion")
        resumed = len(done)
        progress = Progress(total, *(("GB", 1e9) if total > 1e9 else ("MB", 1e6)))
        progress.advance(
            sum(sizes[name] for name in done), f"{resumed} files are there" if done else ""
        )
        for name in [name for name in files if name not in done]:
            done[name] = write_tensors(
                out / name, files[name], _tensors_of(name, checkpoint, config, dtype)
            )
            _write_journal(out, made_by, done)
            progress.advance(sizes[name], name)
        progress.end()
        copy_config(checkpoint, out)
        write_manifest(out, made_by, done)
        (out / JOURNAL_NAME).unlink(missing_ok=True)
    return {
        "tensors": sum(map(len, files.values())),
        "files": len(files),
        "files_kept": resumed,
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


def _open_output(out: Path, made_by: dict[str, str], sizes: dict[str, int]) -> dict[str, str]:
    """Make the folder, or find what an earlier run left there: whole files and their digests."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder for the converted checkpoint.")
    out.mkdir(parents=True, exist_ok=True)
    journal = out / JOURNAL_NAME
    present = sorted(path.name for path in out.iterdir() if path.name != JOURNAL_NAME + PARTIAL)
    if not journal.exists():
        if present:
            raise ConfigError(
                f"{out} is not empty (it holds {present[0]}); name another folder, or remove it "
                f"first."
            )
        _write_journal(out, made_by, {})
        return {}
    try:
        found = json.loads(journal.read_text(encoding="utf-8"))
        before, done = found["made_by"], dict(found["files"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{journal} cannot be read ({error}); remove {out} and convert again."
        ) from None
    for field, value in made_by.items():
        if before.get(field) != value:
            raise ConfigError(
                f"{out} holds an unfinished conversion with {field} {before.get(field)!r}, not "
                f"{value!r}; name another folder, or remove it first."
            )
    return {
        name: digest
        for name, digest in done.items()
        if name in sizes and (out / name).is_file() and (out / name).stat().st_size == sizes[name]
    }


def _write_journal(out: Path, made_by: dict[str, str], done: dict[str, str]) -> None:
    unfinished = out / (JOURNAL_NAME + PARTIAL)
    unfinished.write_text(json.dumps({"made_by": made_by, "files": done}), encoding="utf-8")
    unfinished.replace(out / JOURNAL_NAME)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint folder as downloaded"
    )
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder to make, or one that was interrupted"
    )
    parser.add_argument(
        "--dtype",
        choices=list(DTYPE_OPTIONS),
        default="bf16",
        help="number format of the layout (default: bf16)",
    )
    args = parser.parse_args(argv)
    report = convert(args.checkpoint, args.out, DTYPE_OPTIONS[args.dtype])
    print(json.dumps({"converted": args.out.name, "dtype": args.dtype, **report}))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
