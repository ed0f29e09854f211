"""Build an engine file from a checkpoint that `python -m scripts.convert` has converted:

    python -m scripts.build_engine CONVERTED OUT --backend tensorrt|tensorrt_rtx|tensorrt_llm
        [--weights bound|baked]

With bound weights the plan holds the network alone: it is small, built and loaded in moments, and
its weights are read from app.py's --checkpoint when it is served; baked weights are part of the
plan. Serve with the same or smaller --kv-rows, --max-sessions and --max-step-rows, and the same
--block-size. OUT gets engine.plan and, last of all, engine.json, without which a folder is no
engine. The last line is what was built, as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from pathlib import Path

import torch

from moss_engine.api.errors import ConfigError
from moss_engine.config import EngineConfig
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.converted import open_converted
from moss_engine.options import add_options, from_args
from moss_engine.runtime.engine_manifest import (
    BACKENDS,
    ENGINE_MANIFEST_NAME,
    PLAN_NAME,
    WEIGHTS,
    write_engine_manifest,
)
from moss_engine.runtime.make import make_limits
from scripts.command import make_parser, run_command
from scripts.disk import refuse_inside, require_space

LIMITS = ("block_size", "kv_rows", "max_sessions", "max_step_rows")
"""The options that `make_limits` reads."""
REPORT_EVERY_S = 15.0
SAMPLE_EVERY_S = 0.1


class Watch:
    """Says on standard error what a long build is doing, at each stage and regularly, and keeps the
    most memory that it takes of the GPU."""

    def __init__(self) -> None:
        self._start_s = self._said_s = time.perf_counter()
        self._stage = ""
        self._gpu_before, self.peak_gpu_bytes = used_gpu_bytes(), 0
        self._ended = threading.Event()

    def __enter__(self) -> Watch:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def say(self, stage: str) -> None:
        self._stage, self._said_s = stage, time.perf_counter()
        host = peak_host_bytes()
        memory = f"  {host / 2**30:.1f} GiB" if host is not None else ""
        if self.peak_gpu_bytes:
            memory += f", GPU {self.peak_gpu_bytes / 2**30:.1f} GiB"
        seconds = self._said_s - self._start_s
        print(f"{seconds:7.1f} s{memory}  {stage}", file=sys.stderr, flush=True)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            self.peak_gpu_bytes = max(self.peak_gpu_bytes, used_gpu_bytes() - self._gpu_before)
            if self._stage and time.perf_counter() - self._said_s > REPORT_EVERY_S:
                self.say(self._stage)


def build(
    converted_folder: Path,
    out: Path,
    backend: str,
    weights: str | None,
    capability: str | None,
    config: EngineConfig,
) -> dict[str, object]:
    """Build, and write the manifest; returns it with the seconds and the most memory of the build.

    Raises MossError: a CheckpointError for the converted folder, ConfigError, MissingPackageError.
    """
    refuse_inside(out, converted_folder)
    _require_empty(out)
    with Watch() as watch:
        watch.say(f"checking {converted_folder}")
        converted = open_converted(converted_folder)
        # scales of float8 must be constants of the network
        chosen = weights or ("baked" if converted.dtype == "float8" else "bound")
        limits = make_limits(config, converted.config)
        target = BuildTarget(backend, chosen, capability, limits, converted.checkpoint_digest)
        baked = ((name, converted.read(name)) for name in converted.tensors)
        write = build_llm_plan if backend == "tensorrt_llm" else build_tensorrt_plan
        plan = out / PLAN_NAME
        try:
            out.mkdir(parents=True, exist_ok=True)
            if chosen == "baked":
                num_bytes = sum(tensor.num_bytes for tensor in converted.tensors.values())
                require_space(out, num_bytes, "The plan")
            given = baked if chosen == "baked" else None
            start_s = time.perf_counter()
            manifest = write(converted.config, converted.dtype, target, plan, given, watch.say)
            build_s = time.perf_counter() - start_s
            write_engine_manifest(out, manifest)
        except BaseException as error:
            with contextlib.suppress(OSError):  # the folder may be what cannot be written
                plan.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            raise ConfigError(
                f"{out} cannot be written ({error.strerror}); free some space, or name a folder "
                "that can be written."
            ) from None
        watch.say("done")
    memory = peak_host_bytes()
    return dataclasses.asdict(manifest) | {
        "build_s": round(build_s, 1),
        "plan_mb": manifest.plan_bytes / 1e6,
        "peak_host_gib": round(memory / 2**30, 2) if memory is not None else None,
        "peak_gpu_gib": round(watch.peak_gpu_bytes / 2**30, 2),
    }


def used_gpu_bytes() -> int:
    """By whatever programs, where there is a GPU."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def peak_host_bytes() -> int | None:
    """The most memory of this process so far, where the system tells."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _require_empty(out: Path) -> None:
    if (out / ENGINE_MANIFEST_NAME).exists():
        raise ConfigError(
            f"{out} holds an engine already; name another folder, or remove it first."
        )
    others = [path.name for path in out.iterdir() if path.name != PLAN_NAME] if out.is_dir() else []
    if others or (out.exists() and not out.is_dir()):
        raise ConfigError(f"{out} is no empty folder; name another one for the engine.")


def main(argv: list[str] | None = None) -> None:
    parser = make_parser("build_engine", __doc__)
    add = parser.add_argument
    add("converted", type=Path, metavar="CONVERTED", help="folder that scripts.convert made")
    add("out", type=Path, metavar="OUT", help="folder to make")
    add("--backend", choices=BACKENDS, required=True, help="library that will run the engine")
    add("--weights", choices=WEIGHTS, help="bound: inputs of the plan; baked: part of it (default: "
        "bound, or baked for fp8)")  # fmt: skip
    add("--compute-capability", metavar="X.Y",
        help="compute capability of the GPU that will run it, such as 8.9; tensorrt_rtx, which "
        "builds without a GPU, takes several joined by commas (default: that of this machine's "
        "GPU)")  # fmt: skip
    add_options(parser, EngineConfig, names=LIMITS)
    args = parser.parse_args(argv)
    config = from_args(EngineConfig, args)
    report = build(
        args.converted, args.out, args.backend, args.weights, args.compute_capability, config
    )
    print(json.dumps(report))


if __name__ == "__main__":
    run_command(main)
