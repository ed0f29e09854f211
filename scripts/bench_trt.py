"""An engine file of plain TensorRT on this GPU: parity with torch, and speed at the published size with random weights.

    python -m scripts.bench_trt --parts nano,published --out OUT.json

nano: builds the built-in checkpoint with weights bound and baked, compares logits row by row with the torch runtime in
the same number format, and greedy replies word for word. published: builds, loads and times the full layout, and lists
the kernels that a decode step and a prefill of 512 rows run, those that only convert weights apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from moss_engine.config import NANO_CHECKPOINT
from moss_engine.export.target import BuildTarget
from moss_engine.export.tensorrt import EFFORT, build_tensorrt_plan
from moss_engine.models.config import ModelConfig
from moss_engine.models.layout import parts, stream_parts
from moss_engine.processor import load_processor
from moss_engine.request import ChannelSampling
from moss_engine.runtime.base import Limits, Runtime, RuntimeInfo, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.engine_manifest import (
    PLAN_NAME,
    EngineManifest,
    plan_digest,
    read_plan,
    write_engine_manifest,
)
from moss_engine.runtime.pytorch import load_torch_runtime
from moss_engine.runtime.trt import TrtRuntime
from moss_engine.runtime.trt_library import Library, compute_capability, load_library
from moss_engine.sampler import Sampler
from moss_engine.tokens import Modality, Row, is_audio_row
from scripts.bench_cuda import CONTEXT_ROWS, PUBLISHED, sequence, step_bytes
from scripts.bench_timing import Figure, device_times_ms, figure, table, wall_times_ms
from scripts.nano.sentences import EVERYDAY, HARVARD
from scripts.quantize import conversations

NUM_SENTENCES, NUM_ROWS = 20, 200
NUM_KERNELS, NAME_CHARS = 16, 100
CONVERSION = re.compile(r"permutationKernel|genericReformat|__myl_bb\d+_\d+_Cas$")
INIT_STD = 0.02


@dataclass(frozen=True)
class Parity:
    """Against the torch runtime in the same number format. `agreeing_rows` have the same best id in the channel that
    counts, `agreeing_heads` counts both heads' best ids; `largest_difference` is that of any logit.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="nano,published")
    parser.add_argument("--backend", default="tensorrt", choices=("tensorrt", "tensorrt_rtx"))
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--weights", default="bound,baked", help="of the nano engines")
    parser.add_argument("--layers", type=int, default=PUBLISHED.num_shared_layers, help="shared layers at full width")
    parser.add_argument("--branch-layers", type=int, default=PUBLISHED.num_modality_layers, help="layers of a branch")
    parser.add_argument("--batch", type=int, default=1, help="sequences of one step at full width")
    parser.add_argument("--effort", type=int, default=EFFORT, help="the builder's optimisation level, 0 to 5")
    parser.add_argument("--beside", type=Path, help="figures of scripts.bench_cuda of the same hour, kept with these")
    parser.add_argument("--replies", type=Path, help="where to write the greedy replies")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    library = load_library(args.backend)
    device = torch.device("cuda")
    result = {"device": torch.cuda.get_device_name(device), "library": f"{library.backend} {library.version}",
              "torch": torch.__version__, "dtype": args.dtype}
    if "nano" in args.parts:
        checks, replies = measure_parity(library, args.dtype, args.weights.split(","), args.effort, device)
        result["parity"] = [asdict(check) for check in checks]
        if args.replies:
            args.replies.write_text(json.dumps(replies) + "\n", encoding="utf-8")
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if "published" in args.parts:
        config = dataclasses.replace(PUBLISHED, num_shared_layers=args.layers, num_modality_layers=args.branch_layers)
        result |= measure_published(library, config, args.dtype, args.batch, args.effort, device)
    if args.beside:
        result["torch_runtime"] = json.loads(args.beside.read_text(encoding="utf-8"))
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def make_engine(library: Library, config: ModelConfig, dtype: str, limits: Limits, folder: Path,
                weights: Mapping[str, Tensor] | None, capability: str, effort: int) -> tuple[EngineManifest, float]:
    """Build an engine folder; returns its manifest and how long that took."""
    target = BuildTarget(library.backend, "bound" if weights is None else "baked", None, limits)
    start = time.perf_counter()
    built = build_tensorrt_plan(config, dtype, target, folder / PLAN_NAME, weights and weights.items(), _say,
                                effort=effort)
    build_s = time.perf_counter() - start
    digest, num_bytes = plan_digest(folder / PLAN_NAME)
    manifest = EngineManifest(library.backend, "none", built.library_version, capability, dtype, target.weights,
                              limits.block_size, limits.num_blocks, limits.max_batch, limits.max_step_rows,
                              limits.max_seq_len, digest, num_bytes)
    write_engine_manifest(folder, manifest)
    return manifest, build_s


def measure_parity(library: Library, dtype: str, kinds: list[str], effort: int,
                   device: torch.device) -> tuple[list[Parity], dict[str, list[list[Row]]]]:
    config = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    limits = Limits(16, 128, 4, 512, 2048)
    kind = getattr(torch, dtype)
    reference = load_torch_runtime(NANO_CHECKPOINT, limits, device=device, dtype=kind, threads=1)
    wanted = greedy_replies(reference, config, device)
    replies, checks = {"torch": wanted}, []
    layout = dict(stream_parts(NANO_CHECKPOINT, config, kind))
    capability = compute_capability(library, device)
    for weights in kinds:
        with TemporaryDirectory() as name:
            folder = Path(name)
            manifest, build_s = make_engine(library, config, dtype, limits, folder,
                                            layout if weights == "baked" else None, capability, effort)
            bound = {} if weights == "baked" else {name: tensor.to(device) for name, tensor in layout.items()}
            info = RuntimeInfo(library.backend, library.version, str(device), dtype, "nano", manifest.plan_digest)
            runtime = TrtRuntime(library, read_plan(folder, manifest), manifest, config, limits, bound, info, device)
        found = replies[weights] = greedy_replies(runtime, config, device)
        rows, agreeing, heads, difference, largest = compare_rows(reference, runtime, config, wanted)
        equal = sum(a == b for a, b in zip(found, wanted, strict=True))
        checks.append(Parity(weights, build_s, manifest.plan_bytes / 1e6, rows, agreeing, heads, difference, largest,
                             len(wanted), equal, sum(map(len, wanted))))
        runtime.close()
        _say(str(checks[-1]))
    return checks, replies


def greedy_replies(runtime: Runtime, config: ModelConfig, device: torch.device) -> list[list[Row]]:
    """Prompt and reply of every sentence, always the likeliest row."""
    processor = load_processor(NANO_CHECKPOINT, config, 1000)
    best = ChannelSampling(0.0, 0, 1.0, 1.0)
    processor.default_sampling = dataclasses.replace(processor.default_sampling, text=best, audio=best)
    texts = [*HARVARD, *EVERYDAY][:NUM_SENTENCES]
    return list(conversations(runtime, Sampler(config, device), processor, texts, 400))


def compare_rows(reference: Runtime, runtime: Runtime, config: ModelConfig,
                 conversations: list[list[Row]]) -> tuple[int, int, int, float, float]:
    """Both runtimes on the same rows: the prompt at once, then row by row, evenly from all conversations."""
    rows = agreeing = heads = 0
    difference = largest = 0.0
    each = NUM_ROWS // len(conversations)
    for conversation in conversations:
        opened = next(i for i, row in enumerate(conversation) if is_audio_row(row, config.special))
        for end in range(opened, min(opened + each, len(conversation))):
            start = 0 if end == opened else end - 1
            blocks = tuple(range(-(-end // reference.limits.block_size)))
            batch = ScheduledBatch((ScheduledSequence(tuple(conversation[start:end]), start, blocks, True),))
            ours, theirs = runtime.forward(batch), reference.forward(batch)
            equal = [bool(a.argmax() == b.argmax()) for a, b in zip(ours, theirs, strict=True)]
            modality = Modality.AUDIO if is_audio_row(conversation[end], config.special) else Modality.TEXT
            rows += 1
            agreeing += equal[modality is Modality.AUDIO]
            heads += sum(equal)
            difference = max(difference, *((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)))
            largest = max(largest, *(b.abs().max().item() for b in theirs))
    return rows, agreeing, heads, difference, largest


def measure_published(library: Library, config: ModelConfig, dtype: str, max_batch: int, effort: int,
                      device: torch.device) -> dict[str, object]:
    limits = Limits(16, 1024, max_batch, 512, 4096)
    weights = random_layout(config, getattr(torch, dtype), device)
    capability = compute_capability(library, device)
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest, build_s = make_engine(library, config, dtype, limits, folder, None, capability, effort)
        start = time.perf_counter()
        info = RuntimeInfo(library.backend, library.version, str(device), dtype, "random", manifest.plan_digest)
        runtime = TrtRuntime(library, read_plan(folder, manifest), manifest, config, limits, weights, info, device)
        torch.cuda.synchronize()
        load_s = time.perf_counter() - start
    result: dict[str, object] = {"weights": "bound", "layers": config.num_layers, "effort": effort,
                                 "build_s": build_s, "load_s": load_s,
                                 "plan_mb": manifest.plan_bytes / 1e6,
                                 "scratch_mb": runtime.scratch_bytes / 1e6}
    _say(json.dumps(result))
    figures = [*measure_decode(runtime, config, max_batch), *measure_prefill(runtime, config)]
    print(table(figures), flush=True)
    result["figures"] = [asdict(f) for f in figures]
    result["step_gb"] = step_bytes(config) / 1e9
    steps = {"decode": sequence(config, 0, CONTEXT_ROWS, 1, CONTEXT_ROWS // 16 + 2),
             "prefill": sequence(config, 0, 0, 512, 33)}
    result["kernels"] = {name: kernels_of(runtime, ScheduledBatch((step,))) for name, step in steps.items()}
    runtime.close()
    return result


def measure_decode(runtime: TrtRuntime, config: ModelConfig, max_batch: int) -> list[Figure]:
    figures = []
    for batch in (size for size in (1, 2, 4) if size <= max_batch):
        shares = tuple(sequence(config, i, CONTEXT_ROWS, 1, CONTEXT_ROWS // 16 + 2) for i in range(batch))
        step = ScheduledBatch(shares)
        logits = runtime.forward(step)
        assert logits.text.isfinite().all() and logits.audio.isfinite().all(), "the engine's logits are not finite"
        figures.append(figure(f"decode step, batch {batch}", device_times_ms(runtime.decode_again(batch, CONTEXT_ROWS)),
                              None, "device"))
        figures.append(figure(f"forward of one row, batch {batch}", wall_times_ms(lambda: runtime.forward(step)),  # noqa: B023
                              None, "wall"))
    return figures


def measure_prefill(runtime: TrtRuntime, config: ModelConfig) -> list[Figure]:
    figures = []
    for rows, cached in ((64, 0), (128, 0), (512, 0), (64, 2000)):
        step = ScheduledBatch((sequence(config, 0, cached, rows, (cached + rows) // 16 + 1),))
        name = f"prefill {rows} rows on {cached} cached"
        figures.append(figure(name, device_times_ms(lambda: runtime.forward(step)), None, "device"))  # noqa: B023
        figures.append(figure(name, wall_times_ms(lambda: runtime.forward(step)), None, "wall"))  # noqa: B023
    return figures


def kernels_of(runtime: TrtRuntime, batch: ScheduledBatch) -> dict[str, object]:
    """Microseconds and counts of a step's kernels; `conversions_us` is what reformatting and casting alone take."""
    runtime.forward(batch)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        runtime.forward(batch)
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times = found.setdefault(event.name[:NAME_CHARS], [0, 0.0])
            times[0] += 1
            times[1] += event.time_range.elapsed_us()
    return kernel_table([(name, int(count), us) for name, (count, us) in found.items()])


def kernel_table(kernels: list[tuple[str, int, float]]) -> dict[str, object]:
    """Totals, and the kernels that take most: (name, count, microseconds of all calls)."""
    kernels = sorted(kernels, key=lambda kernel: -kernel[2])
    return {"count": sum(count for _, count, _ in kernels), "total_us": round(sum(us for *_, us in kernels), 1),
            "conversions_us": round(sum(us for name, _, us in kernels if CONVERSION.search(name)), 1),
            "most": [{"name": name, "count": count, "us": round(us, 1)} for name, count, us in kernels[:NUM_KERNELS]]}


def random_layout(config: ModelConfig, kind: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The layout's tensors, normal with deviation 0.02, norms near one."""
    generator = torch.Generator(device).manual_seed(0)
    return {name: torch.empty(part.shape, dtype=kind, device=device).normal_(float(len(part.shape) == 1), INIT_STD,
                                                                             generator=generator)
            for name, part in parts(config).items()}


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
