"""Stage 5: the speech through the codec's encoder -> codes.npz.

    python -m scripts.nano.codes --work WORK

codes.npz: ids [n], code_offsets [n + 1], codes uint16 [total], word_offsets [n + 1], word_starts
uint16 [total words]. `word_starts` are counted in codes from the utterance's first; word k is the
k-th item of `spoken.split()`. The first word starts at code 0, so that the onset that lies before
the teacher's first phoneme belongs to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import torch

from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano import NanoFsq, load_fsq
from moss_engine.runtime.make import resolve_device
from scripts.nano.speech.shards import SAMPLE_RATE_HZ, SAMPLES_PER_CODE, read_speech
from scripts.nano.stage import stage_parser

MAX_SAMPLES = 8_000_000
"""Most samples of a batch, padding included."""


def code_starts(word_starts_s: tuple[float, ...], num_codes: int) -> np.ndarray:
    """Word starts in seconds -> the nearest codes, uint16: the first is 0, none is smaller than the
    one before it, and all lie inside the utterance."""
    codes_per_s = SAMPLE_RATE_HZ / SAMPLES_PER_CODE
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
def encode(fsq: NanoFsq, pcm: list[np.ndarray], device: torch.device) -> list[np.ndarray]:
    """int16 waves -> uint16 codes of each; silence fills a wave up to whole codes."""
    codes: list[np.ndarray] = [np.empty(0, np.uint16)] * len(pcm)
    counts = [-(-len(wave) // SAMPLES_PER_CODE) for wave in pcm]
    for batch in batches_of([count * SAMPLES_PER_CODE for count in counts], MAX_SAMPLES):
        padded = np.zeros((len(batch), max(counts[i] for i in batch) * SAMPLES_PER_CODE), np.int16)
        for row, i in enumerate(batch):
            padded[row, : len(pcm[i])] = pcm[i]
        wave = torch.from_numpy(padded).to(device).float() / 32768.0
        rows = fsq.codes_of_mel(log_mel(wave, fsq.config.mel)).cpu().numpy()
        for row, i in enumerate(batch):
            codes[i] = rows[row, : counts[i]].astype(np.uint16)
    return codes


def main() -> None:
    parser = stage_parser("codes", __doc__)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device, began = resolve_device(args.device), time.monotonic()
    fsq = load_fsq(args.work / "codec", device)
    assert fsq.config.samples_per_code == SAMPLES_PER_CODE
    found: list[tuple[int, np.ndarray, np.ndarray]] = []
    for shard in read_speech(args.work):
        for utterance, codes in zip(shard, encode(fsq, [u.pcm for u in shard], device)):
            found.append((utterance.id, codes, code_starts(utterance.word_starts_s, len(codes))))
    found.sort(key=lambda item: item[0])
    codes = np.concatenate([item[1] for item in found])
    np.savez(
        args.work / "codes.npz",
        ids=np.asarray([item[0] for item in found], np.int64),
        code_offsets=np.cumsum([0, *(len(item[1]) for item in found)]),
        codes=codes,
        word_offsets=np.cumsum([0, *(len(item[2]) for item in found)]),
        word_starts=np.concatenate([item[2] for item in found]),
    )
    figures = {
        "utterances": len(found),
        "codes": len(codes),
        "distinct_codes": len(np.unique(codes)),
        "wall_s": round(time.monotonic() - began, 1),
    }
    print("codes: " + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
