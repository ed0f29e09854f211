"""Engine folders: what is refused, and that the sentence names field, both values and the command
that mends it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from moss_engine.api.errors import ConfigError, EngineFileError, MossError
from moss_engine.models.manifest import checkpoint_digest, file_digest
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_manifest import (
    ENGINE_MANIFEST_NAME,
    PLAN_NAME,
    EngineManifest,
    EngineRequirements,
    open_engine,
    read_engine_manifest,
    write_engine_manifest,
)

LIMITS = Limits(block_size=16, num_blocks=64, max_batch=4, max_step_rows=512, max_seq_len=1024)
NEEDED = EngineRequirements("tensorrt", "c" * 64, "8.6.0", "9.0", "auto", LIMITS)
PLAN = bytes(range(256)) * 300
BUILD = (
    "`python -m scripts.build_engine CHECKPOINT OUT --backend tensorrt --dtype float32 "
    "--block-size 16 --kv-rows 1024 --max-sessions 4 --max-step-rows 512`."
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PLAN_NAME).write_bytes(PLAN)
    manifest = EngineManifest(
        backend="tensorrt",
        checkpoint_digest="c" * 64,
        library_version="8.6.0",
        compute_capability="8.6,9.0",
        dtype="float32",
        limits=LIMITS,
        plan_digest=file_digest(tmp_path / PLAN_NAME),
        plan_bytes=len(PLAN),
    )
    write_engine_manifest(tmp_path, manifest)
    return tmp_path


def test_what_was_written_is_opened_for_its_limits_and_smaller_ones(folder: Path) -> None:
    smaller = dataclasses.replace(NEEDED, dtype="float32", limits=Limits(16, 32, 1, 8, 512))
    for needed in (NEEDED, smaller):
        manifest, plan = open_engine(folder, needed)
        assert bytes(plan) == PLAN and manifest.limits == LIMITS


def limits(**change: int) -> dict[str, object]:
    return {"limits": dataclasses.replace(LIMITS, **change)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "tensorrt_rtx"}, ("backend tensorrt ", "start with --runtime tensorrt,")),
        ({"checkpoint_digest": "d" * 64}, ("dddddddddddd is needed", "--checkpoint")),
        ({"library_version": "10.14.1"}, ("library_version 8.6.0 ", "install release 8.6.0")),
        ({"compute_capability": "8.9"}, ("compute_capability 8.6,9.0 ", "scripts.build_engine")),
        ({"dtype": "bfloat16"}, ("dtype float32 ", "omit --dtype", "--dtype bfloat16 --block")),
        ({"dtype": "int8"}, ("dtype float32 ", "int8 is needed; omit --dtype.")),
        ({"plugin_digest": "e" * 64}, ("plugin_digest none ", "--plugin")),
        (limits(block_size=32), ("block_size 16 ", "--block-size 16")),
        (limits(num_blocks=65), ("num_blocks 64 ", "--kv-rows 1024 or")),
        (limits(max_batch=5), ("max_batch 4 ", "--max-sessions 4 or less")),
        (limits(max_step_rows=513), ("max_step_rows 512 ", "--max-step-rows 512")),
        (limits(max_seq_len=1040), ("max_seq_len 1024 ", "--kv-rows 1024 or")),
    ],
)
def test_every_field_is_compared(
    change: dict[str, object], words: tuple[str, ...], folder: Path
) -> None:
    with pytest.raises(EngineFileError) as error:
        open_engine(folder, dataclasses.replace(NEEDED, **change))  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in (*words, str(folder))), str(error.value)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PLAN[:-1], f"{len(PLAN) - 1} bytes long where engine.json says {len(PLAN)} (truncated or "
         f"altered); copy it again, or build it again with {BUILD}"),
        (b"x" + PLAN[1:], "(altered); copy it again, or build it again"),
        (None, "cannot be read (No such file or directory); copy it again"),
    ],
)  # fmt: skip
def test_no_other_plan_is_opened(plan: bytes | None, words: str, folder: Path) -> None:
    (folder / PLAN_NAME).unlink()
    if plan is not None:
        (folder / PLAN_NAME).write_bytes(plan)
    with pytest.raises(EngineFileError) as error:
        open_engine(folder, NEEDED)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "onnx"}, "backend: String should match pattern '^(tensorrt|tensorrt_rtx|"),
        ({"limits": {"block_size": 16}}, "limits.num_blocks: Field required"),
        ({"format": 1}, "format: Input should be 2"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_a_strange_manifest_is_refused(change: dict[str, object], words: str, folder: Path) -> None:
    path = folder / ENGINE_MANIFEST_NAME
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, **change}), encoding="utf-8")
    with pytest.raises(EngineFileError) as error:
        read_engine_manifest(folder)
    assert words in str(error.value) and "build the engine again" in str(error.value)


def test_no_engine_is_an_unfinished_folder_or_an_address(tmp_path: Path) -> None:
    words = "holds no finished engine; name another folder with --engine"
    with pytest.raises(EngineFileError, match=words):
        read_engine_manifest(tmp_path)
    for address in ("https://example.org/engine", "s3://bucket/engine", "file:///engine"):
        with pytest.raises(ConfigError, match="is an address; name a folder of this machine"):
            read_engine_manifest(Path(address))


@pytest.mark.parametrize("place", ["config", "first tensor", "last tensor", "name"])
def test_checkpoints_are_told_apart(place: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    config, weights = ((tiny_checkpoint / name).read_bytes() for name in
                       ("config.json", "model.safetensors"))  # fmt: skip
    data = bytearray(weights)
    if place == "config":
        config = config.replace(b'"rope_theta": 1000000', b'"rope_theta": 10000')
    elif place == "name":
        data = data.replace(b"text_norm", b"next_norm")
    else:
        data[8 + int.from_bytes(data[:8], "little") if place == "first tensor" else -1] ^= 1
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(data)
    try:
        assert checkpoint_digest(tmp_path) != checkpoint_digest(tiny_checkpoint)
    except MossError:
        assert place == "name"
