"""Plain TensorRT on this GPU: parity with torch, and speed at the published size.

    python -m scripts.bench.lm.trt --parts nano,published --out OUT.json --replies REPLIES.json
    python -m scripts.bench.lm.trt --parts heard --out HEARD.json --replies REPLIES.json

nano: builds the built-in checkpoint with weights bound and baked, compares logits row by row with
the torch runtime in the same number format, and greedy replies row by row. heard: the words that a
recogniser understands of those replies, of the torch runtime and of the engines; needs no GPU.
published: builds, loads and times the full layout, and lists the kernels that a decode step and a
prefill of 512 rows run, those that only convert weights apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from moss_engine.api.info import RuntimeInfo
from moss_engine.export.tensorrt import EFFORT
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.layout import parts
from moss_engine.runtime.base import Limits, ScheduledBatch
from moss_engine.runtime.engine_manifest import read_plan
from moss_engine.runtime.tensorrt.library import Library, compute_capability, load_library
from moss_engine.runtime.tensorrt.runtime import TrtRuntime, bound_weights
from scripts.bench.common.timing import Figure, device_times_ms, figure, table, wall_times_ms
from scripts.bench.lm.cuda import CONTEXT_ROWS, sequence, step_bytes
from scripts.bench.lm.trt_parity import equal_words, make_engine, measure_parity, say

NUM_KERNELS, NAME_CHARS = 16, 100
CONVERSION = re.compile(r"permutationKernel|genericReformat|__myl_bb\d+_\d+_Cas$")
INIT_STD = 0.02


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.lm.trt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--parts", default="nano,published", metavar="PART,...",
        help="nano and published, or heard alone (nano,published)")  # fmt: skip
    add("--backend", default="tensorrt", choices=("tensorrt", "tensorrt_rtx"),
        help="library to build and run with (tensorrt)")  # fmt: skip
    add("--dtype", default="float16", choices=("float32", "float16", "bfloat16"),
        help="number format of the engines (float16)")  # fmt: skip
    add("--weights", default="bound,baked", metavar="KIND,...",
        help="of the engines of nano; the first kind also for published (bound,baked)")  # fmt: skip
    add("--layers", type=int, default=PUBLISHED.num_shared_layers,
        help=f"shared layers of published ({PUBLISHED.num_shared_layers})")  # fmt: skip
    add("--branch-layers", type=int, default=PUBLISHED.num_modality_layers,
        help=f"layers of a branch of published ({PUBLISHED.num_modality_layers})")  # fmt: skip
    add("--batch", type=int, default=1, help="most sequences of a decode step of published (1)")
    add("--effort", type=int, default=EFFORT,
        help=f"the builder's optimisation level, 0 to 5 ({EFFORT})")  # fmt: skip
    add("--beside", type=Path, metavar="FILE",
        help="figures of scripts.bench of the same hour, kept with these")  # fmt: skip
    add("--replies", type=Path, metavar="FILE",
        help="where nano writes the greedy replies, and heard reads them")  # fmt: skip
    add("--out", type=Path, required=True, metavar="FILE", help="JSON file for the figures")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.parts == "heard":
        replies = json.loads(args.replies.read_text(encoding="utf-8"))
        result: dict[str, object] = {
            "sentences": len(replies["torch"]),
            "equal_words": equal_words(replies),
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return
    library = load_library(args.backend)
    device = torch.device("cuda")
    result = {
        "device": torch.cuda.get_device_name(device),
        "library": f"{library.backend} {library.version}",
        "torch": torch.__version__,
        "dtype": args.dtype,
    }
    if "nano" in args.parts:
        checks, replies = measure_parity(
            library, args.dtype, args.weights.split(","), args.effort, device
        )
        result["parity"] = [asdict(check) for check in checks]
        if args.replies:
            args.replies.write_text(json.dumps(replies) + "\n", encoding="utf-8")
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if "published" in args.parts:
        config = dataclasses.replace(
            PUBLISHED, num_shared_layers=args.layers, num_modality_layers=args.branch_layers
        )
        result |= measure_published(
            library, config, args.dtype, args.weights.split(",")[0], args.batch, args.effort, device
        )
    if args.beside:
        result["torch_runtime"] = json.loads(args.beside.read_text(encoding="utf-8"))
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure_published(
    library: Library,
    config: ModelConfig,
    dtype: str,
    weights: str,
    max_batch: int,
    effort: int,
    device: torch.device,
) -> dict[str, object]:
    """Build, load and measure; loading is timed with "bound" weights already on the GPU."""
    limits = Limits(16, 1024, max_batch, 512, 4096)
    capability = compute_capability(library, device)
    torch_dtype, baked, bound = getattr(torch, dtype), None, {}
    if weights == "baked":
        baked = {key: value.cpu() for key, value in random_tensors(config, torch_dtype, device)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        manifest, build_s = make_engine(
            library, config, dtype, limits, folder, baked, capability, effort
        )
        del baked
        if weights == "bound":
            tensors = random_tensors(config, torch_dtype, device)
            bound = bound_weights(library, dtype, tensors, device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        names = (library.backend, library.version, str(device), dtype, "random")
        info = RuntimeInfo(*names, manifest.plan_digest)
        runtime = TrtRuntime(
            library, read_plan(folder, manifest), manifest, config, limits, bound, info, device
        )
        torch.cuda.synchronize()
        load_s = time.perf_counter() - start
    del bound
    result: dict[str, object] = {
        "weights": weights,
        "layers": config.num_layers,
        "effort": effort,
        "build_s": build_s,
        "load_s": load_s,
        "plan_mb": manifest.plan_bytes / 1e6,
        "scratch_mb": runtime.scratch_bytes / 1e6,
    }
    say(json.dumps(result))
    result |= measure_steps(runtime, config, max_batch)
    wide = weights == "bound" and library.wide_io
    result["step_gb"] = (2 if wide else 1) * step_bytes(config) / 1e9
    runtime.close()
    return result


def measure_steps(runtime: TrtRuntime, config: ModelConfig, max_batch: int) -> dict[str, object]:
    """Times of decode and prefill, and the kernels that each runs."""
    figures = [*measure_decode(runtime, config, max_batch), *measure_prefill(runtime, config)]
    print(table(figures), flush=True)
    steps = {
        "decode": sequence(config, 0, CONTEXT_ROWS, 1, CONTEXT_ROWS // 16 + 2),
        "prefill": sequence(config, 0, 0, 512, 33),
    }
    kernels = {name: kernels_of(runtime, ScheduledBatch((step,))) for name, step in steps.items()}
    return {"figures": [asdict(f) for f in figures], "kernels": kernels}


def measure_decode(runtime: TrtRuntime, config: ModelConfig, max_batch: int) -> list[Figure]:
    figures = []
    for batch in (size for size in (1, 2, 4) if size <= max_batch):
        shares = tuple(
            sequence(config, i, CONTEXT_ROWS, 1, CONTEXT_ROWS // 16 + 2) for i in range(batch)
        )
        step = ScheduledBatch(shares)
        logits = runtime.forward(step)
        assert logits.text.isfinite().all() and logits.audio.isfinite().all(), (
            "the engine's logits are not finite"
        )
        figures.append(
            figure(
                f"decode step, batch {batch}",
                device_times_ms(runtime.decode_again(batch, CONTEXT_ROWS)),
                None,
                "device",
            )
        )
        figures.append(
            figure(
                f"forward of one row, batch {batch}",
                wall_times_ms(lambda: runtime.forward(step)),  # noqa: B023
                None,
                "wall",
            )
        )
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
    """Microseconds and counts of a step's kernels; `conversions_us` is reformatting and casting."""
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
    return {
        "count": sum(count for _, count, _ in kernels),
        "total_us": round(sum(us for *_, us in kernels), 1),
        "conversions_us": round(sum(us for name, _, us in kernels if CONVERSION.search(name)), 1),
        "most": [
            {"name": name, "count": count, "us": round(us, 1)}
            for name, count, us in kernels[:NUM_KERNELS]
        ],
    }


def random_tensors(
    config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """The layout's tensors, one at a time: normal with deviation 0.02, norms near one."""
    generator = torch.Generator(device).manual_seed(0)
    for name, part in parts(config).items():
        yield (
            name,
            torch.empty(part.shape, dtype=dtype, device=device).normal_(
                float(len(part.shape) == 1), INIT_STD, generator=generator
            ),
        )


if __name__ == "__main__":
    main()
