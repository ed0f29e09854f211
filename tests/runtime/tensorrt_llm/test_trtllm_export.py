"""The tensorrt_llm network: recorded call by call, then run through the runtime against the
emulated plugin."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from moss_engine.api.errors import ConfigError, MissingPackageError
from moss_engine.config import EngineConfig
from moss_engine.export import tensorrt_llm as trtllm_build
from moss_engine.export import tensorrt_llm_network as trtllm_network
from moss_engine.export.target import BuildTarget
from moss_engine.export.tensorrt_llm import build_llm_plan
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, save_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.converted import Converted, open_converted
from moss_engine.models.float8 import largest_inputs_path
from moss_engine.models.network import MossSpeech, load_model
from moss_engine.runtime.base import Limits
from moss_engine.runtime.engine_manifest import (
    PLAN_NAME,
    EngineManifest,
    plan_digest,
    write_engine_manifest,
)
from moss_engine.runtime.tensorrt_llm.load import load_trtllm_runtime
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime
from scripts.convert import convert
from tests.fixtures.make_tiny_checkpoint import make_tensors
from tests.runtime.runtime_contract import RuntimeContract
from tests.runtime.tensorrt_llm import recorded_llm
from tests.runtime.tensorrt_llm.trtllm_emulator import PLANS, SHAPES_1_2_1, Engine
from tests.runtime.tensorrt_llm.trtllm_support import CPU, conversation, emulated

LIMITS = Limits(block_size=8, num_blocks=128, max_batch=6, max_step_rows=96, max_seq_len=512)
"""A block holds a power of two rows, at least 8."""


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with emulated(tmp_path_factory.mktemp("plugin")) as plugin:
        yield plugin


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that bfloat16 holds exactly, and calibrated inputs."""
    folder = tmp_path_factory.mktemp("weights")
    shutil.copy(tiny_checkpoint / "config.json", folder)
    config = ModelConfig.from_file(folder / "config.json")
    tensors = {name: tensor.bfloat16().float() for name, tensor in make_tensors(config).items()}
    save_tensors(folder / FILE_NAME, tensors)
    linear = [
        name
        for name, shape in expected_tensors(config).items()
        if len(shape) == 2 and "embed" not in name
    ]
    save_file({name: torch.tensor([16.0]) for name in linear}, largest_inputs_path(folder))
    return folder


def converted_as(checkpoint: Path, folder: Path, dtype: str) -> Converted:
    convert(checkpoint, folder, dtype)
    return open_converted(folder)


def in_float32(converted: Converted, checkpoint: Path) -> Converted:
    """The same layout with float32 values, so that only the network's wiring can make a
    difference."""

    class Wide(Converted):
        def read(self, name: str) -> torch.Tensor:
            return super().read(name).float()

    return Wide(
        converted.folder,
        converted.config,
        "float32",
        converted.checkpoint_digest,
        converted.tensors,
    )


def build(
    converted: Converted, folder: Path, weights: str, library: Path, limits: Limits = LIMITS
) -> tuple[EngineManifest, Engine]:
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    with recorded_llm.installed():
        built = build_llm_plan(
            converted,
            BuildTarget("tensorrt_llm", weights, None, limits),
            folder / PLAN_NAME,
            lines.append,
        )
    assert "building" in lines and built.notes == {"tensorrt_llm": "1.2.1"}
    digest, num_bytes = plan_digest(folder / PLAN_NAME)
    manifest = EngineManifest(
        "tensorrt_llm",
        converted.checkpoint_digest,
        built.library_version,
        built.compute_capability,
        converted.dtype,
        weights,
        **dataclasses.asdict(limits),
        plan_digest=digest,
        plan_bytes=num_bytes,
        plugin_digest=built.plugin_digest,
    )
    write_engine_manifest(folder, manifest)
    return manifest, PLANS[(folder / PLAN_NAME).read_bytes()]


def open_engine(checkpoint: Path, folder: Path, engine: Engine) -> TrtLlmRuntime:
    options = EngineConfig(checkpoint=checkpoint, runtime="tensorrt_llm", engine=folder)
    runtime = load_trtllm_runtime(options, LIMITS, CPU)
    engine.network.plugin.memory.append(runtime._pool)  # type: ignore[attr-defined]
    return runtime


class Contract(RuntimeContract):
    exact_batch = False
    dtype = "bfloat16"

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, checkpoint: Path) -> MossSpeech:
        return load_model(checkpoint)

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(
        cls, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, library: Path
    ) -> TrtLlmRuntime:
        folder = tmp_path_factory.mktemp("engine")
        converted = converted_as(
            checkpoint, folder / "converted", "float8" if cls.dtype == "float8" else "bfloat16"
        )
        if cls.dtype == "float32":
            converted = in_float32(converted, checkpoint)
        _, engine = build(converted, folder, "baked", library)
        return open_engine(checkpoint, folder, engine)


class TestWiring(Contract):
    """In float32 only the order of sums differs from the reference."""

    tolerance = drift = 2e-5
    dtype = "float32"


class TestBfloat16(Contract):
    """Rows and products are rounded to 8 bits of mantissa, KV too; the residual stream is not."""

    tolerance = 0.15
    drift = 0.1


class TestFloat8(Contract):
    """Layer matrices and their inputs are rounded to 3 bits of mantissa."""

    tolerance = 1.2
    drift = 0.6
    dtype = "float8"


@pytest.fixture(scope="module")
def converted(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted_as(checkpoint, tmp_path_factory.mktemp("converted") / "out", "bfloat16")


def test_the_engine_has_release_1_2_1s_inputs(
    converted: Converted, tmp_path: Path, library: Path
) -> None:
    _, engine = build(converted, tmp_path, "baked", library)
    num_layers = converted.config.num_layers
    assert {name: (dtype, shape) for name, (_, dtype, shape) in engine.inputs.items()} == {
        name: (dtype, tuple(num_layers if size == "L" else size for size in shape))
        for name, (dtype, shape) in SHAPES_1_2_1.items()
    }
    assert engine.outputs == {
        "logits": converted.config.vocab_size,
        "audio_logits": converted.config.audio_vocab_size,
    }
    assert engine.network.slots == list(range(num_layers))  # type: ignore[attr-defined]
    assert engine.num_optimization_profiles == 2
    assert engine.get_tensor_profile_shape("input_ids", 0) == [(1,), (6,), (6,)]
    assert engine.get_tensor_profile_shape("input_ids", 1) == [(1,), (96,), (96,)]
    assert engine.get_tensor_profile_shape("cache_indirection", 0)[2] == (6, 1, 512)
    assert engine.get_tensor_profile_shape("kv_cache_block_offsets", 1)[2] == (1, 6, 2, 64)


def test_bound_weights_are_inputs_by_the_layouts_names(
    converted: Converted, tmp_path: Path, library: Path
) -> None:
    _, engine = build(converted, tmp_path, "bound", library)
    assert set(engine.inputs) == set(SHAPES_1_2_1) | set(converted.names)
    assert engine.inputs["layers.0.qkv"][1:] == (
        "bfloat16",
        converted.tensors["layers.0.qkv"].shape,
    )


def test_bound_weights_give_the_very_same_logits(
    converted: Converted, checkpoint: Path, tmp_path: Path, library: Path
) -> None:
    """The runtime brings the checkpoint's tensors into the layout as the conversion did."""
    found = []
    for weights in ("baked", "bound"):
        _, engine = build(converted, tmp_path / weights, weights, library)
        found.append(conversation(open_engine(checkpoint, tmp_path / weights, engine)))
    for baked, bound in zip(*found, strict=True):
        assert torch.equal(baked.text, bound.text) and torch.equal(baked.audio, bound.audio)


@pytest.mark.parametrize(
    "mutation",
    [
        "no q norm",
        "k and v exchanged",
        "one norm for both branches",
        "branches exchanged",
        "rope base",
        "gate and up exchanged",
        "no text table",
    ],
)
def test_wrong_wiring_changes_the_logits(
    mutation: str,
    converted: Converted,
    checkpoint: Path,
    tmp_path: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the contract would see of the mistakes that are easily made here."""
    writer = trtllm_network.NetworkWriter
    if mutation == "no q norm":
        norm_heads = writer._norm_heads
        monkeypatch.setattr(
            writer,
            "_norm_heads",
            lambda self, x, name, heads: (
                x if "q_norm" in name else norm_heads(self, x, name, heads)
            ),
        )
    elif mutation == "rope base":
        monkeypatch.setattr(writer, "__init__", _with_config(writer.__init__, rope_theta=10_000.0))
    else:
        renamed = {
            "k and v exchanged": None,
            "one norm for both branches": ("audio.norm", "text.norm"),
            "branches exchanged": ("layers.2.", "layers.3."),
            "gate and up exchanged": None,
            "no text table": None,
        }[mutation]
        if renamed:
            original = trtllm_build.NetworkWeights.__call__
            monkeypatch.setattr(
                trtllm_build.NetworkWeights,
                "__call__",
                lambda self, name: original(self, name.replace(*renamed)),
            )
        elif mutation == "k and v exchanged":
            swap_parts(
                monkeypatch,
                "qkv",
                lambda config: (
                    config.num_attention_heads * config.head_dim,
                    config.num_key_value_heads * config.head_dim,
                ),
            )
        elif mutation == "gate and up exchanged":
            swap_parts(monkeypatch, "gate_up", lambda config: (0, config.intermediate_size))
        else:
            monkeypatch.setattr(
                writer,
                "_embed",
                lambda self, ids: self._f.cast(
                    self._f.embedding(
                        self._f.where(self._f.gt(ids, 79), 0, ids), self._weight("embed.audio")
                    ),
                    "float32",
                ),
            )
    monkeypatch.setattr(trtllm_build.NetworkWeights, "unused", lambda self: [])
    _, engine = build(in_float32(converted, checkpoint), tmp_path, "baked", library)
    contract = Contract()
    contract.model, contract.runtime = (
        load_model(checkpoint),
        open_engine(checkpoint, tmp_path, engine),
    )
    contract.tolerance = contract.drift = 2e-5
    contract.random = random.Random(3)
    contract.free = list(range(LIMITS.num_blocks))
    with pytest.raises(AssertionError):
        contract.test_every_row_agrees_with_the_reference()


def _with_config(init: Any, **change: Any) -> Any:
    def made(self: Any, functional: Any, config: ModelConfig, *args: Any) -> None:
        init(self, functional, dataclasses.replace(config, **change), *args)

    return made


def swap_parts(
    patch: pytest.MonkeyPatch, suffix: str, where: Callable[[ModelConfig], tuple[int, int]]
) -> None:
    """Exchange two neighbouring parts of a merged matrix: `where` gives the start of the first and
    their size."""
    read = Converted.read

    def swapped(self: Converted, name: str) -> torch.Tensor:
        tensor = read(self, name)
        if not name.endswith(suffix):
            return tensor
        start, size = where(self.config)
        first, one, two = tensor.split([start, size, size])
        return torch.cat([first, two, one])

    patch.setattr(Converted, "read", swapped)


def target(capability: str | None = None) -> BuildTarget:
    return BuildTarget("tensorrt_llm", "baked", capability, LIMITS)


def test_rotary_constants_are_cosine_and_sine_side_by_side() -> None:
    config = ModelConfig(
        **{
            **{f.name: 1 for f in dataclasses.fields(ModelConfig)},
            "head_dim": 128,
            "rope_theta": 1e6,
        }
    )
    frequencies, table = trtllm_network.rotary_constants(config, 40)
    assert frequencies.dtype == table.dtype == np.float32 and table.shape == (1, 40 * 128)
    assert frequencies[0] == 1 and np.isclose(frequencies[63], 1e6 ** (-126 / 128))
    pairs = table.reshape(40, 64, 2)
    assert np.allclose(
        pairs[39, 5], [np.cos(39 * 1e6 ** (-10 / 128)), np.sin(39 * 1e6 ** (-10 / 128))], atol=1e-5
    )


@pytest.mark.parametrize(
    ("dtype", "weights", "limits", "words"),
    [
        (
            "float16",
            "bound",
            LIMITS,
            "overflows with tensorrt_llm; convert with --dtype bf16 or fp8",
        ),
        ("float8", "bound", LIMITS, "build with --weights baked"),
        (
            "bfloat16",
            "baked",
            dataclasses.replace(LIMITS, block_size=24),
            "--block-size 24 is no power of two",
        ),
        (
            "bfloat16",
            "baked",
            dataclasses.replace(LIMITS, block_size=4),
            "--block-size 4 is no power of two from 8 on",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(
    dtype: str, weights: str, limits: Limits, words: str, converted: Converted, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        build_llm_plan(
            dataclasses.replace(converted, dtype=dtype),
            BuildTarget("tensorrt_llm", weights, None, limits),
            tmp_path / PLAN_NAME,
            lambda line: None,
        )
    assert not list(tmp_path.iterdir())


def test_another_release_is_refused(converted: Converted, tmp_path: Path) -> None:
    words = r"tensorrt_llm 1\.3\.0rc22 is installed and engines are built with 1\.0\.0 or 1\.2\.1"
    with recorded_llm.installed("1.3.0rc22"), pytest.raises(ConfigError, match=words):
        build_llm_plan(converted, target(), tmp_path / PLAN_NAME, print)


def test_a_missing_package_is_a_sentence(converted: Converted, tmp_path: Path) -> None:
    with pytest.raises(
        MissingPackageError, match=r"install tensorrt_llm 1\.2\.1 .*, as (docs/\S+\.md) says"
    ) as refusal:
        build_llm_plan(converted, target(), tmp_path / PLAN_NAME, print)
    (document,) = re.findall(r"docs/\S+\.md", str(refusal.value))
    assert "tensorrt_llm" in (Path(__file__).parents[3] / document).read_text(encoding="utf-8")


def test_another_gpu_is_refused(converted: Converted, tmp_path: Path) -> None:
    with recorded_llm.installed():
        with pytest.raises(
            ConfigError, match=r"--compute-capability 9\.0 differs from this GPU's 8\.9"
        ):
            build_llm_plan(converted, target("9.0"), tmp_path / PLAN_NAME, print)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            with pytest.raises(
                ConfigError, match="builds on the GPU that will run the engine, and there is none"
            ):
                build_llm_plan(converted, target(), tmp_path / PLAN_NAME, print)


def test_a_build_that_fails_is_said(
    converted: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library raises an AssertionError then."""
    monkeypatch.setattr(recorded_llm.Builder, "gives_an_engine", False)
    words = r"TensorRT built no engine \(Engine building failed.*\); .*smaller --max-step-rows"
    with recorded_llm.installed(), pytest.raises(ConfigError, match=words):
        build_llm_plan(converted, target(), tmp_path / PLAN_NAME, lambda line: None)


def test_the_stand_in_refuses_what_the_library_would() -> None:
    network = recorded_llm.Network()
    with pytest.raises(AssertionError, match="no field use_magic"):
        network.plugin_config.use_magic = True
    ones = [recorded_llm.constant(np.ones(2, kind)) for kind in (np.float32, np.int32)]
    with pytest.raises(AssertionError, match="in one operation"):
        recorded_llm.functional().add(*ones)
    with recorded_llm.net_guard(network), pytest.raises(AssertionError, match="has no ranges"):
        recorded_llm.Tensor(name="x", dtype="int32", shape=[-1])
