"""Parity of an engine of the built-in checkpoint: logits, rows and words.

Used by `scripts.bench.lm.trt`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.request import ChannelSampling
from moss_engine.api.tokens import Modality, Row, is_audio_row, spoken_codes
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import stream_parts
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import (
    PLAN_NAME,
    EngineManifest,
    plan_digest,
    read_plan,
    write_engine_manifest,
)
from moss_engine.runtime.sampler import LogitsRuntime
from moss_engine.runtime.tensorrt.library import Library, compute_capability
from moss_engine.runtime.tensorrt.runtime import TrtRuntime, bound_weights
from moss_engine.text.processor import load_processor
from scripts.judges.sentences import EVERYDAY, HARVARD
from scripts.quantize import conversations

NUM_SENTENCES, NUM_ROWS = 20, 200


@dataclass(frozen=True)
class Difference:
    """First difference of a greedy reply; `gap` is between torch's logits of the two ids."""

    sentence: int
    row: int
    gap: float


@dataclass(frozen=True)
class Parity:
    """Against the torch runtime in the same number format. `agreeing_rows` have the same best id in
    the channel that counts, `agreeing_heads` counts both heads' best ids; `largest_difference` is
    that of any logit.
    """

    weights: str
    build_s: float
    plan_mb: float
    rows: int
    agreeing_rows: int
    agreeing_heads: int
    largest_difference: float
    largest_logit: float
    sentences: int
    equal_replies: int
    reply_rows: int
    differences: list[Difference]


def make_engine(
    library: Library,
    config: ModelConfig,
    dtype: str,
    limits: Limits,
    folder: Path,
    weights: Mapping[str, Tensor] | None,
    capability: str,
    effort: int,
) -> tuple[EngineManifest, float]:
    """Build an engine folder; returns its manifest and how long that took."""
    target = BuildTarget(library.backend, "bound" if weights is None else "baked", None, limits)
    start = time.perf_counter()
    built = build_tensorrt_plan(
        config,
        dtype,
        target,
        folder / PLAN_NAME,
        None if weights is None else weights.items(),
        say,
        effort=effort,
    )
    build_s = time.perf_counter() - start
    digest, num_bytes = plan_digest(folder / PLAN_NAME)
    manifest = EngineManifest(
        library.backend,
        "none",
        built.library_version,
        capability,
        dtype,
        target.weights,
        limits.block_size,
        limits.num_blocks,
        limits.max_batch,
        limits.max_step_rows,
        limits.max_seq_len,
        digest,
        num_bytes,
    )
    write_engine_manifest(folder, manifest)
    return manifest, build_s


def measure_parity(
    library: Library, dtype: str, weights: list[str], effort: int, device: torch.device
) -> tuple[list[Parity], dict[str, list[list[Row]]]]:
    """An engine for each of the `weights` "bound" and "baked", and all replies."""
    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    limits = Limits(16, 128, 4, 512, 2048)
    stored = getattr(torch, dtype)
    reference = load_torch_runtime(NANO_CHECKPOINT, limits, device=device, dtype=stored, threads=1)
    wanted = greedy_replies(reference, config, device)
    replies, checks = {"torch": wanted}, []
    layout = dict(stream_parts(NANO_CHECKPOINT, config, stored))
    for bound_or_baked in weights:
        runtime, build_s, plan_mb = _built_runtime(
            library, config, dtype, limits, layout, bound_or_baked, effort, device
        )
        found = replies[bound_or_baked] = greedy_replies(runtime, config, device)
        rows, agreeing, heads, difference, largest = compare_rows(
            reference, runtime, config, wanted
        )
        differences = [
            first_difference(reference, config, i, a, b)
            for i, (a, b) in enumerate(zip(wanted, found, strict=True))
            if a != b
        ]
        checks.append(
            Parity(
                bound_or_baked,
                build_s,
                plan_mb,
                rows,
                agreeing,
                heads,
                difference,
                largest,
                len(wanted),
                len(wanted) - len(differences),
                sum(map(len, wanted)),
                differences,
            )
        )
        runtime.close()
        say(str(checks[-1]))
    return checks, replies


def _built_runtime(
    library: Library,
    config: ModelConfig,
    dtype: str,
    limits: Limits,
    layout: dict[str, Tensor],
    weights: str,
    effort: int,
    device: torch.device,
) -> tuple[TrtRuntime, float, float]:
    """A runtime of an engine that is built now; seconds of the build, megabytes of the plan."""
    baked = layout if weights == "baked" else None
    bound = bound_weights(library, dtype, layout.items(), device) if baked is None else {}
    capability = compute_capability(library, device)
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest, build_s = make_engine(
            library, config, dtype, limits, folder, baked, capability, effort
        )
        info = RuntimeInfo(
            library.backend, library.version, str(device), dtype, "nano", manifest.plan_digest
        )
        runtime = TrtRuntime(
            library, read_plan(folder, manifest), manifest, config, limits, bound, info, device
        )
    return runtime, build_s, manifest.plan_bytes / 1e6


def greedy_replies(
    runtime: LogitsRuntime, config: ModelConfig, device: torch.device
) -> list[list[Row]]:
    """Prompt and reply of every sentence, always the likeliest row."""
    processor = load_processor(NANO_CHECKPOINT, config, 1000)
    best = ChannelSampling(0.0, 0, 1.0, 1.0)
    processor.default_sampling = dataclasses.replace(
        processor.default_sampling, text=best, audio=best
    )
    texts = [*HARVARD, *EVERYDAY][:NUM_SENTENCES]
    return list(conversations(runtime, processor, texts, 400))


def compare_rows(
    reference: LogitsRuntime,
    runtime: LogitsRuntime,
    config: ModelConfig,
    conversations: list[list[Row]],
) -> tuple[int, int, int, float, float]:
    """Both runtimes on the same rows: the prompt at once, then row by row."""
    rows = agreeing = heads = 0
    difference = largest = 0.0
    each = NUM_ROWS // len(conversations)
    for conversation in conversations:
        opened = next(i for i, row in enumerate(conversation) if is_audio_row(row, config.special))
        for end in range(opened, min(opened + each, len(conversation))):
            start = 0 if end == opened else end - 1
            ours, theirs = (
                _logits(which, conversation, start, end) for which in (runtime, reference)
            )
            equal = [bool(a.argmax() == b.argmax()) for a, b in zip(ours, theirs, strict=True)]
            modality = (
                Modality.AUDIO if is_audio_row(conversation[end], config.special) else Modality.TEXT
            )
            rows += 1
            agreeing += equal[modality is Modality.AUDIO]
            heads += sum(equal)
            difference = max(
                difference, *((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
            )
            largest = max(largest, *(b.abs().max().item() for b in theirs))
    return rows, agreeing, heads, difference, largest


def first_difference(
    reference: LogitsRuntime, config: ModelConfig, index: int, wanted: list[Row], found: list[Row]
) -> Difference:
    """Of two different rows' lists that begin alike."""
    row = next(i for i, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1])
    logits = _logits(reference, wanted, 0, row)
    gaps = [
        (channel[0, a] - channel[0, b]).item()
        for channel, a, b in zip(logits, wanted[row], found[row], strict=True)
        if a != b
    ]
    return Difference(index, row, max(gaps))


def _logits(runtime: LogitsRuntime, rows: Sequence[Row], start: int, end: int) -> Logits:
    """Behind row end - 1, with those before `start` in the pool."""
    blocks = tuple(range(-(-end // runtime.limits.block_size)))
    return runtime.forward(
        ScheduledBatch((ScheduledSequence(tuple(rows[start:end]), start, blocks, True),))
    )


def equal_words(replies: Mapping[str, Sequence[Sequence[Sequence[int]]]]) -> dict[str, int]:
    """Number of replies of each engine that a recogniser hears as the torch runtime's.

    replies: rows of (text, audio) as `measure_parity` gives them. Raises MissingPackageError
    without the recogniser.
    """
    from moss_engine.codec.load import load_codec
    from scripts.judges.words import Recogniser, spoken_words

    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    codec, recogniser = load_codec(NANO_CHECKPOINT), Recogniser()

    def words(reply: Sequence[Sequence[int]]) -> list[str]:
        stream = codec.open_stream()
        codes = spoken_codes([Row(*row) for row in reply], config.special)
        parts = [torch.from_numpy(part) for part in (stream.push(codes), stream.flush())]
        return spoken_words(recogniser.transcribe(torch.cat(parts).numpy(), codec.sample_rate_hz))

    heard = {name: [words(reply) for reply in of] for name, of in replies.items()}
    return {
        name: sum(a == b for a, b in zip(of, heard["torch"], strict=True))
        for name, of in heard.items()
    }


def say(line: str) -> None:
    print(line, flush=True)
