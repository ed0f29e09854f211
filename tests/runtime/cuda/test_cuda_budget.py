"""Everything of the published size within 22 GB of GPU memory, under a cap that cannot be
passed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
pytest.importorskip("tests.runtime.cuda.cuda_support")
if not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 23e9:
    pytest.skip("needs a GPU with 23 GB free", allow_module_level=True)
if importlib.util.find_spec("bigvgan") is None:
    pytest.skip("bigvgan is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[3]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.bench", "budget", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_four_sessions_and_the_codec_fit(tmp_path: Path) -> None:
    done = run("--limit-gb", "22", "--dtype", "float8", "--out", str(tmp_path / "budget.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "budget.json").read_text(encoding="utf-8"))
    assert found["sessions"] == 4 and found["rows_each"] == 2048
    assert (
        found["reserved_peak_gb"] < 21
    )  # the driver's own part comes on top; other processes count as device_more_gb


def test_the_cap_is_one() -> None:
    done = run("--limit-gb", "11", "--dtype", "float8")
    assert done.returncode != 0 and "OutOfMemoryError" in done.stderr
