"""Engine files of plain TensorRT on this GPU: parity with torch, and speed at the published size.

`nano` builds an engine of the built-in checkpoint and compares its logits row by row, and greedy
replies, with the torch runtime in the same number format. `published` builds, loads and times the
published layout with random weights.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.layout import parts
from moss_engine.runtime.base import Limits, ScheduledBatch
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import PLAN_NAME, read_plan
from moss_engine.runtime.make import make_limits
from moss_engine.runtime.tensorrt.engine import Library, load_library
from moss_engine.runtime.tensorrt.runtime import EngineFile, TrtRuntime, load_trt_runtime
from moss_engine.text.processor import load_processor
from scripts import build_engine
from scripts.bench.agreement import led
from scripts.bench.common import Report, names_of
from scripts.bench.gpu import CONTEXT_ROWS, Needs, measure, sequence
from scripts.quantize import answers, prompts_from

PARTS = ("nano", "published")
SENTENCES, REPLY_ROWS = 20, 400
FILLS = ((64, 0), (128, 0), (512, 0), (64, 2000))
INIT_STD = 0.02


@dataclass(frozen=True)
class Parity:
    """An engine against the torch runtime in the same number format, in the channel that counts: in
    how many rows the best id is the same, and the largest difference of any logit."""

    build_s: float
    plan_mb: float
    rows: int
    agreeing_rows: int
    largest_difference: float
    largest_logit: float
    sentences: int
    equal_replies: int


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--parts", type=names_of(PARTS), default=[*PARTS], metavar="PART,...",
        help="what to measure (nano,published)")  # fmt: skip
    add("--backend", default="tensorrt", choices=("tensorrt", "tensorrt_rtx"),
        help="library to build and run with (tensorrt)")  # fmt: skip
    add("--dtype", default="bfloat16", choices=("float32", "bfloat16"),
        help="number format of the engines (bfloat16)")  # fmt: skip
    add("--beside", type=Path, metavar="FILE",
        help="figures of the bench full_size of the same hour, kept with these")  # fmt: skip


def run(args: argparse.Namespace, report: Report) -> None:
    library, device = load_library(args.backend), torch.device("cuda")
    report.add(
        device=torch.cuda.get_device_name(device),
        library=f"{library.backend} {library.version}",
        torch=torch.__version__,
        dtype=args.dtype,
    )
    if "nano" in args.parts:
        report.add(parity=[asdict(measure_parity(args.backend, args.dtype, device))])
    if "published" in args.parts:
        measure_published(library, args.dtype, device, report)
    if args.beside:
        report.add(torch_runtime=json.loads(args.beside.read_text(encoding="utf-8")))


def measure_parity(backend: str, dtype: str, device: torch.device) -> Parity:
    """Feed an engine the rows of the torch runtime's greedy replies, and compare the logits."""
    options = EngineConfig(runtime=backend, kv_rows=2048)
    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    limits, stored = make_limits(options, config), getattr(torch, dtype)
    reference = load_torch_runtime(NANO_CHECKPOINT, limits, device=device, dtype=stored, threads=1)
    processor, texts = load_processor(NANO_CHECKPOINT, config, 1000), prompts_from(None, SENTENCES)
    wanted = list(answers(reference, processor, texts, REPLY_ROWS, greedy=True))
    exact = led(reference, config.special, wanted)
    with TemporaryDirectory() as name:
        engine = Path(name) / "engine"
        made: Any = build_engine.build(NANO_CHECKPOINT, engine, backend, dtype, None, options)
        runtime = load_trt_runtime(replace(options, engine=engine), limits, device)
    replies = answers(runtime, processor, texts, REPLY_ROWS, greedy=True)
    equal = sum(a.rows == b.rows for a, b in zip(wanted, replies, strict=True))
    found = led(runtime, config.special, wanted)
    agreeing = sum((a.argmax(1) == b.argmax(1)).sum().item() for a, b in zip(found, exact))
    difference = max((a - b).abs().max().item() for a, b in zip(found, exact))
    largest, rows = max(b.abs().max().item() for b in exact), sum(map(len, exact))
    runtime.close()
    plan_mb = made["plan_bytes"] / 1e6
    compared = rows, int(agreeing), difference, largest
    return Parity(made["build_s"], plan_mb, *compared, len(wanted), equal)


def measure_published(library: Library, dtype: str, device: torch.device, report: Report) -> None:
    """Build, load and time the published layout; its weights are on the GPU beforehand."""
    config, limits = PUBLISHED, Limits(16, 1024, 1, 512, 4096)
    target = BuildTarget(library.backend, dtype, None, limits)
    with TemporaryDirectory() as name:
        folder, start_s = Path(name), time.perf_counter()
        manifest = build_tensorrt_plan(config, target, folder / PLAN_NAME, None, print)
        build_s = time.perf_counter() - start_s
        bound = random_tensors(config, getattr(torch, dtype), device)
        torch.cuda.synchronize(device)
        start_s = time.perf_counter()
        names = (library.backend, library.version, str(device), dtype, "bench")
        info, plan = RuntimeInfo(*names, manifest.plan_digest), read_plan(folder, manifest)
        file = EngineFile(library, plan, manifest, config, limits, bound, info, device)
        runtime = TrtRuntime(file)
        load_s = time.perf_counter() - start_s
    report.add(
        layers=config.num_layers,
        effort=target.effort,
        build_s=build_s,
        load_s=load_s,
        plan_mb=manifest.plan_bytes / 1e6,
        scratch_mb=runtime.scratch_bytes / 1e6,
        step_gb=Needs(config, "bfloat16").weight_bytes() / 1e9,
    )
    step = ScheduledBatch((sequence(config, 0, CONTEXT_ROWS, 1),))
    logits = runtime.forward(step)
    assert logits.text.isfinite().all() and logits.audio.isfinite().all()
    again = runtime.decode_again(1, CONTEXT_ROWS)
    measure(report, "decode step, batch 1", "device", again)
    measure(report, "forward of one row, batch 1", "wall", lambda: runtime.forward(step))
    for rows, cached in FILLS:
        fill = ScheduledBatch((sequence(config, 0, cached, rows, (cached + rows) // 16 + 1),))
        for clock in ("device", "wall"):
            name, again = f"prefill {rows} rows on {cached} cached", lambda: runtime.forward(fill)  # noqa: B023
            measure(report, name, clock, again)
    runtime.close()


def random_tensors(
    config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The layout's tensors: normally distributed with deviation 0.02, norms near one."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, part in parts(config).items():
        tensor = torch.empty(part.shape, dtype=dtype, device=device)
        tensors[name] = tensor.normal_(float(len(part.shape) == 1), INIT_STD, generator=generator)
    return tensors
