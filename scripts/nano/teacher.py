"""Teacher speech with word times: prompts.jsonl.gz -> speech/ (see speech.py for the files).

The teacher is hibari-tts, voice heart; the second voice is made of it by `derived_voice`. Its
network rounds a duration for every phoneme, in units of 25 ms; that tensor is an inner one of the
ONNX file, and is made an output by appending a few bytes to it. Word starts follow from it without
any alignment. The answers of the small talk come first, since they are all needed; of the texts to
read each shard takes every n-th, so that its first finished shards are a fair sample.

    python -m scripts.nano.teacher --work DIR --processes 16
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from moss_engine.api.errors import CheckpointError, ConfigError
from scripts.nano.speech.shards import SAMPLE_RATE_HZ, hours_on_disk, speech_dir, write_atomically
from scripts.nano.speech.teacher_voice import Teacher, UnusablePromptError
from scripts.nano.tokenizer import read_prompts

_teacher: Teacher | None = None


def _start_worker() -> None:
    global _teacher
    _teacher = Teacher()


def _make_shard(task: tuple[Path, int, list[dict[str, Any]], int]) -> float:
    """Write one shard, its index last; -> hours of speech in it."""
    directory, number, prompts, seed = task
    assert _teacher is not None
    index = directory / f"shard-{number:05d}.json"
    pcm_path = index.with_suffix(".s16")
    utterances, dropped, offset = [], [], 0
    with open(pcm_path, "wb") as file:
        for prompt in prompts:
            text = prompt["spoken"]
            try:
                pcm, starts, labels = _teacher.say(prompt, seed + prompt["id"])
            except UnusablePromptError as error:
                dropped.append([prompt["id"], str(error)])
                continue
            file.write(pcm.tobytes())
            words = [
                [word, round(start, 4)] for word, start in zip(text.split(), starts, strict=True)
            ]
            utterances.append(
                {
                    "id": prompt["id"],
                    "split": prompt["split"],
                    "offset": offset,
                    "samples": len(pcm),
                    "words": words,
                    "phonemes": base64.b64encode(labels.tobytes()).decode("ascii"),
                }
            )
            offset += len(pcm)
    write_atomically(
        index, json.dumps({"utterances": utterances, "dropped": dropped}, ensure_ascii=False)
    )
    return offset / SAMPLE_RATE_HZ / 3600


def plan(work: Path, prompts_per_shard: int) -> tuple[list[list[dict[str, Any]]], str]:
    """The prompts of every shard, and a digest of the whole plan."""
    path = work / "prompts.jsonl.gz"
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing: run python -m scripts.nano.prompts --work {work} first."
        )
    prompts = list(read_prompts(work))
    chat = [prompt for prompt in prompts if prompt["mode"] == "chat"]
    read = [prompt for prompt in prompts if prompt["mode"] != "chat"]
    shards = []
    for part in (chat, read):
        count = -(-len(part) // prompts_per_shard)
        shards += [part[k::count] for k in range(count)]
    return shards, hashlib.sha256(path.read_bytes() + str(len(shards)).encode()).hexdigest()


def summarise(directory: Path, wall_s: float) -> dict[str, Any]:
    indexes = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(directory.glob("shard-*.json"))
    ]
    kept = sum(len(index["utterances"]) for index in indexes)
    reasons: dict[str, int] = {}
    for index in indexes:
        for _, reason in index["dropped"]:
            reasons[reason] = reasons.get(reason, 0) + 1
    dropped = sum(reasons.values())
    hours = (
        sum(u["samples"] for index in indexes for u in index["utterances"]) / SAMPLE_RATE_HZ / 3600
    )
    return {
        "utterances": kept,
        "hours": round(hours, 3),
        "dropped": dropped,
        "dropped_share": round(dropped / max(1, kept + dropped), 5),
        "reasons": reasons,
        "wall_s_of_this_run": round(wall_s, 1),
    }


def run(
    work: Path, *, processes: int, hours: float, until_s: float, prompts_per_shard: int, seed: int
) -> bool:
    """Make the missing shards; -> whether all are there (or `hours` of them)."""
    started = time.monotonic()
    shards, digest = plan(work, prompts_per_shard)
    directory = speech_dir(work)
    directory.mkdir(parents=True, exist_ok=True)
    plan_path = directory / "plan.txt"
    if plan_path.exists() and plan_path.read_text() != digest:
        raise ConfigError(
            f"{directory} was made from other prompts; move it away, or bring back its prompts."
        )
    write_atomically(plan_path, digest)
    missing = [k for k in range(len(shards)) if not (directory / f"shard-{k:05d}.json").exists()]
    total_h = already_h = hours_on_disk(work)
    print(
        f"teacher: {len(missing)} of {len(shards)} shards to make, {already_h:.2f} h on disk",
        flush=True,
    )
    complete = not missing or total_h >= hours
    if not complete:
        tasks = [(directory, k, shards[k], seed) for k in missing]
        with multiprocessing.get_context("spawn").Pool(
            processes, initializer=_start_worker
        ) as pool:
            for count, shard_h in enumerate(pool.imap_unordered(_make_shard, tasks), 1):
                total_h += shard_h
                wall_s = time.monotonic() - started
                if count % (4 * processes) == 0 or count == len(tasks):
                    speed = (total_h - already_h) * 3600 / wall_s
                    print(
                        f"teacher: {wall_s:6.1f} s  {total_h:7.2f} h  {speed:6.0f} x real time",
                        flush=True,
                    )
                complete = count == len(tasks) or total_h >= hours
                if complete or wall_s > until_s:
                    break
    figures = summarise(directory, time.monotonic() - started)
    print("teacher: " + json.dumps(figures), flush=True)
    if complete:
        write_atomically(directory / "done.json", json.dumps(figures))
    return complete


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.teacher",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--hours", type=float, default=float("inf"), help="stop once there are so many"
    )
    parser.add_argument(
        "--until-s",
        type=float,
        default=float("inf"),
        help="stop after so many; a later call goes on",
    )
    parser.add_argument("--prompts-per-shard", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    complete = run(
        options.work,
        processes=options.processes,
        hours=options.hours,
        until_s=options.until_s,
        prompts_per_shard=options.prompts_per_shard,
        seed=options.seed,
    )
    raise SystemExit(0 if complete else 3)


if __name__ == "__main__":
    main()
