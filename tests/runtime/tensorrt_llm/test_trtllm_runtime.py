"""The tensorrt_llm runtime against the emulated plugin: its contract, every release's inputs, and
what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moss_engine.api.errors import EngineFaultError, EngineFileError
from moss_engine.api.events import Failed, Sampled
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.tokens import Row, effective_id
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.engine.engine import Engine as ServingEngine
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import Limits, Logits, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.eager.runtime import load_torch_runtime
from moss_engine.runtime.engine_manifest import write_engine_manifest
from moss_engine.runtime.tensorrt_llm.load import load_trtllm_runtime
from moss_engine.runtime.tensorrt_llm.runtime import TrtLlmRuntime
from moss_engine.text.processor import load_processor
from tests.runtime.runtime_contract import LIMITS, RuntimeContract
from tests.runtime.tensorrt_llm.trtllm_emulator import PLANS, VARIANTS, Engine, profiles
from tests.runtime.tensorrt_llm.trtllm_support import (
    CPU,
    agrees,
    conversation,
    emulated,
    expected_conversation,
    open_runtime,
    write_engine,
)


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with emulated(tmp_path_factory.mktemp("plugin")) as plugin:
        yield plugin


@pytest.fixture
def runtime(tiny_checkpoint: Path, tmp_path: Path, library: Path) -> TrtLlmRuntime:
    return open_runtime(tiny_checkpoint, tmp_path / "engine", library, "1.2.1")


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[Logits]:
    return expected_conversation(tiny_checkpoint)


class TestContract(RuntimeContract):
    """Everything is float32: only the order of sums differs from the reference."""

    tolerance = drift = 2e-5
    exact_batch = False

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(
        cls, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, library: Path
    ) -> TrtLlmRuntime:
        return open_runtime(tiny_checkpoint, tmp_path_factory.mktemp("engine"), library, "1.2.1")

    def test_the_engine_is_named(self) -> None:
        info = self.runtime.info
        assert (info.name, info.version, info.dtype) == ("tensorrt_llm", "10.14.1.48", "float32")
        assert info.engine_digest is not None and len(info.engine_digest) == 64

    def test_a_second_turn_continues_the_cache(self) -> None:
        """After a reply of single rows the next prompt begins in the middle of a block, in blocks
        out of order."""
        prompt, reply, more = self.rows(13), self.rows(6), self.rows(9)
        rows, table = [*prompt, *reply, *more], self.table(28)
        assert list(table) != sorted(table)
        self.in_steps([*prompt, *reply], [13] + [1] * 6, table)
        second = self.forward(self.part(rows, table, 19, 28))
        self.assert_close(second, self.forward(self.part(rows, self.table(28), 0, 28)), self.drift)

    def test_phases_mix_in_any_order(self) -> None:
        """Decoding sequences before, between and behind prefilled ones, a chunk and a second
        turn."""
        lengths = [(20, 21), (0, 9), (7, 8), (12, 19), (30, 31), (0, 1)]
        sequences = [(self.rows(end), self.table(end), start, end) for start, end in lengths]
        for rows, table, start, _ in sequences:
            if start:
                self.forward(self.part(rows, table, 0, start, sample=False))
        together = self.forward(*(self.part(*sequence) for sequence in sequences))
        for i, (rows, _, _, end) in enumerate(sequences):
            alone = self.forward(self.part(rows, self.table(end), 0, end))
            self.assert_close(self.pick(together, i), alone, self.drift)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnGpu(TestContract):
    """The pool, the logits and what the plugin reads there on the device; host tensors in pinned
    memory."""

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(
        cls, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, library: Path
    ) -> TrtLlmRuntime:
        return open_runtime(
            tiny_checkpoint,
            tmp_path_factory.mktemp("engine"),
            library,
            "1.2.1",
            device=torch.device("cuda:0"),
        )

    def test_a_conversation_is_the_torch_runtimes(self, expected: list[Logits]) -> None:
        found = [Logits(*(logits.cpu() for logits in step)) for step in conversation(self.runtime)]
        assert agrees(found, expected)


OPTIONAL = ("position_ids", "host_runtime_perf_knobs")
"""What only a position embedding reads, and hints of speed: an engine may be without them."""


@pytest.mark.parametrize("without", [(), OPTIONAL])
@pytest.mark.parametrize("release", VARIANTS)
def test_a_conversation_is_the_torch_runtimes(
    release: str,
    without: tuple[str, ...],
    tiny_checkpoint: Path,
    tmp_path: Path,
    library: Path,
    expected: list[Logits],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = {name: shape for name, shape in VARIANTS[release].items() if name not in without}
    monkeypatch.setitem(VARIANTS, release, shapes)
    assert agrees(
        conversation(open_runtime(tiny_checkpoint, tmp_path / "engine", library, release)), expected
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("outputs", "output 'audio_logits' is ('float32', (-1, 5))"),
        ("no second head", "output 'audio_logits' is None where"),
        ("short profile", "profiles have max_seq_len 128 and its manifest says 512"),
        ("few rows", "profiles have max_step_rows 9 and its manifest says 96"),
        (
            "bound weight",
            "has the weight 'text.norm' as an input, and its manifest says that its weights are "
            "baked",
        ),
        (
            "no weights",
            "lacks the weight 'embed.text' as an input, and its manifest says that its weights "
            "are bound",
        ),
        ("refused plan", "refuses the plan"),
    ],
)
def test_engines_that_do_not_fit_are_refused(
    damage: str, words: str, tiny_checkpoint: Path, tmp_path: Path, library: Path
) -> None:
    config = ModelConfig.from_file(tiny_checkpoint / "config.json")
    outputs = {"logits": config.vocab_size, "audio_logits": config.audio_vocab_size}
    limits, shapes = LIMITS, dict(VARIANTS["1.2.1"])
    if damage == "outputs":
        outputs["audio_logits"] = 5
    elif damage == "no second head":
        del outputs["audio_logits"]
    elif damage == "short profile":
        limits = dataclasses.replace(LIMITS, max_seq_len=128)
    elif damage == "few rows":
        limits = dataclasses.replace(LIMITS, max_step_rows=9)
    elif damage == "bound weight":
        shapes["text.norm"] = ("float32", (config.hidden_size,))
    plan = damage.encode()
    if damage != "refused plan":
        PLANS[plan] = Engine(shapes, outputs, config.num_layers, profiles(limits), None)
    manifest = write_engine(tmp_path, plan, tiny_checkpoint, library)
    if damage == "no weights":
        write_engine_manifest(tmp_path, dataclasses.replace(manifest, weights="bound"))
    options = EngineConfig(checkpoint=tiny_checkpoint, runtime="tensorrt_llm", engine=tmp_path)
    with pytest.raises(EngineFileError) as error:
        load_trtllm_runtime(options, LIMITS, CPU)
    assert words in str(error.value)


def test_another_plugin_library_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, library: Path
) -> None:
    open_runtime(tiny_checkpoint, tmp_path, library, "1.2.1")
    options = EngineConfig(checkpoint=tiny_checkpoint, runtime="tensorrt_llm", engine=tmp_path)
    before = library.read_bytes()
    try:
        library.write_bytes(b"a newer plugin library")
        with pytest.raises(
            EngineFileError, match=r"has plugin_digest .* is needed; use the plugin library"
        ):
            load_trtllm_runtime(options, LIMITS, CPU)
    finally:
        library.write_bytes(before)


@pytest.mark.parametrize("call", ["set_input_shape", "set_tensor_address", "execute_async_v3"])
def test_every_return_code_is_checked(call: str, runtime: TrtLlmRuntime) -> None:
    assert runtime._engine is not None
    for context in runtime._engine._contexts:
        setattr(context, call, lambda *args: False)
    with pytest.raises(EngineFaultError, match=call):
        conversation(runtime)


def test_a_closed_runtime_runs_nothing(runtime: TrtLlmRuntime) -> None:
    runtime.close()
    runtime.close()
    with pytest.raises(AssertionError, match="closed"):
        conversation(runtime)


def test_sizes_that_the_engine_has_fixed_are_served(
    tiny_checkpoint: Path, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may fix what the profiles leave no choice in: all batches are of one sequence."""
    limits = dataclasses.replace(LIMITS, max_batch=1)
    fixed = {
        "sequence_length",
        "host_past_key_value_lengths",
        "context_lengths",
        "host_context_lengths",
        "host_request_types",
        "last_token_ids",
    }
    shapes = {
        name: (dtype, (1,) if name in fixed else shape)
        for name, (dtype, shape) in VARIANTS["1.2.1"].items()
    }
    shapes["cache_indirection"] = ("int32", (1, 1, 512))
    shapes |= dict.fromkeys(
        ("kv_cache_block_offsets", "host_kv_cache_block_offsets"), ("int32", (1, 1, 2, 128))
    )
    monkeypatch.setitem(VARIANTS, "1.2.1", shapes)
    shape_of = Engine.get_tensor_shape
    monkeypatch.setattr(
        Engine,
        "get_tensor_shape",
        lambda self, name: (
            (1, self.outputs[name]) if name in self.outputs else shape_of(self, name)
        ),
    )
    runtime = open_runtime(tiny_checkpoint, tmp_path / "engine", library, "1.2.1", limits)
    reference = load_torch_runtime(
        tiny_checkpoint, limits, device=CPU, dtype=torch.float32, threads=1
    )
    rows = tuple(Row(7 + i, i) for i in range(20))
    for start, end in ((0, 9), (9, 10), (10, 20)):
        batch = ScheduledBatch((ScheduledSequence(rows[start:end], start, (9, 4, 70, 2, 1), True),))
        assert agrees([runtime.forward(batch)], [reference.forward(batch)])


def test_decoding_uses_the_profile_for_few_rows(runtime: TrtLlmRuntime) -> None:
    assert runtime._engine is not None
    used: list[int] = []
    run = runtime._engine.run
    runtime._engine.run = lambda profile, stream: (used.append(profile), run(profile, stream))[1]  # type: ignore
    conversation(runtime)
    assert used == [1, 0, 1, 0, 1, 0]


def spoken_by(runtime: Runtime, num_rows: int) -> dict[str, list[int]]:
    """The first rows of greedy replies to three requests, served together by the engine with the
    built-in voice, as the network sees them."""
    model = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    config = EngineConfig(checkpoint=NANO_CHECKPOINT)
    processor = load_processor(NANO_CHECKPOINT, model, config.max_text_chars)
    engine = ServingEngine(runtime, processor, config, samples_per_code=960)
    greedy = dataclasses.replace(processor.default_sampling.audio, temperature=0.0)
    sampling = dataclasses.replace(
        processor.default_sampling, text=greedy, audio=greedy, max_rows=num_rows
    )
    for text in ("Good morning.", "The letter came late.", "Open the window."):
        engine.submit(
            Request(
                text, text, (Message("user", Text(text)),), processor.default_mode.name, sampling
            )
        )
    rows: dict[str, list[int]] = {}
    while events := engine.step().events:
        for event in events:
            assert not isinstance(event, Failed)
            if isinstance(event, Sampled):
                rows.setdefault(event.request_id, []).append(effective_id(event.row, processor.ids))
    return rows


def test_the_built_in_voice_says_the_same(tmp_path: Path, library: Path) -> None:
    """Its replies row by row, through scheduler, prefix cache and both phases of the plugin."""
    limits = Limits(block_size=16, num_blocks=96, max_batch=4, max_step_rows=64, max_seq_len=1024)
    ours = spoken_by(
        open_runtime(NANO_CHECKPOINT, tmp_path / "engine", library, "1.2.1", limits), 30
    )
    theirs = spoken_by(
        load_torch_runtime(NANO_CHECKPOINT, limits, device=CPU, dtype=torch.float32, threads=1), 30
    )
    assert ours == theirs and all(len(rows) == 30 for rows in ours.values()) and len(ours) == 3
