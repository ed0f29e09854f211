"""Fetch the published MOSS-Speech weights: `python -m scripts.download`.

It says what will be fetched, how large that is and what is known of its licence, and asks before it
begins (`--yes` answers). Both repositories are pinned to one revision each; only files that this
program reads are fetched, no code among them. A download that broke off goes on where it stopped.
Every file is compared with its published checksum. The environment variable HF_ENDPOINT names a
mirror of the hub.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.config import REPO_ROOT
from scripts.command import make_parser, run_command
from scripts.disk import existing_part, require_space, writing_to

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CHECKPOINTS = REPO_ROOT / "checkpoints"
MODEL_FOLDER, CODEC_FOLDER = CHECKPOINTS / "MOSS-Speech", CHECKPOINTS / "MOSS-Speech-Codec"
OWNER = "OpenMOSS-Team"
LICENCE = (
    "Neither repository states a licence for its weights; only the publisher's code is under "
    "Apache-2.0. They are not\n"
    "part of this program and it passes them on to nobody. Whether your use of them is permitted "
    "is between you and\n"
    "their publisher, the OpenMOSS team: ask before you redistribute them or build a product on "
    "them."
)
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR,
              errno.EEXIST)  # fmt: skip
"""The error numbers of a place that files cannot be written to."""


@dataclass(frozen=True)
class Part:
    """A repository, and patterns of the wanted file names; each must match at least one file."""

    name: str
    revision: str
    folder: Path
    patterns: tuple[str, ...]


PARTS = (
    Part("MOSS-Speech", "cff025bb41d8459d59abac0b5e44aba7f659ec9e", MODEL_FOLDER,
         ("config.json", "tokenizer.json", "model.safetensors.index.json",
         "model-*-of-*.safetensors")),
    Part("MOSS-Speech-Codec", "eeec733e4e1dea7da444d332d8e1621ef257414c", CODEC_FOLDER,
         ("config.json", "preprocessor_config.json", "model.safetensors", "flow/config.yaml",
         "flow/flow-chunk-5.pt", "flow/hift.pt", "flow/campplus.onnx")),
)  # fmt: skip


def download(parts: tuple[Part, ...], owner: str, agree: Callable[[str], bool]) -> bool:
    """Show the plan, ask, fetch and check. Returns False if `agree` says no; raises MossError with
    the remedy."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi

    hub, missing = HfApi(), dict[Path, int]()
    plans = [(part, wanted_files(part, owner, hub)) for part in parts]
    for part, files in plans:
        print(f"{part.name} at revision {part.revision[:12]} -> {part.folder}")
        for file, size in files.items():
            there = "" if is_missing(part.folder / file, size) else "  (there already)"
            print(f"  {file:<40}{size_text(size):>10}{there}")
        missing[part.folder] = sum(
            size for file, size in files.items() if is_missing(part.folder / file, size)
        )
    print(f"To fetch: {size_text(sum(missing.values()))}\n\n{LICENCE}\n", flush=True)
    require_room(missing)
    if not agree("Fetch them? [y/N] "):
        return False
    for part, files in plans:
        fetch(part, files, owner, hub)
    return True


def wanted_files(part: Part, owner: str, hub: HfApi) -> dict[str, int]:
    """The files of a repository that this program reads, and their bytes; raises MossError if one
    kind is missing. The hub is asked only once, so that a missing network is known at once."""
    repo = f"{owner}/{part.name}"
    with reaching(repo):
        found = hub.model_info(repo, revision=part.revision, files_metadata=True)
    offered = {file.rfilename: file.size or 0 for file in found.siblings or ()}
    for pattern in part.patterns:
        if not any(fnmatch(file, pattern) for file in offered):
            raise MossError(
                f"{part.name} offers no file {pattern} at revision {part.revision[:12]}; "
                "it is not the repository that this program reads."
            )
    return {
        file: size
        for file, size in offered.items()
        if any(fnmatch(file, pattern) for pattern in part.patterns)
    }


def fetch(part: Part, files: Mapping[str, int], owner: str, hub: HfApi) -> None:
    """Fetch what is missing and check all files; raises MossError, and removes damaged ones."""
    repo, remedy = f"{owner}/{part.name}", "make it writable or free some space, or name another"
    with writing_to(part.folder, f"{remedy} place with --model and --codec"), reaching(repo):
        hub.snapshot_download(
            repo, revision=part.revision, local_dir=part.folder, allow_patterns=list(part.patterns)
        )
        print(f"Checking {part.folder} ...", flush=True)
        found = hub.verify_repo_checksums(repo, revision=part.revision, local_dir=part.folder)
    damaged = [one["path"] for one in found.mismatches if one["path"] in files]
    for name in damaged:
        (part.folder / name).unlink()
    if damaged:
        raise MossError(
            f"{', '.join(damaged)} in {part.folder} came damaged and was removed; run the command "
            "again."
        )


@contextmanager
def reaching(repo: str) -> Iterator[None]:
    """Turn errors of reaching the hub into MossErrors; an OSError of `UNWRITABLE` passes."""
    from huggingface_hub import errors

    try:
        yield
    except (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.RemoteEntryNotFoundError,
    ) as error:
        raise MossError(
            f"{repo} has no such repository, revision or file any more ({type(error).__name__}); "
            "its owner may have moved it: name another one with --owner."
        ) from None
    except Exception as error:
        # those of its transport have no common class, and other names in every release
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        raise MossError(
            f"{repo} cannot be fetched ({type(error).__name__}: {str(error)[:120]}); check the "
            "network and run the command again: what has come stays."
        ) from None


def is_missing(path: Path, size: int) -> bool:
    """Whether there is no file of that size yet."""
    return not path.is_file() or path.stat().st_size != size


def size_text(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.2f} MB"


def require_room(needed: Mapping[Path, int]) -> None:
    """Raise ConfigError unless every disk has room for the bytes of all folders that are on it."""
    disks = {folder: existing_part(folder).stat().st_dev for folder in needed}
    for folder in needed:
        here = sum(size for other, size in needed.items() if disks[other] == disks[folder])
        if here:
            require_space(folder, here, "What is fetched (see --model and --codec)")


def ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("There is nobody to ask; read what is written above and add --yes.")
    return input(question).strip().lower() in ("y", "yes")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("download", __doc__)
    add = parser.add_argument
    for name, folder in (("--model", MODEL_FOLDER), ("--codec", CODEC_FOLDER)):
        add(name, type=Path, default=folder, metavar="DIR", help=f"default: {folder}")
    add("--only", choices=("model", "codec"), help="fetch one of the two")
    add("--owner", default=OWNER, help=f"owner of both repositories (default: {OWNER})")
    add("--yes", action="store_true", help="do not ask")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    model, codec = (
        replace(part, folder=folder) for part, folder in zip(PARTS, (args.model, args.codec))
    )
    parts = {"model": (model,), "codec": (codec,), None: (model, codec)}[args.only]
    if not download(parts, args.owner, (lambda _: True) if args.yes else ask):
        sys.exit("Nothing was fetched.")
    print(f"Done. Check them with: python -m scripts.doctor {args.model} {args.codec}")


if __name__ == "__main__":
    run_command(main, "Stopped; the same command goes on from here.")
