"""Build an engine file of a checkpoint:

    python -m scripts.build_engine CHECKPOINT OUT --backend tensorrt|tensorrt_rtx|tensorrt_llm
        [--dtype bfloat16|float32|float8]

The plan holds the network without its weights, so that it is small and quickly built and loaded;
the weights are read from app.py's --checkpoint when it serves. Only in float8 are they part of the
plan, and the checkpoint must have been calibrated by `python -m scripts.quantize`. Serve with the
same --block-size and the same or smaller --kv-rows, --max-sessions and --max-step-rows. OUT gets
engine.plan and, last, engine.json, without which a folder is no engine. The last line of output
says as JSON what was built.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from pathlib import Path

from moss_engine.api.errors import ConfigError
from moss_engine.config import EngineConfig
from moss_engine.export.tensorrt import BuildTarget, build_tensorrt_plan
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.checkpoint import check_tensors, expected_tensors, read_index, refuse_tied
from moss_engine.models.config import ModelConfig
from moss_engine.models.float8 import entries_of, load_largest_inputs, stream_float8_parts
from moss_engine.models.manifest import checkpoint_digest, verify_manifest
from moss_engine.options import add_options, from_args
from moss_engine.runtime.base import BACKENDS
from moss_engine.runtime.engine_manifest import (
    DTYPES,
    ENGINE_MANIFEST_NAME,
    PLAN_NAME,
    write_engine_manifest,
)
from moss_engine.runtime.make import make_limits
from scripts.command import make_parser, run_command
from scripts.disk import refuse_inside, require_space

LIMITS = ("block_size", "kv_rows", "max_sessions", "max_step_rows")
"""The options that `make_limits` reads."""


def build(
    checkpoint: Path,
    out: Path,
    backend: str,
    dtype: str,
    capability: str | None,
    config: EngineConfig,
) -> dict[str, object]:
    """Build the engine and write its manifest; returns that, and the seconds that it took.

    Raises MossError: a CheckpointError for the checkpoint, ConfigError, MissingPackageError.
    """
    model = ModelConfig.from_file(checkpoint / "config.json")
    refuse_inside(out, checkpoint)
    _require_empty(out)
    _check(checkpoint, model, dtype)
    limits, digest = make_limits(config, model), checkpoint_digest(checkpoint)
    target = BuildTarget(backend, dtype, capability, limits, digest)
    weights = stream_float8_parts(checkpoint, model) if dtype == "float8" else None
    write = build_llm_plan if backend == "tensorrt_llm" else build_tensorrt_plan
    plan, start_s = out / PLAN_NAME, time.perf_counter()

    def say(stage: str) -> None:
        print(f"{time.perf_counter() - start_s:7.1f} s  {stage}", file=sys.stderr, flush=True)

    try:
        out.mkdir(parents=True, exist_ok=True)
        if weights is not None:
            entries = entries_of(model, dtype).values()
            num_bytes = sum(math.prod(shape) * stored.itemsize for stored, shape in entries)
            require_space(out, num_bytes, "The plan")
        manifest = write(model, target, plan, weights, say)
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
    say("done")
    return {**manifest.model_dump(), "build_s": round(time.perf_counter() - start_s, 1)}


def _check(checkpoint: Path, model: ModelConfig, dtype: str) -> None:
    """Raise CheckpointError if files differ from the manifest, if tensors are not the network's, if
    a head is a copy of its embedding table, and, for float8, if the inputs were not measured."""
    verify_manifest(checkpoint)
    check_tensors(checkpoint, read_index(checkpoint), expected_tensors(model))
    refuse_tied(checkpoint)
    if dtype == "float8":
        load_largest_inputs(checkpoint, model)


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
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint folder as downloaded")
    add("out", type=Path, metavar="OUT", help="folder to make")
    add("--backend", choices=BACKENDS, required=True, help="library that will run the engine")
    add("--dtype", choices=DTYPES, default=DTYPES[0], dest="format",
        help=f"number format of the engine (default: {DTYPES[0]})")  # fmt: skip
    add("--compute-capability", metavar="X.Y",
        help="compute capability of the GPU that will run it, such as 8.9; tensorrt_rtx, which "
        "builds without a GPU, takes several joined by commas (default: that of this machine's "
        "GPU)")  # fmt: skip
    add_options(parser, EngineConfig, names=LIMITS)
    args = parser.parse_args(argv)
    given = (args.checkpoint, args.out, args.backend, args.format, args.compute_capability)
    print(json.dumps(build(*given, from_args(EngineConfig, args))))


if __name__ == "__main__":
    run_command(main)
