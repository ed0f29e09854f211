"""The CUDA runtime keeps the contract of every runtime, and its parity ladder: float32 network ->
cached and batched kernels -> graphs -> bfloat16."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")

from moss_engine.api.errors import ConfigError  # noqa: E402
from moss_engine.models.checkpoint import expected_tensors, stream_tensors  # noqa: E402
from moss_engine.models.config import ModelConfig  # noqa: E402
from moss_engine.models.layout import Bits, bits_of_format, stored_bits  # noqa: E402
from moss_engine.runtime.base import Limits, ScheduledBatch  # noqa: E402
from moss_engine.runtime.cuda.runtime import CudaRuntime, load_cuda_runtime  # noqa: E402
from moss_engine.runtime.cuda.weights import Float8, allocate, fill  # noqa: E402
from tests.runtime.cuda.cuda_support import (  # noqa: E402
    DEVICE,
    INTERPRETED,
    LIMITS,
    SMALL,
    Reference,
    make_runtime,
    make_weights,
    random_rows,
    relative_error,
    share,
)
from tests.runtime.runtime_contract import LIMITS as CONTRACT  # noqa: E402
from tests.runtime.runtime_contract import FourBits, RuntimeContract  # noqa: E402

# float32 on both sides: only the order of sums differs.
EXACT = 2e-5
# Weights, activations and KV rounded to 8 bits of mantissa in three layers and a head.
BFLOAT16 = 3e-2
# Rows as float8 as well: 3 bits of mantissa at the input of every linear layer.
FLOAT8 = 0.15

on_gpu = pytest.mark.skipif(INTERPRETED, reason="graphs and bfloat16 products need a GPU")


@pytest.fixture(scope="module")
def weights():
    return make_weights()


@pytest.fixture(scope="module")
def reference(weights):
    return Reference(weights)


def assert_parity(logits, index, reference, rows, tolerance=EXACT):
    text, audio = reference.logits(rows)
    assert relative_error(logits.text[index], text) < tolerance
    assert relative_error(logits.audio[index], audio) < tolerance


@on_gpu
def test_large_batches(weights, reference):
    limits = Limits(block_size=16, num_blocks=64, max_batch=32, max_step_rows=256, max_seq_len=200)
    runtime = make_runtime(weights, limits=limits)
    sequences = [random_rows(5 + i, 100 + i) for i in range(20)]
    tables = [(2 * i, 2 * i + 1) for i in range(20)]
    pairs = [*zip(sequences, tables, strict=True)]
    half = [share(rows, 0, len(rows) - 2, table) for rows, table in pairs]
    for part in (half[:10], half[10:]):
        runtime.forward(ScheduledBatch(tuple(part)))
    for back in (2, 1):
        last = [share(rows, len(rows) - back, len(rows) - back + 1, table) for rows, table in pairs]
        logits = runtime.forward(ScheduledBatch(tuple(last)))
        for index, rows in enumerate(sequences):
            assert_parity(logits, index, reference, rows[: len(rows) - back + 1])


@on_gpu
def test_graphs_equal_single_kernels(weights):
    """The same kernels in the same order: bit for bit."""
    eager, captured = make_runtime(weights, graphs=False), make_runtime(weights)
    rows, table = random_rows(40, 9), tuple(range(10))
    for start, end in ((0, 37), (37, 38), (38, 40)):
        batch = ScheduledBatch((share(rows, start, end, table),))
        wanted, logits = eager.forward(batch), captured.forward(batch)
        assert torch.equal(wanted.text, logits.text) and torch.equal(wanted.audio, logits.audio)


@on_gpu
def test_graphs_own_the_memory_that_they_use(weights, reference):
    """Whatever is allocated after they were captured lies elsewhere."""
    runtime = make_runtime(weights)
    others = [
        torch.full((size,), torch.nan, device=DEVICE)
        for size in (1 << 8, 1 << 12, 1 << 16, 1 << 20) * 40
    ]
    rows, table = random_rows(40, 13), tuple(range(10))
    for start, end in ((0, 37), (37, 38)):
        logits = runtime.forward(ScheduledBatch((share(rows, start, end, table),)))
        assert_parity(logits, 0, reference, rows[:end])
    assert all(other.isnan().all() for other in others)


@on_gpu
@pytest.mark.parametrize("float8", [Float8.TRUNK, Float8.ALL])
def test_float8_weights_are_near_their_widened_values(float8):
    """A row alone meets widened weights; rows of a prefill are float8 themselves, with 3 bits of
    mantissa."""
    config = dataclasses.replace(SMALL, vocab_size=160)
    weights = make_weights(config, dtype=torch.bfloat16, float8=float8)
    runtime, reference = make_runtime(weights, config), Reference(weights, config)
    rows, table = random_rows(20, 12), (4, 5, 6, 7, 8)
    for end in range(1, 5):
        logits = runtime.forward(ScheduledBatch((share(rows, end - 1, end, table),)))
        assert_parity(logits, 0, reference, rows[:end], BFLOAT16)
    logits = runtime.forward(ScheduledBatch((share(rows, 0, 19, table),)))
    assert_parity(logits, 0, reference, rows[:19], FLOAT8)
    logits = runtime.forward(ScheduledBatch((share(rows, 19, 20, table),)))
    assert_parity(logits, 0, reference, rows, FLOAT8)


def test_float8_of_odd_sizes_is_refused():
    with pytest.raises(ConfigError, match="vocab_size 150"):
        make_weights(float8=Float8.ALL)


def test_an_old_gpu_is_refused_before_weights_are_read(monkeypatch, tmp_path):
    """There is not even a checkpoint in the folder."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "An old GPU")
    for found, float8, words in (
        ((7, 5), Float8.NONE, "7.5 and the CUDA runtime needs 8.0; use --device cpu"),
        ((8, 6), Float8.TRUNK, "8.6 and float8 needs 8.9; use --dtype bfloat16"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=found: found)
        with pytest.raises(ConfigError) as error:
            load_cuda_runtime(
                tmp_path, LIMITS, device=torch.device("cuda:0"), dtype=torch.bfloat16, float8=float8
            )
        assert f"An old GPU has compute capability {words}" in str(error.value)


def load(
    folder: Path, dtype: torch.dtype, bits: Bits | None = None, *, kv_int8: bool = False
) -> CudaRuntime:
    config = ModelConfig.from_file(folder / "config.json")
    weights = allocate(config, dtype, DEVICE, bits=bits)
    tensors = stream_tensors(
        folder,
        expected_tensors(config),
        dtype=dtype,
        keep_int8=bits is not None,
        keep_int4=bits is not None,
    )
    fill(weights, config, tensors)
    return make_runtime(weights, config, CONTRACT, kv_int8=kv_int8)


class CudaContract(RuntimeContract):
    dtype = torch.float32
    exact_batch = False  # one row alone goes through other kernels than several
    kv_int8 = False

    @staticmethod
    def bits(folder: Path, config: ModelConfig) -> Bits | None:
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> CudaRuntime:
        config = ModelConfig.from_file(tiny_checkpoint / "config.json")
        bits = cls.bits(tiny_checkpoint, config)
        return load(tiny_checkpoint, cls.dtype, bits, kv_int8=cls.kv_int8)


class TestFloat32(CudaContract):
    """Only the order of sums differs from the reference: a few units of the 24-bit mantissa,
    through four layers."""

    tolerance = drift = 1e-4


class TestKvInt8(CudaContract):
    """Keys and values are rounded to 7 bits of the largest of a row and head. A value that another
    order of sums leaves on the other side of a half is rounded to the next step."""

    kv_int8 = True
    tolerance, drift = 3e-2, 1e-2


@pytest.mark.skipif(INTERPRETED, reason="bfloat16 products need a GPU")
class TestBfloat16(CudaContract):
    """Weights, activations and KV are rounded to 8 bits of mantissa. A row alone is rounded in
    fewer places than one beside others: of 60, with logits up to 12, one differed by 0.21, all
    others by less than 0.09."""

    dtype = torch.bfloat16
    tolerance, drift = 0.15, 0.25


class TestKvInt8Bfloat16(TestBfloat16):
    kv_int8 = True


# Rows become integers of 16 bits; on a GPU those of float32 do when they are alone.
PACKED = 1e-3 if INTERPRETED else 2e-2


class TestInt8(CudaContract):
    """The stored weights, widened in the products."""

    tolerance = drift = PACKED

    @staticmethod
    def bits(folder: Path, config: ModelConfig) -> Bits:
        return bits_of_format(config, "int8")


class TestInt4(CudaContract, FourBits):
    tolerance = drift = PACKED

    @staticmethod
    def bits(folder: Path, config: ModelConfig) -> Bits:
        return stored_bits(folder, config)
