"""What options and a checkpoint folder make of the CUDA runtime, and the threads it runs on."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
cuda_support = pytest.importorskip("tests.runtime.cuda.cuda_support")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU: the runtime is chosen by the device", allow_module_level=True)

from moss_engine.config import EngineConfig  # noqa: E402
from moss_engine.models.checkpoint import FILE_NAME, save_tensors  # noqa: E402
from moss_engine.models.config import MODEL_TYPE, ModelConfig  # noqa: E402
from moss_engine.models.float8 import SCALES_NAME, row_scales  # noqa: E402
from moss_engine.runtime.base import ScheduledBatch  # noqa: E402
from moss_engine.runtime.cuda.weights import allocate, fill  # noqa: E402
from moss_engine.runtime.make import FLOAT8, make_runtime  # noqa: E402
from tests.fixtures.make_tiny_checkpoint import make_config, make_tensors  # noqa: E402
from tests.runtime.cuda.cuda_support import Reference, random_rows, relative_error, share  # noqa: E402

GPU = torch.device("cuda:0")


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path) -> EngineConfig:
    return EngineConfig(
        checkpoint=tiny_checkpoint, device="cuda:0", dtype="bfloat16", kv_rows=2048, max_sessions=2
    )


def test_float8_out_of_a_quantised_checkpoint(tmp_path: Path) -> None:
    """Weights from their file, scales from theirs: the logits are near those of the widened
    weights."""
    from safetensors.torch import save_file

    model = replace(make_config(304), audio_vocab_size=304)
    described = {
        **asdict(model),
        "model_type": MODEL_TYPE,
        "num_hidden_layers": model.num_shared_layers + model.num_modality_layers,
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    tensors = make_tensors(model)
    scales = {
        name: 0.9 * row_scales(tensor)
        for name, tensor in tensors.items()
        if tensor.dim() == 2 and "embed" not in name
    }
    save_tensors(tmp_path / FILE_NAME, tensors)
    save_file(scales, tmp_path / SCALES_NAME)
    options = EngineConfig(checkpoint=tmp_path, device="cuda:0", kv_rows=512, max_sessions=2)
    rows = random_rows(20, 1, model)
    for dtype in ("float8", "float8-all"):
        runtime = make_runtime(replace(options, dtype=dtype))
        assert runtime.info.dtype == "float8"
        weights = allocate(model, torch.bfloat16, GPU, FLOAT8[dtype])
        fill(weights, model, tensors.items(), scales)
        reference = Reference(weights, model)
        for end in (1, 2, 3, 20):
            start = end - 1 if end < 20 else 3
            logits = runtime.forward(ScheduledBatch((share(rows, start, end, (2, 0)),)))
            for found, wanted in zip(logits, reference.logits(rows[:end]), strict=True):
                assert relative_error(found[0], wanted) < (0.03 if end < 20 else 0.15)
        pair = ScheduledBatch((share(rows, 19, 20, (2, 0)), share(rows, 2, 3, (2, 0))))
        logits = runtime.forward(pair)
        for i, end in enumerate((20, 3)):
            for found, wanted in zip(logits, reference.logits(rows[:end]), strict=True):
                assert relative_error(found[i], wanted) < 0.15


def test_a_runtime_runs_on_whichever_thread_calls(config: EngineConfig) -> None:
    """Made on one thread, used on another, as the service does."""
    runtime, found = make_runtime(config), []
    model = ModelConfig.from_file(config.checkpoint / "config.json")
    batch = ScheduledBatch((share(random_rows(9, 1, model), 0, 9, (0,)),))
    expected = runtime.forward(batch)
    thread = threading.Thread(target=lambda: found.append(runtime.forward(batch)))
    thread.start()
    thread.join()
    assert torch.equal(found[0].text, expected.text)
