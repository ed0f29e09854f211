"""Fetch the published MOSS-Speech weights: `python -m scripts.download`.

Says what will come, how large it is and what is known of its licence, and asks first (`--yes`
answers). Both repositories are pinned to one revision each; only files that are read here are
fetched, no code among them. A download that broke off goes on where it stopped. Every large file is
compared with its published SHA-256. The environment variable HF_ENDPOINT names a mirror of the hub.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moss_engine.api.errors import ConfigError, MissingPackageError, MossError
from moss_engine.config import REPO_ROOT
from moss_engine.models.manifest import file_digest
from scripts.command import make_parser, run_command
from scripts.disk import writing_to

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
"""What a place says that takes no files."""


@dataclass(frozen=True)
class Part:
    """One repository and patterns of the file names wanted of it, at least one match each."""

    name: str
    revision: str
    folder: Path
    patterns: tuple[str, ...]


PARTS = (
    Part("MOSS-Speech", "cff025bb41d8459d59abac0b5e44aba7f659ec9e", MODEL_FOLDER,
         (r"config\.json", r"tokenizer\.json", r"model\.safetensors\.index\.json",
         r"model-\d+-of-\d+\.safetensors")),
    Part("MOSS-Speech-Codec", "eeec733e4e1dea7da444d332d8e1621ef257414c", CODEC_FOLDER,
         (r"config\.json", r"preprocessor_config\.json", r"model\.safetensors",
         r"flow/config\.yaml", r"flow/flow-chunk-5\.pt", r"flow/hift\.pt",
         r"flow/campplus\.onnx")),
)  # fmt: skip


@dataclass(frozen=True)
class RemoteFile:
    """`sha256` is known for files that are stored as large ones."""

    name: str
    num_bytes: int
    sha256: str | None


class Hub:
    """The Hugging Face hub, or the mirror that the environment variable HF_ENDPOINT names. It
    raises MossError where it cannot be reached, and an OSError of `UNWRITABLE` where the folder
    takes no file."""

    def __init__(self) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        try:
            import huggingface_hub
        except ImportError:
            raise MissingPackageError(
                "Downloading needs huggingface_hub; run: pip install huggingface_hub"
            ) from None
        self._hub = huggingface_hub

    def list_files(self, repo: str, revision: str) -> list[RemoteFile]:
        api = self._hub.HfApi()
        info = self._try(lambda: api.repo_info(repo, revision=revision, files_metadata=True), repo)
        return [
            RemoteFile(f.rfilename, f.size or 0, f.lfs.sha256 if f.lfs else None)
            for f in info.siblings or ()
        ]

    def fetch(self, repo: str, revision: str, name: str, folder: Path) -> None:
        self._try(
            lambda: self._hub.hf_hub_download(repo, name, revision=revision, local_dir=folder), repo
        )

    def _try(self, call: Callable[[], Any], repo: str) -> Any:
        try:
            return call()
        except (
            self._hub.errors.RepositoryNotFoundError,
            self._hub.errors.RevisionNotFoundError,
            self._hub.errors.RemoteEntryNotFoundError,
        ) as error:
            raise MossError(
                f"{repo} has no such repository, revision or file any more "
                f"({type(error).__name__}); "
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


def wanted_files(part: Part, offered: list[RemoteFile]) -> list[RemoteFile]:
    """Those of the offered files that are read here; raises MossError where one kind is missing."""
    found = [
        file
        for file in offered
        if any(re.fullmatch(pattern, file.name) for pattern in part.patterns)
    ]
    for pattern in part.patterns:
        if not any(re.fullmatch(pattern, file.name) for file in found):
            raise MossError(
                f"{part.name} offers no file {pattern} at revision {part.revision[:12]}; "
                "it is not the repository that this program reads."
            )
    return found


def is_complete(file: RemoteFile, folder: Path) -> bool:
    """Whether a complete file of that size lies in the folder."""
    path = folder / file.name
    return path.is_file() and path.stat().st_size == file.num_bytes


def plan_text(part: Part, files: list[RemoteFile]) -> str:
    lines = [f"{part.name} at revision {part.revision[:12]} -> {part.folder}"]
    for file in files:
        there = "  (there already)" if is_complete(file, part.folder) else ""
        lines.append(f"  {file.name:<40}{size_text(file.num_bytes):>10}{there}")
    return "\n".join(lines)


def size_text(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.2f} MB"


def download(parts: tuple[Part, ...], owner: str, agree: Callable[[str], bool]) -> bool:
    """Show the plan, ask, fetch and check. False if `agree` said no; raises MossError with the
    remedy."""
    hub = Hub()
    plans = [
        (part, wanted_files(part, hub.list_files(f"{owner}/{part.name}", part.revision)))
        for part in parts
    ]
    missing = {
        part.folder: sum(f.num_bytes for f in files if not is_complete(f, part.folder))
        for part, files in plans
    }
    for part, files in plans:
        print(plan_text(part, files))
    print(f"To fetch: {size_text(sum(missing.values()))}\n\n{LICENCE}\n", flush=True)
    require_space(missing)
    if not agree("Fetch them? [y/N] "):
        return False
    for part, files in plans:
        with writing_to(
            part.folder,
            "make it writable or free some space, or name another place with --model and --codec",
        ):
            for file in files:
                if not is_complete(file, part.folder):
                    hub.fetch(f"{owner}/{part.name}", part.revision, file.name, part.folder)
                check_file(file, part.folder)
    return True


def require_space(needed: Mapping[Path, int]) -> None:
    """Raise ConfigError unless every folder's disk has room for the bytes that its folders need."""
    disks: dict[int, tuple[Path, int]] = {}
    for folder, num_bytes in needed.items():
        place = folder.absolute()
        existing = next(path for path in (place, *place.parents) if path.exists())
        disk = existing.stat().st_dev
        first, before = disks.get(disk, (existing, 0))
        disks[disk] = first, before + num_bytes
    for existing, num_bytes in disks.values():
        free = shutil.disk_usage(existing).free
        if num_bytes > free:
            raise ConfigError(
                f"{existing} has {size_text(free)} free and {size_text(num_bytes)} are needed; "
                "name another place with --model and --codec."
            )


def check_file(file: RemoteFile, folder: Path) -> None:
    """Raise MossError, and remove the file, unless its size and published SHA-256 are right."""
    path, right = folder / file.name, is_complete(file, folder)
    if right and file.sha256 is not None:
        print(f"Checking {path.name} ...", flush=True)
        right = file_digest(path) == file.sha256
    if not right:
        path.unlink(missing_ok=True)
        raise MossError(f"{path} came damaged and was removed; run the command again.")


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
