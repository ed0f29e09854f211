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

import numpy as np

from moss_engine.api.errors import CheckpointError, ConfigError, MissingPackageError
from scripts.nano.speech.derived_voice import TRACT, convert, teacher_speed
from scripts.nano.speech.pronunciations import said_otherwise
from scripts.nano.speech.shards import SAMPLE_RATE_HZ, hours_on_disk, speech_dir, write_atomically
from scripts.nano.speech.voices import ADA, BEN
from scripts.nano.speech.word_times import (
    DURATION_UNIT_SAMPLES,
    code_labels,
    join_words,
    speech_bounds,
    spelled_a,
    word_starts_s,
)
from scripts.nano.tokenizer import read_prompts

DURATION_TENSOR = "/Clip_output_0"
MAX_PHONEMES = 400
CODE_SAMPLES = 960
"""A code, 40 ms: sentences joined to one utterance begin with a code."""
SPELLED_A = "ˈA"
ONSET_S = 0.05
"""A word is heard this much before its first phoneme's nominal start (median of 73 words after a
pause, at -40 dB)."""


class UnusablePromptError(Exception):
    """The teacher cannot say this prompt with known word times; the message is the reason that is
    counted."""


def with_output(model: bytes, tensor: str) -> bytes:
    """An ONNX file with one more graph output of float32.

    Protobuf messages merge when their bytes are joined, so this appends
    ModelProto{graph{output{name, float}}}.
    """

    def field(number: int, payload: bytes) -> bytes:
        assert len(payload) < 128
        return bytes([number << 3 | 2, len(payload)]) + payload

    float32_type = field(2, field(1, b"\x08\x01"))
    return model + field(7, field(12, field(1, tensor.encode()) + float32_type))


class Teacher:
    """hibari with word times; one onnxruntime thread."""

    def __init__(self) -> None:
        try:
            import onnxruntime
            from hibari.tts import Hibari  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingPackageError(
                "The teacher needs hibari-tts and onnxruntime: pip install hibari-tts==0.2.1"
            ) from error
        self._hibari = Hibari(voice="heart", threads=1)
        self._known = frozenset(self._hibari.vocab)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            with_output(Path(self._hibari.model_path).read_bytes(), DURATION_TENSOR),
            options,
            providers=["CPUExecutionProvider"],
        )

    def pieces(self, sentence: str, forced: dict[int, str]) -> list[tuple[str, bool]]:
        """Phonemes of the sentence piece by piece, each with whether it ends a written word.

        `forced` are phonemes of words by their place in the sentence, where the teacher's own would
        be another sense.
        """
        g2p = self._hibari.g2p
        tokens = g2p.tokenize(sentence.replace("’", "'"))
        for index in spelled_a([token.text for token in tokens]):
            tokens[index].phonemes, tokens[index].rating = SPELLED_A, 5
        word, begins = 0, True
        for token in tokens:
            said = forced.get(word) if begins else None
            said = said or (said_otherwise(token.text) if token.phonemes is None else None)
            if said is not None:
                token.phonemes, token.rating = said, 5
            begins = begins and said is None and not token.text[:1].isalnum()
            if token.whitespace:
                word, begins = word + 1, True
        tokens = g2p.phonemize_tokens(tokens)
        return [(token.phonemes or "", bool(token.whitespace)) for token in tokens]

    def say_sentence(
        self,
        sentence: str,
        voice: str,
        speed: float,
        rng: np.random.Generator,
        forced: dict[int, str],
    ) -> tuple[np.ndarray, list[float], np.ndarray]:
        """-> float32 [samples] without the silence around it, the start of each written word in it
        in seconds, and the phoneme of every code."""
        from hibari import dsp  # pyright: ignore[reportMissingImports]

        spoken = join_words(self.pieces(sentence, forced), self._known)
        if len(spoken.phonemes) > MAX_PHONEMES:
            raise UnusablePromptError("sentence too long")
        ids = np.asarray([self._hibari.ids(spoken.phonemes)], np.int64)
        asked = teacher_speed(speed) if voice == BEN else speed
        outputs: Any = self._session.run(
            None, {"ids": ids, "speed": np.asarray([asked], np.float32)}
        )
        *spectrum, durations = outputs
        wave = dsp.synth(*(part[0] for part in spectrum), rng)  # pyright: ignore[reportCallIssue]
        durations = durations.reshape(-1)
        assert len(durations) == ids.shape[1] and round(
            float(durations.sum())
        ) * DURATION_UNIT_SAMPLES == len(wave)
        if voice == BEN:
            wave, durations = convert(wave[None], spectrum[-1][0]).waves[0], durations / TRACT
        first, end = speech_bounds(wave)
        if end == 0:
            raise UnusablePromptError("silent")
        shift_s = ONSET_S + first / SAMPLE_RATE_HZ
        starts = [
            max(0.0, start_s - shift_s) for start_s in word_starts_s(durations, spoken.word_begins)
        ]
        return (
            wave[first:end],
            starts,
            code_labels(ids[0], spoken.phonemes, durations, shift_s, end - first),
        )

    def say(self, row: dict[str, Any], seed: int) -> tuple[np.ndarray, list[float], np.ndarray]:
        """A row of prompts -> int16 [samples], one start in seconds for each item of text.split(),
        phonemes of codes."""
        rng = np.random.default_rng(seed)
        forced = {int(place): said for place, said in row.get("forced", {}).items()}
        waves: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        starts: list[float] = []
        begin = 0
        for sentence in self._hibari.split_sentences(row.get("voiced", row["spoken"])):
            here = {
                place - len(starts): said for place, said in forced.items() if place >= len(starts)
            }
            wave, sentence_starts, said = self.say_sentence(
                sentence, row.get("voice", ADA), row["speed"], rng, here
            )
            wave = wave[: len(wave) // CODE_SAMPLES * CODE_SAMPLES]
            starts += [begin / SAMPLE_RATE_HZ + start for start in sentence_starts]
            waves.append(wave)
            labels.append(said[: len(wave) // CODE_SAMPLES])
            begin += len(wave)
        if len(starts) != len(row["spoken"].split()):
            raise UnusablePromptError("word count differs")
        pcm = np.clip(np.concatenate(waves), -1.0, 1.0) * 32767.0
        return pcm.astype("<i2"), starts, np.concatenate(labels)


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
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
