"""The torch runtime on a CPU: the contract in every number format, and what only this runtime
promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from moss_engine.api.tokens import Row
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager import network
from moss_engine.runtime.eager.network import FloatLinear, Int8Linear
from moss_engine.runtime.eager.runtime import FEW_ROWS, TorchRuntime, load_torch_runtime
from tests.fixtures.golden import make as golden
from tests.runtime.runtime_contract import LIMITS, FourBits, RuntimeContract

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype | str, device: torch.device = CPU) -> TorchRuntime:
    return load_torch_runtime(folder, LIMITS, device=device, dtype=dtype, threads=1)


class TorchContract(RuntimeContract):
    dtype: torch.dtype | str = torch.float32
    device = CPU
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path) -> TorchRuntime:
        return load(tiny_checkpoint, cls.dtype, cls.device)


class TestFloat32(TorchContract):
    """Only the order of sums differs from the reference: a few units of the 24-bit mantissa,
    through four layers."""

    tolerance = drift = 2e-5


class TestInt8(TorchContract):
    """Weights are the reference's; activations in front of each product are rounded to 8 bits of
    mantissa."""

    dtype = "int8"
    tolerance = drift = 0.1
    exact_batch = True

    @pytest.mark.parametrize("num_rows", [2, 3, FEW_ROWS])
    def test_few_rows_have_the_bits_of_as_many_steps(self, num_rows: int) -> None:
        """Also beside others, of which one has fewer and one is not sampled."""
        parts, alone = [], []
        for count, cached in ((num_rows, 20), (2, 5), (1, 33)):
            rows, tables = self.rows(cached + count), (self.table(48), self.table(48))
            for table in tables:
                self.fill(rows, table, cached)
            for end in range(cached + 1, len(rows) + 1):
                logits = self.forward(self.part(rows, tables[0], end - 1, end))
            alone.append(logits)
            part = self.part(rows, tables[1], cached, len(rows))
            parts.append(part._replace(of_reply=True))
        parts.insert(1, self.part(self.rows(4), self.table(4), 0, 4, sample=False))
        together = self.forward(*parts)
        for i, logits in enumerate(alone):
            self.assert_close(self.pick(together, i), logits, 0.0)


class TestBfloat16(TorchContract):
    """Weights too are rounded to 8 bits."""

    dtype = torch.bfloat16
    tolerance, drift = 0.15, 0.1


class TestFloat32Of4Bits(TestFloat32, FourBits):
    """Only the order of sums differs from the reference."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestFloat32OnGpu(TorchContract):
    """Other kernels, the same format; decoding sequences are padded to others' lengths."""

    device = torch.device("cuda:0")
    tolerance = drift = 1e-3


@pytest.fixture
def runtime(tiny_checkpoint: Path) -> TorchRuntime:
    return load(tiny_checkpoint, torch.float32)


def rows_of_golden() -> tuple[Row, ...]:
    return tuple(Row(*row) for row in golden.golden_rows())


def one(rows: tuple[Row, ...], table: tuple[int, ...], num_cached: int = 0) -> ScheduledBatch:
    return ScheduledBatch((ScheduledSequence(rows, num_cached, table, True),))


def test_stale_values_of_a_block_are_never_read(runtime: TorchRuntime) -> None:
    """Another sequence may have left NaN in the pool: its blocks, once freed, harm nobody."""
    rows, tables = rows_of_golden(), (tuple(range(8)), tuple(range(20, 28)))
    expected = [runtime.forward(one(rows[:end], tables[0])) for end in (5, 11)]
    assert runtime._pool is not None
    runtime._pool.tensor.fill_(torch.nan)
    for end, table in zip((5, 11), tables, strict=True):
        runtime.forward(one(rows[: end - 1], table))
    decode = [
        ScheduledSequence(rows[end - 1 : end], end - 1, table, True)
        for end, table in zip((5, 11), tables, strict=True)
    ]
    logits = runtime.forward(ScheduledBatch(tuple(decode)))
    for i in range(2):
        torch.testing.assert_close(logits.text[i], expected[i].text[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "batch",
    [
        ScheduledBatch(()),
        ScheduledBatch((ScheduledSequence((), 0, (0,), True),)),
        one(rows_of_golden(), (0, 1)),
        one(rows_of_golden()[:4] * 30, tuple(range(40))),
        one(rows_of_golden()[:1], tuple(range(128)), num_cached=LIMITS.max_seq_len),
        ScheduledBatch(one(rows_of_golden()[:1], (0,)).sequences * (LIMITS.max_batch + 1)),
    ],
)
def test_batches_beyond_the_limits_are_our_mistake(
    batch: ScheduledBatch, runtime: TorchRuntime
) -> None:
    with pytest.raises(AssertionError):
        runtime.forward(batch)


def test_closed_runtime_runs_nothing(runtime: TorchRuntime) -> None:
    runtime.close()
    runtime.close()
    with pytest.raises(AssertionError, match="closed"):
        runtime.forward(one(rows_of_golden(), tuple(range(8))))


@pytest.mark.parametrize("prefill_dtype", [torch.float32, torch.bfloat16])
def test_int8_linear_against_the_widened_product(prefill_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values, scale = torch.randint(-127, 128, (96, 64), dtype=torch.int8), torch.rand(96) / 100
    x = torch.randn(12, 64).bfloat16().float()  # exact in both formats
    linear = Int8Linear(values, scale, prefill_dtype)
    exact = x.double() @ (values.double() * scale.double().unsqueeze(1)).T
    for num_decode in (0, 5, 12):
        found = linear(x, num_decode)
        assert found.dtype == torch.float32
        assert (
            (found - exact).abs() <= exact.abs() * 2**-8 + 1e-3
        ).all()  # one rounding to bfloat16
        assert torch.equal(found[:num_decode], linear(x[:num_decode], num_decode))


MOST_ROWS = 200


def layers() -> list[Int8Linear | FloatLinear]:
    values = torch.randint(-127, 128, (40, 48), dtype=torch.int8)
    scale = torch.rand(40) + 0.5
    return [
        Int8Linear(values, scale, torch.bfloat16),
        FloatLinear(torch.randn(40, 48, dtype=torch.bfloat16)),
    ]


def test_prompts_of_any_length_need_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's kernels are kept for each number of rows: memory would grow with every new one."""
    multiply, seen = F.linear, []
    noted = lambda x, weight: seen.append(x.shape[0]) or multiply(x, weight)  # noqa: E731
    monkeypatch.setattr(network.F, "linear", noted)
    for layer in layers():
        seen.clear()
        for rows in range(1, MOST_ROWS):
            assert layer(torch.randn(rows, 48), 0).shape == (rows, 40)
        assert set(seen) == {16, 32, 48, 64, 128, 192, 256}


def test_a_row_has_the_same_values_whatever_it_is_multiplied_with():
    x = torch.randn(MOST_ROWS, 48)
    for layer in layers():
        together = layer(x, 0)
        for rows in (1, 15, 16, 17, 64, 65, 129):
            assert torch.equal(layer(x[:rows], 0), together[:rows])
