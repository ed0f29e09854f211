"""Speech -> codes: every utterance of speech/ through the trained encoder into codes.npz.

    python -m scripts.nano.tokenise --work DIR [--hours 25]

Encodes what is there once there are `--hours` of speech, or all of it once the teacher has
finished; with `--every-s` it goes on with what comes later. codes.npz: ids [n], code_offsets [n +
1], codes uint16 [total], word_offsets [n + 1], word_starts uint16 [total words]. `word_starts` are
counted in codes from the utterance's first; word k is the k-th item of `spoken.split()`. The first
word starts at code 0, so that the onset that lies before the teacher's first phoneme belongs to it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano.fsq import NanoFsq, load_fsq
from scripts.nano.speech.shards import (
    SAMPLE_RATE_HZ,
    Utterance,
    read_index,
    shard_indexes,
    teacher_is_done,
    wait_for_speech,
)

READ_AHEAD_SHARDS = 6
SAMPLES_PER_CODE = 960


def code_starts(word_starts_s: tuple[float, ...], num_codes: int, codes_per_s: float) -> np.ndarray:
    """Word starts in seconds -> uint16 codes: the first word at 0, the others nearest, never
    falling, all inside."""
    nearest = np.floor(np.asarray(word_starts_s) * codes_per_s + 0.5).astype(np.int64)
    nearest[:1] = 0
    return np.maximum.accumulate(nearest).clip(0, num_codes - 1).astype(np.uint16)


def batches_of(lengths: list[int], max_samples: int) -> Iterator[list[int]]:
    """Indices of the utterances grouped by length, so that a batch, padded, holds at most
    `max_samples` (or one)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > max_samples:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@torch.inference_mode()
def encode(
    model: NanoFsq, pcm: list[np.ndarray], device: torch.device, max_samples: int = 8_000_000
) -> list[np.ndarray]:
    """int16 waves -> uint16 codes of each; a wave is filled up with silence to whole codes."""
    per_code = model.config.samples_per_code
    codes: list[np.ndarray] = [np.empty(0, np.uint16)] * len(pcm)
    counts = [-(-len(wave) // per_code) for wave in pcm]
    for batch in batches_of([count * per_code for count in counts], max_samples):
        padded = np.zeros((len(batch), max(counts[i] for i in batch) * per_code), np.int16)
        for row, i in enumerate(batch):
            padded[row, : len(pcm[i])] = pcm[i]
        wave = torch.from_numpy(padded).to(device).float() / 32768.0
        found: Tensor = model.codes_of_mel(log_mel(wave, model.config.mel))
        rows = found.to(torch.int32).cpu().numpy()
        for row, i in enumerate(batch):
            codes[i] = rows[row, : counts[i]].astype(np.uint16)
    return codes


def read_shard(index: Path) -> tuple[list[Utterance], list[np.ndarray]]:
    samples = np.fromfile(index.with_suffix(".s16"), dtype="<i2")
    utterances = list(read_index(index))
    return utterances, [samples[u.offset : u.offset + u.num_samples] for u in utterances]


def read_shards(indexes: list[Path]) -> Iterator[tuple[list[Utterance], list[np.ndarray]]]:
    """Shards, read ahead in threads."""
    with ThreadPoolExecutor(READ_AHEAD_SHARDS) as threads:
        pending = [threads.submit(read_shard, index) for index in indexes[:READ_AHEAD_SHARDS]]
        for index in [*indexes[READ_AHEAD_SHARDS:], *[None] * READ_AHEAD_SHARDS]:
            if pending:
                yield pending.pop(0).result()
            if index is not None:
                pending.append(threads.submit(read_shard, index))


class Encoded:
    """The codes of every shard so far; new shards are added, and codes.npz is written anew."""

    def __init__(self, work: Path, model: NanoFsq | None, device: torch.device):
        self.work, self.model, self.device = work, model, device
        self.codes_per_s = SAMPLE_RATE_HZ / SAMPLES_PER_CODE
        assert model is None or model.config.samples_per_code == SAMPLES_PER_CODE
        self.known: set[Path] = set()
        self.found: list[tuple[int, np.ndarray, np.ndarray]] = []

    def add_new(self, at_most: int | None = None) -> int:
        """Encode shards that are new; -> how many. Without a model all codes are 0: only lengths
        are right."""
        indexes = [index for index in shard_indexes(self.work) if index not in self.known][:at_most]
        self.known.update(indexes)
        for utterances, pcm in read_shards(indexes):
            if self.model is None:
                found = [np.zeros(-(-len(wave) // SAMPLES_PER_CODE), np.uint16) for wave in pcm]
            else:
                found = encode(self.model, pcm, self.device)
            for utterance, codes in zip(utterances, found, strict=True):
                starts = code_starts(utterance.word_starts_s, len(codes), self.codes_per_s)
                self.found.append((utterance.id, codes, starts))
        return len(indexes)

    def write(self) -> dict[str, float]:
        """codes.npz of all that was found; -> figures."""
        if not self.found:
            raise CheckpointError(
                f"{self.work} holds no speech: run python -m scripts.nano.teacher first."
            )
        found = sorted(self.found, key=lambda item: item[0])
        codes = np.concatenate([item[1] for item in found])
        partial = self.work / "codes.part.npz"
        np.savez(
            partial,
            ids=np.asarray([item[0] for item in found], np.int64),
            code_offsets=np.cumsum([0, *(len(item[1]) for item in found)]),
            codes=codes,
            word_offsets=np.cumsum([0, *(len(item[2]) for item in found)]),
            word_starts=np.concatenate([item[2] for item in found]),
        )
        partial.replace(self.work / "codes.npz")
        share = np.bincount(codes) / len(codes)
        used = share[share > 0]
        return {
            "utterances": len(found),
            "codes": len(codes),
            "hours": round(len(codes) / self.codes_per_s / 3600, 3),
            "distinct_codes": len(used),
            "entropy_bits": round(float(-(used * np.log2(used)).sum()), 3),
            "words": int(sum(len(item[2]) for item in found)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.tokenise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--hours", type=float, default=0.0, help="wait until the teacher has said so many, or all"
    )
    parser.add_argument(
        "--every-s", type=float, help="go on with what the teacher says, so often, until it is done"
    )
    parser.add_argument(
        "--first-shards",
        type=int,
        help="with --every-s: write codes.npz first after so many shards",
    )
    parser.add_argument("--sign", type=Path, help="make this file once codes.npz is written")
    parser.add_argument(
        "--lengths-only", action="store_true", help="no codec yet: codes are 0, lengths are right"
    )
    options = parser.parse_args()
    wait_for_speech(options.work, options.hours)
    device = torch.device(options.device)
    model = None if options.lengths_only else load_fsq(options.work / "codec", device)
    encoded = Encoded(options.work, model, device)
    first = options.first_shards
    while True:
        started, done = time.monotonic(), teacher_is_done(options.work)
        added = encoded.add_new(first)
        if added or not options.every_s:
            took_s = round(time.monotonic() - started, 1)
            print("tokenise: " + json.dumps(encoded.write() | {"wall_s": took_s}), flush=True)
        if options.sign is not None:
            options.sign.touch()
        if not options.every_s or (done and first is None):
            return
        if first is None:
            time.sleep(max(0.0, options.every_s - (time.monotonic() - started)))
        first = None


if __name__ == "__main__":
    main()
