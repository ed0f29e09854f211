"""The tensorrt_llm runtime against the plugin's contract: every release's inputs, and every way to get one wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from moss_engine.engine import Engine as ServingEngine
from moss_engine.errors import ConfigError, EngineFaultError, EngineFileError, MissingPackageError, MossError
from moss_engine.events import Failed, Sampled
from moss_engine.models.checkpoint import expected_tensors, load_tensors
from moss_engine.models.config import ModelConfig
from moss_engine.models.fingerprint import checkpoint_digest
from moss_engine.processor import load_processor
from moss_engine.request import Message, Request, Text
from moss_engine.runtime import trt_library, trtllm, trtllm_plugin, trtllm_tensors
from moss_engine.runtime.base import Limits, Logits, Runtime, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.engine_manifest import PLAN_NAME, EngineManifest, plan_digest, write_engine_manifest
from moss_engine.runtime.pytorch import load_torch_runtime
from moss_engine.runtime.trtllm import TrtLlmRuntime, load_trtllm_runtime, pool_shape
from moss_engine.runtime.trtllm_tensors import KNOWN, EngineInput, Geometry, Step, match_inputs
from moss_engine.sampler import Sampler
from moss_engine.tokens import Row
from tests.runtime_contract import LIMITS, RuntimeContract
from tests.trtllm_emulator import PLANS, TENSORRT, VARIANTS, Engine, Plugin, Refused, profiles, reference_engine

CPU = torch.device("cpu")
PLUGIN_BYTES = b"a plugin library"


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A machine on which TensorRT and the plugin are the emulator's."""
    plugin = tmp_path_factory.mktemp("plugin") / "libnvinfer_plugin_tensorrt_llm.so"
    plugin.write_bytes(PLUGIN_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trtllm, "load_library", lambda backend: trt_library.describe(backend, TENSORRT))
        patch.setattr(trtllm, "compute_capability", lambda library, device: "8.9")
        patch.setattr(trtllm, "load_plugin", lambda path: None)
        patch.setattr(trtllm, "find_plugin", lambda named: plugin)
        yield plugin


def write_engine(folder: Path, plan: bytes, checkpoint: Path, plugin: Path, limits: Limits = LIMITS) -> EngineManifest:
    folder.mkdir(exist_ok=True)
    (folder / PLAN_NAME).write_bytes(plan)
    digest, num_bytes = plan_digest(folder / PLAN_NAME)
    manifest = EngineManifest("tensorrt_llm", checkpoint_digest(checkpoint), str(TENSORRT.__version__), "8.9",
                              "float32", "baked", **dataclasses.asdict(limits), plan_digest=digest,
                              plan_bytes=num_bytes, plugin_digest=plan_digest(plugin)[0])
    write_engine_manifest(folder, manifest)
    return manifest


def open_runtime(checkpoint: Path, folder: Path, library: Path, release: str, limits: Limits = LIMITS,
                 device: torch.device = CPU) -> TrtLlmRuntime:
    """An engine of a release, from a file to a runtime, with a pool that the emulator may touch."""
    config = ModelConfig.from_file(checkpoint / "config.json")
    tensors = load_tensors(checkpoint, expected_tensors(config), dtype=torch.float32)
    plugin = Plugin(config.num_attention_heads, config.num_key_value_heads, config.head_dim, limits.block_size,
                    torch.float32)
    plan = reference_engine(release, config, tensors, limits, plugin)
    write_engine(folder, plan, checkpoint, library, limits)
    options = EngineConfig(checkpoint=checkpoint, runtime="tensorrt_llm", engine=folder)
    runtime = load_trtllm_runtime(options, limits, device)
    plugin.memory.append(runtime._pool)
    return runtime


class Contract(RuntimeContract):
    """Everything is float32: only the order of sums differs from the reference."""

    tolerance = drift = 2e-5
    exact_batch = False
    release: str

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, library: Path) -> TrtLlmRuntime:
        return open_runtime(tiny_checkpoint, tmp_path_factory.mktemp("engine"), library, cls.release)

    def test_the_engine_is_named(self) -> None:
        info = self.runtime.info
        assert (info.name, info.version, info.dtype) == ("tensorrt_llm", "10.14.1.48", "float32")
        assert info.engine_digest is not None and len(info.engine_digest) == 64

    def test_a_second_turn_continues_the_cache(self) -> None:
        """After a reply of single rows the next prompt begins in the middle of a block, in blocks out of order."""
        prompt, reply, more = self.rows(13), self.rows(6), self.rows(9)
        rows, table = [*prompt, *reply, *more], self.table(28)
        assert list(table) != sorted(table)
        self.in_steps([*prompt, *reply], [13] + [1] * 6, table)
        second = self.forward(self.part(rows, table, 19, 28))
        self.assert_close(second, self.forward(self.part(rows, self.table(28), 0, 28)), self.drift)

    def test_phases_mix_in_any_order(self) -> None:
        """Decoding sequences before, between and behind prefilled ones, a chunk and a second turn."""
        lengths = [(20, 21), (0, 9), (7, 8), (12, 19), (30, 31), (0, 1)]
        sequences = [(self.rows(end), self.table(end), start, end) for start, end in lengths]
        for rows, table, start, _ in sequences:
            if start:
                self.forward(self.part(rows, table, 0, start, sample=False))
        together = self.forward(*(self.part(*sequence) for sequence in sequences))
        for i, (rows, _, _, end) in enumerate(sequences):
            alone = self.forward(self.part(rows, self.table(end), 0, end))
            self.assert_close(self.pick(together, i), alone, self.drift)


class TestRelease121(Contract):
    release = "1.2.1"


class TestRelease014(Contract):
    release = "0.14"


class TestRelease013(Contract):
    release = "0.13"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnGpu(Contract):
    """The pool, the logits and what the plugin reads there on the device; host tensors in pinned memory."""

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, library: Path) -> TrtLlmRuntime:
        return open_runtime(tiny_checkpoint, tmp_path_factory.mktemp("engine"), library, "1.2.1",
                            device=torch.device("cuda:0"))

    def test_a_conversation_is_the_torch_runtimes(self, expected: list[Logits]) -> None:
        found = [Logits(*(logits.cpu() for logits in step)) for step in conversation(self.runtime)]
        assert agrees(found, expected)


def conversation(runtime: TrtLlmRuntime) -> list[Logits]:
    """Both phases, a chunked prompt, a second turn, a mixed step, tables out of order: what a serving day has."""
    chance = random.Random(5)
    vocabulary = 40
    rows = [[Row(chance.randrange(7, vocabulary), chance.randrange(8)) for _ in range(30)] for _ in range(2)]
    tables = [(9, 2, 77, 30, 5, 61, 14, 3), (50, 4, 8, 100, 21, 66, 7, 12)]

    def part(which: int, start: int, end: int, sample: bool = True) -> ScheduledSequence:
        return ScheduledSequence(tuple(rows[which][start:end]), start, tables[which], sample)

    steps = [[part(0, 0, 8, False)], [part(0, 8, 14)], [part(0, 14, 15), part(1, 0, 10)],
             [part(1, 10, 11), part(0, 15, 16)], [part(0, 16, 17), part(1, 11, 21)], [part(1, 21, 22), part(0, 17, 18)]]
    found = []
    for step in steps:
        logits = runtime.forward(ScheduledBatch(tuple(step)))
        found.append(Logits(logits.text.clone(), logits.audio.clone()))
    return found


@pytest.fixture
def runtime(tiny_checkpoint: Path, tmp_path: Path, library: Path) -> TrtLlmRuntime:
    return open_runtime(tiny_checkpoint, tmp_path / "engine", library, "1.2.1")


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[Logits]:
    runtime = load_torch_runtime(tiny_checkpoint, LIMITS, device=CPU, dtype=torch.float32, threads=1)
    return conversation(runtime)  # type: ignore[arg-type]


def agrees(found: list[Logits], expected: list[Logits]) -> bool:
    return all(torch.allclose(one, other, rtol=0, atol=2e-5) for ours, theirs in zip(found, expected, strict=True)
               for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("without", [(), ("position_ids",), ("position_ids", "host_runtime_perf_knobs")])
def test_a_conversation_is_the_torch_runtimes(without: tuple[str, ...], tiny_checkpoint: Path, tmp_path: Path,
                                              library: Path, expected: list[Logits],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by an engine that takes neither what only a position embedding reads nor hints of speed."""
    shapes = {name: shape for name, shape in VARIANTS["0.16"].items() if name not in without}
    monkeypatch.setitem(VARIANTS, "0.16", shapes)
    assert agrees(conversation(open_runtime(tiny_checkpoint, tmp_path / "engine", library, "0.16")), expected)


Change = Callable[[np.ndarray, Step, Geometry], np.ndarray]


def swapped(values: np.ndarray, _: Step, __: Geometry) -> np.ndarray:
    return values[:, ::-1]


def off_by(number: int) -> Change:
    return lambda values, _, __: values + number


def first_changed(number: int) -> Change:
    def change(values: np.ndarray, _: Step, __: Geometry) -> np.ndarray:
        changed = np.array(values)
        changed.flat[0] += number
        return changed

    return change


def one_shared_block(values: np.ndarray, _: Step, __: Geometry) -> np.ndarray:
    """Keys and values in one place, as if both pointers meant the same."""
    return np.stack([values[:, 0], values[:, 0]], axis=1)


MUTATIONS: dict[str, tuple[str, Change]] = {
    "ids off by one": ("input_ids", off_by(1)),
    "positions off by one": ("position_ids", off_by(1)),
    "positions from zero": ("position_ids", lambda v, s, g: v - np.repeat(s.cached, s.new)),
    "last rows off by one": ("last_token_ids", off_by(-1)),
    "last rows as lengths": ("last_token_ids", lambda v, s, g: s.new),
    "sequence length without the new rows": ("sequence_length", lambda v, s, g: np.maximum(s.cached, 1)),
    "sequence length one too long": ("sequence_length", off_by(1)),
    "context length of the whole sequence": ("context_lengths", lambda v, s, g: s.lengths),
    "context length off by one": ("context_lengths", off_by(1)),
    "host context length off by one": ("host_context_lengths", off_by(1)),
    "all requests in context phase": ("host_request_types", lambda v, s, g: np.zeros_like(v)),
    "all requests in generation phase": ("host_request_types", lambda v, s, g: np.ones_like(v)),
    "request types the other way round": ("host_request_types", lambda v, s, g: 1 - v),
    "past length off by one": ("host_past_key_value_lengths", off_by(1)),
    "past length of context as its name says": ("host_past_key_value_lengths", lambda v, s, g: s.cached),
    "past length of generation with the new row": ("host_past_key_value_lengths", lambda v, s, g: s.lengths),
    "a window too small": ("host_max_attention_window_sizes", lambda v, s, g: np.full_like(v, 8)),
    "a window too small in the last layer": ("host_max_attention_window_sizes",
                                             lambda v, s, g: np.where(np.arange(len(v)) < len(v) - 1, v, 8)),
    "sink tokens": ("host_sink_token_length", off_by(4)),
    "another beam": ("cache_indirection", off_by(1)),
    "keys and values swapped": ("kv_cache_block_offsets", swapped),
    "keys and values swapped on the host": ("host_kv_cache_block_offsets", swapped),
    "keys and values in one place": ("kv_cache_block_offsets", one_shared_block),
    "offsets in blocks of all layers": ("kv_cache_block_offsets", lambda v, s, g: v // (2 * g.num_layers)),
    "offsets for 36 layers instead of 40": ("kv_cache_block_offsets", lambda v, s, g: v // g.num_layers * 3),
    "a stale host table": ("host_kv_cache_block_offsets", lambda v, s, g: v[:, :, ::-1]),
    "tables sorted": ("kv_cache_block_offsets", lambda v, s, g: np.sort(v, axis=2)),
    "tables of the wrong sequences": ("kv_cache_block_offsets", lambda v, s, g: v[::-1]),
    "the secondary pool's bit": ("kv_cache_block_offsets", lambda v, s, g: v.astype(np.int64) - (1 << 31)),
    "the pool's pointer off by a row": ("host_kv_cache_pool_pointers", first_changed(32)),
    "the pool as its own secondary": ("host_kv_cache_pool_pointers", lambda v, s, g: np.array([v[0], v[0]])),
    "pointers swapped": ("host_kv_cache_pool_pointers", lambda v, s, g: v[::-1]),
    "every layer in one place of the pool": ("host_kv_cache_pool_mapping", lambda v, s, g: np.zeros_like(v)),
    "the audio branch in the text branch's places": (
        "host_kv_cache_pool_mapping", lambda v, s, g: np.where(v == g.num_layers - 1, g.num_layers - 2, v)),
    "mapping's columns swapped": ("host_kv_cache_pool_mapping", swapped),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_wrong_binding_is_seen(name: str, runtime: TrtLlmRuntime, expected: list[Logits],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, change = MUTATIONS[name]
    known = KNOWN[tensor]
    changed = dataclasses.replace(known, fill=lambda step, g: change(known.fill(step, g), step, g))
    monkeypatch.setitem(trtllm_tensors.KNOWN, tensor, changed)
    try:
        found = conversation(runtime)
    except (Refused, EngineFaultError):
        return
    assert not agrees(found, expected), f"{name} changes nothing"


def test_every_input_that_the_plugin_reads_is_mutated() -> None:
    """The two that only steer the library's scheduling have no wrong value that could be seen."""
    mutated = {tensor for tensor, _ in MUTATIONS.values()}
    assert set(KNOWN) - mutated == {"host_runtime_perf_knobs", "host_context_progress"}


def step_of(lengths: list[tuple[int, int]], max_blocks: int = 4) -> Step:
    sequences = [ScheduledSequence(tuple(Row(7 + i, 0) for i in range(new)), cached, (3, 1, 2), True)
                 for cached, new in lengths]
    return trtllm_tensors.make_step(sequences, max_blocks, lambda row: row.text)


def values(name: str, step: Step) -> list[object]:
    geometry = Geometry(num_layers=40, max_blocks=4, capacity=128, pool_address=1 << 40)
    shape = KNOWN[name].shapes[-1]
    return trtllm_tensors.values_of(name, shape, step, geometry).tolist()


def test_the_values_are_those_of_the_contract() -> None:
    """A prompt's first chunk, a chunk behind 32 cached rows, and a single row behind 70: written out by hand."""
    step = step_of([(0, 3), (32, 2), (70, 1)])
    assert step.num_context == 2
    wanted: dict[str, object] = {
        "input_ids": [7, 8, 9, 7, 8, 7],
        "position_ids": [0, 1, 2, 32, 33, 70],
        "last_token_ids": [3, 5, 6],
        "sequence_length": [3, 34, 71],
        "context_lengths": [3, 2, 70],
        "host_context_lengths": [3, 2, 70],
        "host_request_types": [0, 0, 1],
        "host_past_key_value_lengths": [3, 34, 70],
        "host_max_attention_window_sizes": [128] * 40,
        "host_sink_token_length": [0],
        "kv_cache_block_offsets": [[[[240, 80, 160, 0], [241, 81, 161, 1]]] * 3],
        "host_kv_cache_pool_pointers": [[1 << 40, 0]],
        "host_runtime_perf_knobs": [1] + [-1] * 15,
        "host_context_progress": [0],
    }
    for name, expected_values in wanted.items():
        assert values(name, step) == expected_values, name
    assert values("host_kv_cache_block_offsets", step) == values("kv_cache_block_offsets", step)
    assert np.shape(values("cache_indirection", step)) == (3, 1, 128)
    mapping = trtllm_tensors.values_of("host_kv_cache_pool_mapping", ("L", 2), step, Geometry(40, 4, 128, 1))
    assert mapping.tolist() == [[0, slot] for slot in range(40)]


def test_the_pool_is_in_the_plugins_layout() -> None:
    config = ModelConfig(**{**{f.name: 1 for f in dataclasses.fields(ModelConfig)}, "num_shared_layers": 32,
                            "num_modality_layers": 4, "num_key_value_heads": 8, "head_dim": 128})
    shape = pool_shape(config, Limits(64, 10, 1, 1, 640))
    assert shape == (10, 40, 2, 8, 64, 128)
    assert np.prod(shape[1:]) * 2 == 64 * 163_840  # bytes of a block in bfloat16: 160 KiB a row


@pytest.mark.parametrize("release", VARIANTS)
def test_every_release_is_recognised(release: str) -> None:
    found = {name: EngineInput(dtype, tuple(5 if size == "L" else size for size in shape))  # type: ignore[misc]
             for name, (dtype, shape) in VARIANTS[release].items()}
    matched = match_inputs(found, 5)
    assert matched.keys() == found.keys()
    assert all(len(matched[name]) == len(found[name].shape) for name in found)


@pytest.mark.parametrize(("change", "words"), [
    ({"lora_ranks_0": EngineInput("int32", (-1,))}, "input 'lora_ranks_0' that is not in the table"),
    ({"host_request_types": None}, "lacks the input 'host_request_types'"),
    ({"sequence_length": EngineInput("int64", (-1,))}, "'sequence_length' is int64 instead of int32"),
    ({"kv_cache_block_offsets": EngineInput("int32", (2, -1, 2, -1))}, "[2, -1, 2, -1] instead of [B, 2, M] or "),
    ({"host_max_attention_window_sizes": EngineInput("int32", (36,))}, "shape [36] instead of [L] with L = 40"),
    ({"input_ids": EngineInput("int32", (-1, -1))}, "'input_ids' has shape [-1, -1] instead of [T]"),
    ({"host_sink_token_length": EngineInput("int32", (2,))}, "'host_sink_token_length' has shape [2] instead of [1]"),
])
def test_other_inputs_are_refused_by_name(change: dict[str, EngineInput | None], words: str) -> None:
    found = {name: EngineInput(dtype, tuple(40 if size == "L" else size for size in shape))  # type: ignore[misc]
             for name, (dtype, shape) in VARIANTS["1.2.1"].items()}
    merged = {name: tensor for name, tensor in {**found, **change}.items() if tensor is not None}
    with pytest.raises(EngineFileError) as error:
        match_inputs(merged, 40)
    assert words in str(error.value) and "scripts.build_engine" in str(error.value)


@pytest.mark.parametrize(("damage", "words"), [
    ("outputs", "output 'audio_logits' is ('float32', (-1, 5))"),
    ("no second head", "output 'audio_logits' is None where"),
    ("short profile", "profiles have max_seq_len 128 and its manifest says 512"),
    ("few rows", "profiles have max_step_rows 9 and its manifest says 96"),
    ("bound weight", "has the weight 'text.norm' as an input, and its manifest says that its weights are baked"),
    ("no weights", "lacks the weight 'embed.text' as an input, and its manifest says that its weights are bound"),
    ("refused plan", "refuses the plan"),
])
def test_engines_that_do_not_fit_are_refused(damage: str, words: str, tiny_checkpoint: Path, tmp_path: Path,
                                             library: Path) -> None:
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


def test_another_plugin_library_is_refused(tiny_checkpoint: Path, tmp_path: Path, library: Path) -> None:
    open_runtime(tiny_checkpoint, tmp_path, library, "1.2.1")
    options = EngineConfig(checkpoint=tiny_checkpoint, runtime="tensorrt_llm", engine=tmp_path)
    try:
        library.write_bytes(b"a newer plugin library")
        with pytest.raises(EngineFileError, match=r"has plugin_digest .* is needed; use the plugin library"):
            load_trtllm_runtime(options, LIMITS, CPU)
    finally:
        library.write_bytes(PLUGIN_BYTES)


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


def test_sizes_that_the_engine_has_fixed_are_served(tiny_checkpoint: Path, tmp_path: Path, library: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may fix what the profiles leave no choice in: all batches are of one sequence."""
    limits = dataclasses.replace(LIMITS, max_batch=1)
    fixed = {"sequence_length", "host_past_key_value_lengths", "context_lengths", "host_context_lengths",
             "host_request_types", "last_token_ids"}
    shapes = {name: (dtype, (1,) if name in fixed else shape) for name, (dtype, shape) in VARIANTS["1.2.1"].items()}
    shapes["cache_indirection"] = ("int32", (1, 1, 512))
    shapes |= dict.fromkeys(("kv_cache_block_offsets", "host_kv_cache_block_offsets"), ("int32", (1, 1, 2, 128)))
    monkeypatch.setitem(VARIANTS, "1.2.1", shapes)
    shape_of = Engine.get_tensor_shape
    monkeypatch.setattr(Engine, "get_tensor_shape", lambda self, name: (1, self.outputs[name])
                        if name in self.outputs else shape_of(self, name))
    runtime = open_runtime(tiny_checkpoint, tmp_path / "engine", library, "1.2.1", limits)
    reference = load_torch_runtime(tiny_checkpoint, limits, device=CPU, dtype=torch.float32, threads=1)
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


def spoken_by(runtime: Runtime, num_rows: int) -> dict[str, list[Row]]:
    """The first rows of greedy replies to three requests, served together by the engine with the built-in voice."""
    model = ModelConfig.from_file(NANO_CHECKPOINT / "config.json")
    config = EngineConfig(checkpoint=NANO_CHECKPOINT)
    processor = load_processor(NANO_CHECKPOINT, model, config.max_text_chars)
    engine = ServingEngine(runtime, Sampler(model), processor, config, samples_per_code=960)
    greedy = dataclasses.replace(processor.default_sampling.audio, temperature=0.0)
    sampling = dataclasses.replace(processor.default_sampling, text=greedy, audio=greedy, max_rows=num_rows)
    for text in ("Good morning.", "The letter came late.", "Open the window."):
        engine.submit(Request(text, text, (Message("user", Text(text)),), processor.default_mode.name, sampling))
    rows: dict[str, list[Row]] = {}
    while events := engine.step().events:
        for event in events:
            assert not isinstance(event, Failed)
            if isinstance(event, Sampled):
                rows.setdefault(event.request_id, []).append(event.row)
    return rows


def test_the_built_in_voice_says_the_same(tmp_path: Path, library: Path) -> None:
    """Its replies row by row, through scheduler, prefix cache and both phases of the plugin."""
    limits = Limits(block_size=16, num_blocks=96, max_batch=4, max_step_rows=64, max_seq_len=1024)
    ours = spoken_by(open_runtime(NANO_CHECKPOINT, tmp_path / "engine", library, "1.2.1", limits), 30)
    theirs = spoken_by(load_torch_runtime(NANO_CHECKPOINT, limits, device=CPU, dtype=torch.float32, threads=1), 30)
    assert ours == theirs and all(len(rows) == 30 for rows in ours.values()) and len(ours) == 3


class TestPluginLibrary:
    """Found by its package's folder, loaded by ctypes; the package itself is never imported."""

    def test_a_named_file(self, tmp_path: Path) -> None:
        (tmp_path / "plugin.so").touch()
        assert trtllm_plugin.find_plugin(tmp_path / "plugin.so") == tmp_path / "plugin.so"
        with pytest.raises(ConfigError, match=r"--plugin .* is no file; name libnvinfer_plugin_tensorrt_llm\.so"):
            trtllm_plugin.find_plugin(tmp_path / "missing.so")

    def test_in_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr(trtllm_plugin, "find_spec", lambda name: spec)
        with pytest.raises(MissingPackageError, match=r"pip install --no-deps tensorrt_llm==1\.2\.1"):
            trtllm_plugin.find_plugin(None)
        (tmp_path / "libs").mkdir()
        (tmp_path / trtllm_plugin.LIBRARY).touch()
        assert trtllm_plugin.find_plugin(None) == tmp_path / trtllm_plugin.LIBRARY

    def test_without_the_package(self) -> None:
        with pytest.raises(MissingPackageError, match="--plugin"):
            trtllm_plugin.find_plugin(None)

    def test_a_file_that_is_no_library(self, tmp_path: Path) -> None:
        (tmp_path / "plugin.so").write_bytes(b"no library")
        with pytest.raises(ConfigError, match="cannot be loaded"):
            trtllm_plugin.load_plugin(tmp_path / "plugin.so")

    @pytest.mark.parametrize("registers", [True, False])
    def test_registration_is_checked(self, registers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[tuple[object, ...]] = []

        class Register:
            def __call__(self, *args: object) -> bool:
                calls.append(args)
                return registers

        loaded = SimpleNamespace(initTrtLlmPlugins=Register())
        monkeypatch.setattr(trtllm_plugin.ctypes, "CDLL", lambda path, mode: loaded)
        if registers:
            trtllm_plugin.load_plugin(tmp_path / "plugin.so")
        else:
            with pytest.raises(ConfigError, match="registered no plugins"):
                trtllm_plugin.load_plugin(tmp_path / "plugin.so")
        assert calls == [(None, b"tensorrt_llm")]


def test_all_refusals_are_sentences() -> None:
    assert issubclass(EngineFileError, MossError) and EngineFileError.code == "E_ENGINE_FILE"
