"""Checkpoint folders with one damaged file: every one must be refused in a sentence, or be fine."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.checkup import check_network
from moss_engine.codec.files import read_config
from moss_engine.config import REPO_ROOT

NANO = REPO_ROOT / "assets" / "nano"
SMALL = ("config.json", "generation_config.json", "processor_config.json", "codec/config.json")
KINDS = ("bytes", "cut", "nested", "empty", "pipe", "number", "missing")


def damage(path: Path, kind: str, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if kind in ("missing", "pipe"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        return
    if kind == "bytes":
        for _ in range(chance.randint(1, 40)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind == "nested":
        data = bytearray(b"[" * 100_000)
    elif kind == "empty":
        data.clear()
    else:
        digits = [i for i, value in enumerate(data) if chr(value).isdigit()]
        at = chance.choice(digits)
        data[at : at + 1] = chance.choice([b"1e9", b"-1", b"NaN", b"null", b"99999999999999999999"])
    path.write_bytes(data)


def measure_damage(count: int, seed: int = 0) -> dict[str, Any]:
    """`count` damaged folders: how many were refused or found fine, what else became of them, and
    the longest time that one took."""
    chance = random.Random(seed)
    refused, fine, others, longest_s = 0, 0, [], 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(count):
            folder = Path(scratch) / "nano"
            shutil.copytree(NANO, folder, ignore=shutil.ignore_patterns("manifest.json"))
            name, kind = chance.choice(SMALL), KINDS[number % len(KINDS)]
            damage(folder / name, kind, chance)
            began_s = time.monotonic()
            try:
                faulty = any(finding.is_fault for finding in check_network(folder))
                read_config(folder / "codec")
                refused, fine = refused + faulty, fine + (not faulty)
            except MossError:
                refused += 1
            except Exception as error:
                others.append(f"{kind} {name}: {error!r}")
            longest_s = max(longest_s, time.monotonic() - began_s)
            shutil.rmtree(folder)
    return {
        "folders": count,
        "refused": refused,
        "fine": fine,
        "tracebacks": others,
        "longest_s": round(longest_s, 2),
    }
