"""The paged attention kernels beside what could take their place, timed on one GPU:

    python -m scripts.bench.lm.attention [--cases decode,rows,flex] [--out OUT.json]

At the published shapes (32 query heads, 8 KV heads of 128, bfloat16, blocks of 16 rows in no
order), one layer after another in a CUDA graph, each in a KV slot of its own, so that no cache
holds what the next one reads. Every method is timed alone and as a layer of a step needs it: with
the norms of queries and keys, the rotary embedding, the write of new keys and values (one kernel of
the runtime, before every method that has none of its own), and gathering the KV where the pool
cannot be read as it lies. FlashInfer is compared where it is installed. All results are compared
with attention in float32.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.make import resolve_device
from scripts.bench.common.timing import Report, device_times_ms, measure_ceilings
from scripts.bench.lm.attention_case import Case, Scene, decode_case
from scripts.bench.lm.attention_kernels import OURS, Kernels, Method
from scripts.bench.lm.attention_methods import others
from scripts.bench.lm.baselines import captured

LAYERS, REPLAYS = 40, 12
POOL_BYTES = 24 << 30
LARGEST_ERROR = 0.02
"""Of the largest value: weights and values are rounded to bfloat16, 2**-9, on the way."""

CASES = {
    "decode": tuple(
        decode_case(batch, context)
        for context in (600, 2048)
        for batch in (1, 8, 32, 64, 256)
        if (batch, context) != (32, 2048)
    ),
    "rows": (
        Case("prefill, 512 rows on 0", (0,), (512,)),
        Case("32 decoding on 600, 256 rows on 0", (600,) * 32 + (0,), (1,) * 32 + (256,)),
    ),
    "flex": (
        Case("prefill, 64 rows on 2000", (2000,), (64,), flex=True),
        decode_case(32, 2048, flex=True),
    ),
}
"""FlexAttention is compiled for every shape anew, for seconds: it is shown for two of them."""


def layer_us(scene: Scene, run: Callable[[int], object]) -> float:
    """Median time of a layer over REPLAYS graphs of LAYERS layers."""
    graph = captured(lambda: [run(i % scene.num_slots) for i in range(LAYERS)])
    return 1e3 * statistics.median(device_times_ms(graph, REPLAYS)) / LAYERS


def measure(
    scene: Scene, method: Method, store: Callable[[int], None], ours_us: float | None
) -> dict[str, Any]:
    """One method's figures on a scene; `ours_us` is the layer of the runtime's kernels there."""

    def layer(slot: int) -> None:
        store(slot)
        method.whole(slot)

    error = scene.error(method.attend(0))
    alone_us = layer_us(scene, method.attend)
    whole_us = alone_us if method.fused else layer_us(scene, layer)
    return {
        "case": scene.case.name,
        "method": method.name,
        "attention_us": None if method.fused else alone_us,
        "gather_us": None if method.gather is None else layer_us(scene, method.gather),
        "layer_us": whole_us,
        "times_ours": whole_us / (ours_us or whole_us),
        "plan_ms": method.plan_ms,
        "error": error,
        "agrees": error < LARGEST_ERROR,
    }


def compare(scene: Scene, report: Report) -> None:
    """Every method on one scene; one that cannot run is noted with its reason."""
    kernels = Kernels(scene)
    method = kernels.method()
    ours = measure(scene, method, kernels.store, None)
    ours["store_us"] = layer_us(scene, kernels.store)
    ours["limit_us"] = 1e6 * scene.kv_bytes / report.values["read_bytes_per_s"]
    add(report, ours)
    for name, make in others(scene):
        try:
            add(report, measure(scene, make(), kernels.store, ours["layer_us"]))
        except ImportError as error:
            refuse(report, name, f"not installed ({error})")
        except (
            Exception
        ) as error:  # whatever a library raises; the comparison goes on, and the report names it
            refuse(
                report,
                f"{name}: {scene.case.name}",
                f"{type(error).__name__}: {str(error).strip()[:200]}",
            )
        gc.collect()
        torch.cuda.empty_cache()


def add(report: Report, row: dict[str, Any]) -> None:
    report.values["attention"].append(row)
    report.say(line(row))
    report.save()


def refuse(report: Report, name: str, reason: str) -> None:
    if name not in report.values["not_measured"]:
        report.values["not_measured"][name] = reason
        report.say(f"not measured: {name}: {reason}")
        report.save()


def line(row: dict[str, Any]) -> str:
    """One row of the printed table."""
    parts = {"alone": row["attention_us"], "gather": row["gather_us"], "layer": row["layer_us"]}
    times = "".join(
        f"{name} {'-' if value is None else f'{value:.1f}':>7}  " for name, value in parts.items()
    )
    plan = "" if row["plan_ms"] is None else f"  plan {row['plan_ms']:.2f} ms"
    return (
        f"{row['case']:<36}{row['method']:<46}{times}us  {row['times_ours']:5.2f} x  error "
        f"{row['error']:.4f}{'' if row['agrees'] else ' DIFFERS'}{plan}"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.lm.attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--cases", default=",".join(CASES), metavar="KIND,...", help=f"of {', '.join(CASES)} (all)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON")
    args = parser.parse_args(argv)
    kinds = args.cases.split(",")
    if unknown := set(kinds) - set(CASES):
        parser.error(f"--cases knows no {', '.join(sorted(unknown))}")
    device = resolve_device("cuda")
    read = measure_ceilings().read_bytes_per_s
    report = Report(
        {
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "ours": OURS,
            "layers": LAYERS,
            "read_bytes_per_s": read,
            "attention": [],
            "not_measured": {},
        },
        args.out,
    )
    with torch.inference_mode():
        for case in (case for kind in kinds for case in CASES[kind]):
            compare(
                Scene(
                    PUBLISHED, case, device, torch.bfloat16, max_slots=LAYERS, pool_bytes=POOL_BYTES
                ),
                report,
            )
            gc.collect()
            torch.cuda.empty_cache()
    report.say("done")


if __name__ == "__main__":
    main()
