"""The engine over the CUDA runtime: wiring, and options that leave work out."""

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

from moss_engine.api.events import Finished  # noqa: E402
from moss_engine.api.request import ChannelSampling, Request, Sampling  # noqa: E402
from moss_engine.api.tokens import Row, text_rows  # noqa: E402
from moss_engine.config import EngineConfig  # noqa: E402
from moss_engine.engine.engine import Engine  # noqa: E402
from moss_engine.engine.sequence import Segment  # noqa: E402
from moss_engine.models.checkpoint import FILE_NAME, save_tensors  # noqa: E402
from moss_engine.models.config import MODEL_TYPE, ModelConfig  # noqa: E402
from moss_engine.models.float8 import SCALES_NAME, row_scales  # noqa: E402
from moss_engine.runtime.base import ScheduledBatch  # noqa: E402
from moss_engine.runtime.cuda.runtime import CudaRuntime  # noqa: E402
from moss_engine.runtime.cuda.weights import Float8, allocate, fill  # noqa: E402
from moss_engine.runtime.make import make_runtime  # noqa: E402
from tests.fakes import FakeDecoder  # noqa: E402
from tests.fixtures.make_tiny_checkpoint import make_config, make_tensors  # noqa: E402
from tests.runtime.cuda.cuda_support import Reference, random_rows, relative_error, share  # noqa: E402

GPU = torch.device("cuda:0")


class Prompts:
    """Every prompt is the same text, after which speech begins."""

    def __init__(self, model: ModelConfig):
        self.ids = model.special

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        prompt = (*text_rows(range(20, 49), self.ids), Row(self.ids.sosp, 0))
        return (Segment(prompt, request.sampling.max_rows),)

    def speaks(self, request: Request) -> bool:
        return True

    def open_text_decoder(self) -> FakeDecoder:
        return FakeDecoder()


def replies(config: EngineConfig, model: ModelConfig) -> list[tuple[Row, ...]]:
    """What four requests get, two at a time."""
    runtime = make_runtime(config)
    assert isinstance(runtime, CudaRuntime)
    engine = Engine(runtime, Prompts(model), config, samples_per_code=960)
    values = ChannelSampling(temperature=1.0, top_k=20, top_p=1.0, repetition_penalty=1.1)
    found = {}
    for pair in ("ab", "cd"):
        for name in pair:
            sampling = Sampling(values, values, max_rows=150, min_rows=0, seed=ord(name))
            engine.submit(Request(name, name, (), "speech", sampling))
        while len(found) % 2 or pair[0] not in found:
            for event in engine.step().events:
                if isinstance(event, Finished):
                    found[event.request_id] = event.rows
            engine.check_integrity()
        assert engine.fault is None
    engine.close()
    return [found[name] for name in "abcd"]


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
        weights = allocate(
            model, torch.bfloat16, GPU, {"float8": Float8.TRUNK, "float8-all": Float8.ALL}[dtype]
        )
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
