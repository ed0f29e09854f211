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

import argparse
import contextlib
import dataclasses
import json
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from moss_engine.api.errors import ConfigError, MossError
from moss_engine.config import EngineConfig
from moss_engine.export.tensorrt import BuildTarget, BuiltPlan, Report, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.converted import Converted, open_converted
from moss_engine.options import add_options, from_args
from moss_engine.runtime.engine_manifest import (
    BACKENDS,
    ENGINE_MANIFEST_NAME,
    PLAN_NAME,
    WEIGHTS,
    EngineManifest,
    plan_digest,
    write_engine_manifest,
)
from scripts.disk import refuse_inside, require_space

REPORT_EVERY_S = 15.0
SAMPLE_EVERY_S = 0.1
LIMITS = ("block_size", "kv_rows", "max_sessions", "max_step_rows")
"""The options that `make_limits` reads."""


class Watch:
    """Progress of a long command: its stages, and regularly the peak of memory."""

    def __init__(self) -> None:
        self._start_s = self._said_s = time.perf_counter()
        self._stage = ""
        self._gpu_before = self._gpu_bytes()
        self.peak_gpu_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start_s

    @property
    def peak_host_bytes(self) -> int | None:
        """Of this process, where the system tells."""
        try:
            import resource
        except ImportError:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def peak_memory(self) -> dict[str, object]:
        """GiB of the host, None where the system does not tell, and of the GPU."""
        host = self.peak_host_bytes
        return {
            "peak_host_gib": round(host / 2**30, 2) if host is not None else None,
            "peak_gpu_gib": round(self.peak_gpu_bytes / 2**30, 2),
        }

    def say(self, stage: str) -> None:
        self._stage = stage
        self._said_s = time.perf_counter()
        host = self.peak_host_bytes
        memory = f"  {host / 2**30:.1f} GiB" if host is not None else ""
        if self.peak_gpu_bytes:
            memory += f", GPU {self.peak_gpu_bytes / 2**30:.1f} GiB"
        print(f"{self.elapsed_s:7.1f} s{memory}  {stage}", file=sys.stderr, flush=True)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            self.peak_gpu_bytes = max(self.peak_gpu_bytes, self._gpu_bytes() - self._gpu_before)
            if self._stage and time.perf_counter() - self._said_s > REPORT_EVERY_S:
                self.say(self._stage)

    @staticmethod
    def _gpu_bytes() -> int:
        import torch

        if not torch.cuda.is_available():
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free


def build(
    converted_folder: Path,
    out: Path,
    backend: str,
    weights: str | None,
    capability: str | None,
    config: EngineConfig,
) -> dict[str, object]:
    """Build, and write the manifest; returns it with the time and the peak memory of the build.

    Raises MossError: a CheckpointError for the converted folder, ConfigError, MissingPackageError.
    """
    from moss_engine.runtime.make import make_limits

    refuse_inside(out, converted_folder)
    _require_empty(out)
    with Watch() as watch:
        watch.say(f"checking {converted_folder}")
        converted = open_converted(converted_folder)
        chosen = weights or default_weights(converted.dtype)
        target = BuildTarget(backend, chosen, capability, make_limits(config, converted.config))
        plan = out / PLAN_NAME
        try:
            out.mkdir(parents=True, exist_ok=True)
            if chosen == "baked":
                num_bytes = sum(tensor.num_bytes for tensor in converted.tensors.values())
                require_space(out, num_bytes, "The plan")
            started_s = watch.elapsed_s
            built = build_plan(converted, target, plan, watch.say)
            build_s = watch.elapsed_s - started_s
            watch.say("taking the plan's digest")
            manifest = make_manifest(converted, target, built, plan)
            write_engine_manifest(out, manifest)
        except OSError as error:
            _remove(plan)
            raise ConfigError(
                f"{out} cannot be written ({error.strerror}); free some space, or name a folder "
                "that can be written."
            ) from None
        except BaseException:
            _remove(plan)
            raise
        watch.say("done")
    seconds = {"build_s": round(build_s, 1)}
    return dataclasses.asdict(manifest) | seconds | watch.peak_memory() | dict(built.notes)


def build_plan(converted: Converted, target: BuildTarget, plan: Path, report: Report) -> BuiltPlan:
    """Have the backend's builder write the plan; it imports its package only now."""
    baked = ((name, converted.read(name)) for name in converted.names)
    weights = None if target.weights == "bound" else baked
    write = build_llm_plan if target.backend == "tensorrt_llm" else build_tensorrt_plan
    return write(converted.config, converted.dtype, target, plan, weights, report)


def default_weights(dtype: str) -> str:
    """Bound, except where scales must be constants of the network."""
    return "baked" if dtype == "float8" else "bound"


def _remove(plan: Path) -> None:
    with contextlib.suppress(OSError):  # the folder may be what cannot be written
        plan.unlink(missing_ok=True)


def _require_empty(out: Path) -> None:
    if (out / ENGINE_MANIFEST_NAME).exists():
        raise ConfigError(
            f"{out} holds an engine already; name another folder, or remove it first."
        )
    others = [path.name for path in out.iterdir() if path.name != PLAN_NAME] if out.is_dir() else []
    if others or (out.exists() and not out.is_dir()):
        raise ConfigError(f"{out} is no empty folder; name another one for the engine.")


def make_manifest(
    converted: Converted, target: BuildTarget, built: BuiltPlan, plan: Path
) -> EngineManifest:
    """The manifest of a plan that was just built, with the digest of its file."""
    digest, num_bytes = plan_digest(plan)
    return EngineManifest(
        target.backend,
        converted.checkpoint_digest,
        built.library_version,
        built.compute_capability,
        converted.dtype,
        target.weights,
        **dataclasses.asdict(target.limits),
        plan_digest=digest,
        plan_bytes=num_bytes,
        plugin_digest=built.plugin_digest,
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.build_engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "converted", type=Path, metavar="CONVERTED", help="folder that scripts.convert made"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    parser.add_argument(
        "--backend", choices=BACKENDS, required=True, help="library that will run the engine"
    )
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        help="bound: inputs of the plan; baked: part of it (default: bound, or baked for fp8)",
    )
    parser.add_argument(
        "--compute-capability",
        metavar="X.Y",
        help="compute capability of the GPU that will run it, such as 8.9; tensorrt_rtx, which "
        "builds without a GPU, takes several joined by commas (default: that of this machine's "
        "GPU)",
    )
    add_options(parser, EngineConfig, names=LIMITS)
    args = parser.parse_args(argv)
    report = build(
        args.converted,
        args.out,
        args.backend,
        args.weights,
        args.compute_capability,
        from_args(EngineConfig, args),
    )
    print(json.dumps(report))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
