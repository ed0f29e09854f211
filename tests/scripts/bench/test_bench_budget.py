"""The memory proof's parts that need no GPU: the codec is used as in a conversation, and a GPU is
asked for first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import ConfigError
from moss_engine.models.config import PUBLISHED
from scripts.bench.lm.cuda import make_runtime
from scripts.bench.random_weights import Parts
from scripts.bench.service.budget import talk
from tests.scripts.bench.test_bench_codec import TINY

ROOT = Path(__file__).resolve().parents[3]


def test_a_question_is_encoded_and_everybody_is_spoken_to(monkeypatch: pytest.MonkeyPatch):
    codec = Parts(TINY, torch.device("cpu")).codec(torch.float32, 2)
    encoded, spoken = [], []
    encode, push = codec.encode, codec.push_together
    monkeypatch.setattr(codec, "encode", lambda *args: encoded.append(args) or encode(*args))
    monkeypatch.setattr(codec, "push_together", lambda work: spoken.append(len(work)) or push(work))
    talk(codec, 2)
    assert len(encoded) == 1 and len(encoded[0][0]) == 160_000 and spoken == [2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench.service.budget"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "GPU" in done.stderr


def test_too_little_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr("moss_engine.runtime.memory.free_bytes", lambda _: 20 << 30)
    with pytest.raises(ConfigError, match=r"needs 27\.9\d GiB .* 20\.00 GiB are free"):
        make_runtime(PUBLISHED, 4, 65_536, "none", device=torch.device("cpu"))
