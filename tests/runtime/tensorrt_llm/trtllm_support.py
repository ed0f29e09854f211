"""What the tests of the tensorrt_llm runtime share: a machine with the emulated plugin, and engines
on it."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moss_engine.api.tokens import Row
from moss_engine.config import EngineConfig
from moss_engine.export import tensorrt_llm as trtllm_build
from moss_engine.models.checkpoint import expected_tensors, load_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import Limits, Logits, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import (
    PLAN_NAME,
    EngineManifest,
    plan_digest,
    write_engine_manifest,
)
from moss_engine.runtime.tensorrt import library as trt_library
from moss_engine.runtime.tensorrt_llm import load as trtllm
from moss_engine.runtime.tensorrt_llm.load import load_trtllm_runtime
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime
from tests.runtime.runtime_contract import LIMITS
from tests.runtime.tensorrt_llm.trtllm_emulator import TENSORRT, Plugin, reference_engine

CPU = torch.device("cpu")


@contextlib.contextmanager
def emulated(folder: Path) -> Iterator[Path]:
    """Inside, TensorRT and the plugin are the emulator's; gives the file that stands for the
    plugin's library."""
    plugin = folder / "libnvinfer_plugin_tensorrt_llm.so"
    plugin.write_bytes(b"a plugin library")
    with pytest.MonkeyPatch.context() as patch:
        for module in (trtllm, trtllm_build):
            patch.setattr(module, "find_plugin", lambda named: plugin)
        patch.setattr(
            trtllm, "load_library", lambda backend: trt_library.describe(backend, TENSORRT)
        )
        patch.setattr(trtllm, "compute_capability", lambda library, device: "8.9")
        patch.setattr(trtllm, "load_plugin", lambda path: None)
        yield plugin


def write_engine(
    folder: Path, plan: bytes, checkpoint: Path, plugin: Path, limits: Limits = LIMITS
) -> EngineManifest:
    folder.mkdir(exist_ok=True)
    (folder / PLAN_NAME).write_bytes(plan)
    digest, num_bytes = plan_digest(folder / PLAN_NAME)
    manifest = EngineManifest(
        "tensorrt_llm",
        checkpoint_digest(checkpoint),
        str(TENSORRT.__version__),
        "8.9",
        "float32",
        "baked",
        **dataclasses.asdict(limits),
        plan_digest=digest,
        plan_bytes=num_bytes,
        plugin_digest=plan_digest(plugin)[0],
    )
    write_engine_manifest(folder, manifest)
    return manifest


def open_runtime(
    checkpoint: Path,
    folder: Path,
    library: Path,
    release: str,
    limits: Limits = LIMITS,
    device: torch.device = CPU,
) -> TrtLlmRuntime:
    """An engine of a release, from a file to a runtime, with a pool that the emulator may touch."""
    config = ModelConfig.from_file(checkpoint / "config.json")
    tensors = load_tensors(checkpoint, expected_tensors(config), dtype=torch.float32)
    plugin = Plugin(
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        limits.block_size,
        torch.float32,
    )
    plan = reference_engine(release, config, tensors, limits, plugin)
    write_engine(folder, plan, checkpoint, library, limits)
    options = EngineConfig(checkpoint=checkpoint, runtime="tensorrt_llm", engine=folder)
    runtime = load_trtllm_runtime(options, limits, device)
    plugin.memory.append(runtime._pool)
    return runtime


def conversation(runtime: Runtime) -> list[Logits]:
    """Both phases, a chunked prompt, a second turn, a mixed step, tables out of order: what a
    serving day has."""
    chance = random.Random(5)
    vocabulary = 40
    rows = [
        [Row(chance.randrange(7, vocabulary), chance.randrange(8)) for _ in range(30)]
        for _ in range(2)
    ]
    tables = [(9, 2, 77, 30, 5, 61, 14, 3), (50, 4, 8, 100, 21, 66, 7, 12)]

    def part(which: int, start: int, end: int, sample: bool = True) -> ScheduledSequence:
        return ScheduledSequence(tuple(rows[which][start:end]), start, tables[which], sample)

    steps = [
        [part(0, 0, 8, False)],
        [part(0, 8, 14)],
        [part(0, 14, 15), part(1, 0, 10)],
        [part(1, 10, 11), part(0, 15, 16)],
        [part(0, 16, 17), part(1, 11, 21)],
        [part(1, 21, 22), part(0, 17, 18)],
    ]
    found = []
    for step in steps:
        logits = runtime.forward(ScheduledBatch(tuple(step)))
        found.append(Logits(logits.text.clone(), logits.audio.clone()))
    return found


def expected_conversation(checkpoint: Path) -> list[Logits]:
    return conversation(
        load_torch_runtime(checkpoint, LIMITS, device=CPU, dtype=torch.float32, threads=1)
    )


def agrees(found: list[Logits], expected: list[Logits]) -> bool:
    return all(
        torch.allclose(one, other, rtol=0, atol=2e-5)
        for ours, theirs in zip(found, expected, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )
