"""The comparison of attentions, at a small size: what every method is given, the ones that run
without a GPU, and what is reported of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from moss_engine.models.config import PUBLISHED
from scripts.bench.common.timing import Ceilings, Report
from scripts.bench.lm import attention as bench_attention
from scripts.bench.lm.attention_case import Case, Scene, decode_case
from scripts.bench.lm.attention_flex import torch_flex
from scripts.bench.lm.attention_kernels import OURS, Kernels, Method
from scripts.bench.lm.attention_methods import flashinfer, others, page_lists, torch_sdpa

CPU = torch.device("cpu")
SMALL = replace(
    PUBLISHED, num_attention_heads=6, num_key_value_heads=2, head_dim=16, hidden_size=96
)
MIXED = Case("mixed", (20, 0, 37), (1, 19, 3))


def scene(case: Case, **sizes) -> Scene:
    return Scene(
        SMALL, case, CPU, torch.float32, **{"max_slots": 2, "pool_bytes": 1 << 30, **sizes}
    )


def test_a_case_knows_its_rows():
    assert MIXED.lengths == [21, 19, 40] and MIXED.starts == [0, 1, 20, 23] and MIXED.num_rows == 23
    assert (
        not MIXED.decodes and decode_case(3, 20).decodes and decode_case(3, 20).lengths == [21] * 3
    )


def test_as_many_slots_as_fit():
    assert scene(MIXED).num_slots == 2
    one = 2 * 10 * 2 * 16 * 16 * 4
    assert scene(MIXED, max_slots=40, pool_bytes=3 * one).num_slots == 3
    assert scene(MIXED, pool_bytes=1).num_slots == 1
    assert scene(MIXED).kv_bytes == 2 * 80 * 2 * 16 * 4


def test_new_rows_are_in_every_slot_at_their_places():
    given = scene(MIXED)
    new_values = given.qkv[:, 8 * 16 :].view(-1, 2, 16)
    for slot in range(2):
        _, values = given.packed(slot)  # [80, 2, 16]
        assert torch.equal(values[20], new_values[0]) and torch.equal(
            values[21:40], new_values[1:20]
        )
        assert torch.equal(values[77:80], new_values[20:])
    keys, _ = given.packed(0)
    assert torch.allclose(
        keys[20].square().mean(-1), keys[79].square().mean(-1), atol=0.3
    )  # normed


@pytest.mark.parametrize(
    "case", [decode_case(3, 20), decode_case(1, 15), Case("square", (0,), (33,))]
)
def test_both_gathers_hold_the_same(case: Case):
    given = scene(case)
    for whole, packed in zip(given.gathered(1), given.packed(1), strict=True):
        assert torch.equal(whole.transpose(1, 2).flatten(0, 1), packed)


@pytest.mark.parametrize("case", [decode_case(3, 20), Case("square", (0,), (33,))])
def test_gathered_attention_agrees_and_a_wrong_one_does_not(case: Case):
    given = scene(case)
    method = torch_sdpa(given, SDPBackend.MATH)
    assert given.error(method.attend(0)) < 1e-5 and torch.allclose(
        method.whole(1), method.attend(1), atol=1e-5
    )
    if case.decodes:
        assert given.error(method.attend(1)) > 0.01  # another slot's keys and values
    assert given.error(method.attend(0).roll(1, 1)) > 0.01


@pytest.mark.parametrize("case", [decode_case(2, 300), Case("more", (130,), (140,))])
def test_flex_attention_finds_its_pages(case: Case):
    given = scene(case)
    assert given.error(torch_flex(given, compiled=False).attend(0)) < 1e-5


def test_page_lists_name_every_page_in_order():
    given = scene(MIXED)
    begins, pages, last = page_lists(given)
    assert begins.tolist() == [0, 2, 4, 7] and last.tolist() == [5, 3, 8]
    assert pages.tolist() == [
        *given.tables[0, :2].tolist(),
        *given.tables[1, :2].tolist(),
        *given.tables[2].tolist(),
    ]


@pytest.mark.parametrize(
    ("case", "backend", "wrapper"),
    [
        (decode_case(2, 20), "fa2", "decode"),
        (decode_case(2, 20), "cuda_cores", "decode"),
        (decode_case(2, 20), "fa3", "prefill"),
        (MIXED, "fa2", "prefill"),
    ],
)
def test_flashinfer_is_given_the_pool_as_it_lies(
    case: Case, backend: str, wrapper: str, monkeypatch
):
    class Wrapper:
        def __init__(self, kind, workspace, layout, **options):
            self.kind = kind
            assert layout == "HND" and not workspace.any()

        def plan(self, *lists, **options):
            assert lists[-4:] == (6, 2, 16, 16) and options["kv_data_type"] is torch.float32
            assert options.get("causal", False) == (self.kind == "prefill")

        def run(self, queries, pools, out):
            assert queries.shape == (case.num_rows, 6, 16) and torch.equal(pools[0], given.keys[1])
            return out.fill_({"decode": 1, "prefill": 2}[self.kind])

    monkeypatch.setitem(
        sys.modules,
        "flashinfer",
        SimpleNamespace(
            __version__="9",
            BatchDecodeWithPagedKVCacheWrapper=lambda *a, **o: Wrapper("decode", *a, **o),
            BatchPrefillWithPagedKVCacheWrapper=lambda *a, **o: Wrapper("prefill", *a, **o),
        ),
    )
    given = scene(case)
    method = flashinfer(given, backend)
    assert method.name == f"FlashInfer 9 ({backend})" and method.plan_ms is not None
    assert method.attend(1).unique().tolist() == [{"decode": 1, "prefill": 2}[wrapper]]


def test_the_report_names_what_differs_and_what_cannot_be_measured(
    monkeypatch, tmp_path: Path, capsys
):
    given = scene(decode_case(2, 20))
    right = torch_sdpa(given, SDPBackend.MATH)

    class FakeKernels:
        def __init__(self, _):
            pass

        def store(self, slot: int) -> None:
            pass

        def method(self) -> Method:
            return replace(right, name=OURS, fused=True, gather=None)

    def missing() -> Method:
        raise ModuleNotFoundError("No module named 'flashinfer'")

    def refused() -> Method:
        raise RuntimeError("heads of 16 are not supported")

    wrong = Method("a wrong one", lambda slot: torch.zeros(2, 6, 16))
    monkeypatch.setattr(bench_attention, "Kernels", FakeKernels)
    monkeypatch.setattr(
        bench_attention,
        "others",
        lambda _: [
            ("FlashInfer", missing),
            ("another", refused),
            ("a wrong one", lambda: wrong),
            ("SDPA", lambda: right),
        ],
    )
    times = iter((10.0, 3.0, 4.0, 20.0, 6.0, 30.0, 5.0))
    monkeypatch.setattr(bench_attention, "layer_us", lambda *_: next(times))
    report = Report(
        {"attention": [], "not_measured": {}, "read_bytes_per_s": 1e12}, tmp_path / "a.json"
    )
    bench_attention.compare(given, report)
    saved = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [
        (
            row["method"],
            row["attention_us"],
            row["gather_us"],
            row["layer_us"],
            row["times_ours"],
            row["agrees"],
        )
        for row in saved["attention"]
    ] == [
        (OURS, None, None, 10, 1, True),
        ("a wrong one", 4, None, 20, 2, False),
        ("torch SDPA (math), gathered KV", 6, 5, 30, 3, True),
    ]
    assert saved["attention"][0]["store_us"] == 3 and saved["attention"][0]["limit_us"] > 0
    assert saved["not_measured"]["FlashInfer"].startswith("not installed")
    assert "heads of 16" in saved["not_measured"]["another: decode, batch 2, context 20"]
    assert "DIFFERS" in capsys.readouterr().out


def test_every_kind_of_case_offers_what_can_run_it():
    def names(case: Case) -> list[str]:
        return [name for name, _ in others(scene(case))]

    assert "FlashInfer (cuda_cores)" in names(
        decode_case(2, 20)
    ) and "torch SDPA (flash_attention)" in names(Case("square", (0,), (20,)))
    assert names(MIXED) == ["FlashInfer (fa2)", "FlashInfer (fa3)", "torch varlen_attn"]
    assert names(decode_case(2, 20, flex=True))[-1] == "torch FlexAttention"


@pytest.mark.gpu
@pytest.mark.parametrize("case", [decode_case(3, 20), MIXED, Case("square", (0,), (17,))])
def test_the_runtime_s_kernels_agree(case: Case):
    support = pytest.importorskip("tests.runtime.cuda.cuda_support")
    given = Scene(SMALL, case, support.DEVICE, torch.float32, max_slots=2, pool_bytes=1 << 30)
    kernels = Kernels(given)
    last = case.lengths[0] - 1
    for pool in (given.keys, given.values):
        pool[:, given.tables[0, last // 16].long(), :, last % 16] = torch.nan
    kernels.store(0)
    method = kernels.method()
    assert method.fused == case.decodes and given.error(method.attend(0)) < 1e-4
    assert not given.keys[0].isnan().any() and given.keys[1].isnan().any()


@pytest.mark.gpu
def test_all_of_it_on_a_gpu(monkeypatch, tmp_path: Path):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(bench_attention, "measure_ceilings", lambda: Ceilings(4e12, 4e12, 8e14))
    monkeypatch.setattr(
        bench_attention, "CASES", {"all": (decode_case(2, 40), replace(MIXED, name="rows"))}
    )
    bench_attention.main(["--cases", "all", "--out", str(tmp_path / "a.json")])
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    ours = [row for row in report["attention"] if row["method"] == OURS]
    assert [row["case"] for row in ours] == ["decode, batch 2, context 40", "rows"]
    assert all(row["agrees"] and row["layer_us"] > 0 for row in report["attention"])
