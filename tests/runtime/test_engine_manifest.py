"""Engine folders: what is refused, and that the sentence names field, both values and the command
that mends it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import hypothesis
import pytest

from moss_engine.api.errors import ConfigError, EngineFileError, MossError
from moss_engine.config import EngineConfig
from moss_engine.models.manifest import checkpoint_digest
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_manifest import (
    ENGINE_MANIFEST_NAME,
    PLAN_NAME,
    EngineManifest,
    EngineRequirements,
    check_engine_manifest,
    engine_requirements,
    open_engine,
    plan_digest,
    read_engine_manifest,
    write_engine_manifest,
)

LIMITS = Limits(block_size=16, num_blocks=64, max_batch=4, max_step_rows=512, max_seq_len=1024)
WANTED = EngineRequirements("tensorrt", "c" * 64, "8.6.0", "9.0", None, LIMITS)
PLAN = bytes(range(256)) * 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PLAN_NAME).write_bytes(PLAN)
    digest, num_bytes = plan_digest(tmp_path / PLAN_NAME)
    write_engine_manifest(
        tmp_path,
        EngineManifest(
            "tensorrt",
            "c" * 64,
            "8.6.0",
            "8.6,9.0",
            "float16",
            "bound",
            **dataclasses.asdict(LIMITS),
            plan_digest=digest,
            plan_bytes=num_bytes,
        ),
    )
    return tmp_path


def test_what_was_written_is_opened(folder: Path) -> None:
    manifest, plan = open_engine(folder, WANTED)
    assert bytes(plan) == PLAN and plan.readonly
    assert manifest.limits == LIMITS and manifest.weights == "bound"
    (folder / PLAN_NAME).write_bytes(b"other")
    assert bytes(plan) == PLAN


def test_smaller_limits_are_served(folder: Path) -> None:
    manifest, plan = open_engine(
        folder, dataclasses.replace(WANTED, dtype="float16", limits=Limits(16, 32, 1, 8, 512))
    )
    assert manifest.limits == LIMITS and bytes(plan) == PLAN


def limits(**change: int) -> dict[str, object]:
    return {"limits": dataclasses.replace(LIMITS, **change)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "tensorrt_rtx"}, ("backend tensorrt ", "start with --runtime tensorrt,")),
        ({"checkpoint_digest": "d" * 64}, ("dddddddddddd is needed", "--checkpoint")),
        ({"library_version": "10.14.1"}, ("library_version 8.6.0 ", "install release 8.6.0")),
        ({"compute_capability": "8.9"}, ("compute_capability 8.6,9.0 ", "scripts.build_engine")),
        ({"dtype": "bfloat16"}, ("dtype float16 ", "omit --dtype", "--dtype bf16` and build")),
        ({"dtype": "float32"}, ("dtype float16 ", "float32 is needed; omit --dtype.")),
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
    wanted = dataclasses.replace(WANTED, **change)  # type: ignore[arg-type]
    with pytest.raises(EngineFileError) as error:
        check_engine_manifest(folder, read_engine_manifest(folder), wanted)
    assert all(word in str(error.value) for word in (*words, str(folder))), str(error.value)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            PLAN[:-1],
            f"{len(PLAN) - 1} bytes long where engine.json says {len(PLAN)} (truncated or "
            f"altered); copy it again, "
            "or build it again with `python -m scripts.build_engine CONVERTED OUT --backend "
            "tensorrt --weights "
            "bound --block-size 16 --kv-rows 1024 --max-sessions 4 --max-step-rows 512`.",
        ),
        (PLAN + b"x", f"{len(PLAN) + 1} bytes long"),
        (b"x" + PLAN[1:], "(altered); copy it again, or build it again"),
        (None, "cannot be read (No such file or directory); copy it again"),
    ],
)
def test_no_other_plan_is_opened(damage: bytes | None, words: str, folder: Path) -> None:
    if damage is None:
        (folder / PLAN_NAME).unlink()
    else:
        (folder / PLAN_NAME).write_bytes(damage)
    with pytest.raises(EngineFileError) as error:
        open_engine(folder, WANTED)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": None}, "backend is None, which is no such value"),
        ({"backend": "onnx"}, "'onnx' and not one of tensorrt, tensorrt_rtx, tensorrt_llm"),
        ({"weights": "floating"}, "'floating' and not one of bound, baked"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": True}, "block_size is True"),
        ({"max_batch": "4"}, "max_batch is '4'"),
        ({"format": 2}, "format is 2 and this program reads 1"),
        ({"more": 1}, "the field 'more' is unknown"),
    ],
)
def test_a_strange_manifest_is_refused(change: dict[str, object], words: str, folder: Path) -> None:
    path = folder / ENGINE_MANIFEST_NAME
    path.write_text(
        json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8"
    )
    with pytest.raises(EngineFileError) as error:
        read_engine_manifest(folder)
    assert words in str(error.value) and "build the engine again" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"format": 1}', "[" * 100_000])
def test_a_damaged_manifest_is_refused(text: str, folder: Path) -> None:
    (folder / ENGINE_MANIFEST_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(EngineFileError, match="build the engine again"):
        read_engine_manifest(folder)


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        EngineFileError, match="holds no finished engine; name another folder with --engine"
    ):
        read_engine_manifest(tmp_path)


@pytest.mark.parametrize(
    "address", ["https://example.org/engine", "s3://bucket/engine", "file:///engine"]
)
def test_no_engine_comes_from_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is an address; name a folder of this machine"):
        read_engine_manifest(Path(address))


def test_the_options_say_what_is_wanted(tiny_checkpoint: Path) -> None:
    config = EngineConfig(checkpoint=tiny_checkpoint, runtime="tensorrt_rtx")
    wanted = engine_requirements(config, LIMITS, "1.7", "8.9")
    assert wanted == EngineRequirements(
        "tensorrt_rtx", checkpoint_digest(tiny_checkpoint), "1.7", "8.9", None, LIMITS
    )
    assert (
        engine_requirements(dataclasses.replace(config, dtype="float8"), LIMITS, "1.7", "8.9").dtype
        == "float8"
    )


@pytest.mark.parametrize("place", ["config", "first tensor", "last tensor", "name"])
def test_checkpoints_are_told_apart(place: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_checkpoint / name).read_bytes())
    assert checkpoint_digest(tmp_path) == checkpoint_digest(tiny_checkpoint)
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    if place == "config":
        text = (tmp_path / "config.json").read_text(encoding="utf-8")
        changed = text.replace('"rope_theta": 1000000', '"rope_theta": 10000')
        assert changed != text
        (tmp_path / "config.json").write_text(changed, encoding="utf-8")
    elif place == "name":
        weights = weights.replace(b"text_norm", b"next_norm")
    else:
        where = 8 + int.from_bytes(weights[:8], "little") if place == "first tensor" else -1
        weights[where] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    try:
        assert checkpoint_digest(tmp_path) != checkpoint_digest(tiny_checkpoint)
    except MossError:
        assert place == "name"


@hypothesis.given(
    hypothesis.strategies.recursive(
        hypothesis.strategies.none()
        | hypothesis.strategies.booleans()
        | hypothesis.strategies.integers()
        | hypothesis.strategies.floats()
        | hypothesis.strategies.text(max_size=4),
        lambda inner: (
            hypothesis.strategies.lists(inner, max_size=3)
            | hypothesis.strategies.dictionaries(
                hypothesis.strategies.sampled_from(
                    [field.name for field in dataclasses.fields(EngineManifest)]
                ),
                inner,
            )
        ),
        max_leaves=8,
    )
)
@hypothesis.settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
def test_whatever_a_manifest_holds_is_read_or_refused(folder: Path, values: object) -> None:
    text = json.dumps({"format": 1, **values} if isinstance(values, dict) else values)
    (folder / ENGINE_MANIFEST_NAME).write_text(text, encoding="utf-8")
    try:
        outcome: object = dataclasses.asdict(read_engine_manifest(folder))
    except EngineFileError as error:
        outcome = str(error)
    assert (
        outcome == json.loads(text)
        if isinstance(outcome, dict)
        else ENGINE_MANIFEST_NAME in str(outcome)
    )
