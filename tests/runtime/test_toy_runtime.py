"""A runtime of one's own: `forward`, `limits`, `info`, `close`, and a line in a table."""

from __future__ import annotations

import pytest
import torch

from moss_engine.api.errors import ConfigError
from moss_engine.api.events import Finished
from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.runtime import make
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch
from moss_engine.runtime.sampler import LogitsRuntime
from tests.fakes import CONFIG, IDS, FakeProcessor, make_request


class Toy(LogitsRuntime):
    """Writes the letter after the last one, and stops behind "e"."""

    limits = Limits(block_size=4, num_blocks=64, max_batch=4, max_step_rows=32, max_seq_len=200)
    info = RuntimeInfo("toy", "0", "cpu", "float32", "none")
    is_closed = False

    def forward(self, batch: ScheduledBatch) -> Logits:
        last = [sequence.rows[-1].text for sequence in batch.sequences if sequence.sample]
        text = torch.zeros(len(last), CONFIG.vocab_size)
        for scores, letter in zip(text, last, strict=True):
            following = letter + 1 if letter >= ord("a") else ord("a")
            scores[IDS.im_end if letter == ord("e") else following] = 1.0
        return Logits(text, torch.zeros(len(last), CONFIG.audio_vocab_size))

    def close(self) -> None:
        self.is_closed = True


def test_a_toy_runtime_serves():
    runtime = Toy()
    engine = Engine(runtime, FakeProcessor(), EngineConfig(), samples_per_code=960)
    for _ in range(2):
        engine.submit(make_request("z"))
    ends = [
        event for _ in range(10) for event in engine.step().events if isinstance(event, Finished)
    ]
    assert [event.rows for event in ends] == [
        (*(Row(ord(letter), 0) for letter in "abcde"), Row(IDS.im_end, 0))
    ] * 2
    engine.check_integrity()
    engine.close()
    assert runtime.is_closed


def test_its_line_in_the_table_is_all_that_options_need(tiny_checkpoint, monkeypatch):
    config = EngineConfig(checkpoint=tiny_checkpoint, runtime="toy", device="cpu", max_sessions=3)
    with pytest.raises(ConfigError, match=r"--runtime is 'toy'; choose one of auto, torch, tens"):
        build_service(config)
    given = []

    def load_toy(config: EngineConfig, limits: Limits, device: torch.device) -> Toy:
        given.append((config, limits.max_batch, device))
        return Toy()

    monkeypatch.setitem(make.LOADERS, "toy", load_toy)
    core = build_service(config)
    assert core.engine.runtime.info.name == "toy"
    assert given == [(config, 3, torch.device("cpu"))]
