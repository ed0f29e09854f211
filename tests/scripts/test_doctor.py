"""The doctor: whole folders pass, and everything that is wrong with others is named, without
running what they hold."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from moss_engine import build
from moss_engine.api.errors import MossError
from moss_engine.checkup import require_network_tensors
from moss_engine.codec.moss.load import CONFIG, FLOW_CHUNK, HIFT
from moss_engine.codec.moss.whisper import PREPROCESSOR_NAME
from moss_engine.config import EngineConfig
from moss_engine.models.checkpoint import FILE_NAME, INDEX_NAME, expected_tensors, save_tensors
from moss_engine.models.config import PUBLISHED
from moss_engine.models.tensor_file import read_header, read_tensor
from scripts import doctor
from tests.fixtures.make_tiny_moss import make_tiny_encoder, make_tiny_moss


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moss")
    make_tiny_moss(folder)
    split_in_two(folder / "model")
    return folder


@pytest.fixture
def folders(whole, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(whole, tmp_path / "moss")
    return tmp_path / "moss"


def split_in_two(model: Path) -> None:
    """One tensor file -> two shards and their index, as large checkpoints have them."""
    stored = read_header(model / FILE_NAME)
    names = sorted(stored)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for shard, members in shards.items():
        save_tensors(model / shard, {name: read_tensor(stored[name]) for name in members})
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (model / INDEX_NAME).write_text(json.dumps(index))
    (model / FILE_NAME).unlink()


def examine(folder: Path, capsys, *more: str) -> tuple[int, str]:
    status = doctor.main([str(folder / "model"), str(folder / "codec"), *more])
    return status, capsys.readouterr().out


def test_a_whole_set_passes_and_gets_a_command(whole, capsys):
    status, said = examine(whole, capsys, "--gpu-gb", "24")
    assert status == 0 and "FAULT" not in said
    for words in ("tensors in 2 files", "80 mel bands -> 24000 Hz", "voice tiny"):
        assert words in said
    folders = f"--checkpoint {whole}/model --codec {whole}/codec"
    assert f"python app.py {folders} --device cuda --dtype bfloat16" in said


def test_without_a_gpu_it_says_so(whole, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, said = examine(whole, capsys)
    assert status == 0 and "no NVIDIA GPU here" in said and "--device cpu" in said


def test_it_says_how_the_end_of_a_turn_is_judged(whole, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "find_melody", lambda: Path("melody.onnx"))
    assert "by words and melody" in examine(whole, capsys)[1]
    monkeypatch.setattr(doctor, "find_melody", lambda: None)
    status, said = examine(whole, capsys)
    assert status == 0 and "by words alone" in said and "pip install --no-deps pipecat-ai" in said


def test_a_memory_that_no_gpu_has_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        doctor.parse(["folder", "--gpu-gb", "nan"])
    assert "give the GB that are free" in capsys.readouterr().err


def test_a_gpu_without_a_compiler_is_a_fault(whole, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, value in (("PATH", ""), ("TRITON_CACHE_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CC", raising=False)
    status, said = examine(whole, capsys)
    assert status == 1 and "C compiler" in said and "apt-get install gcc" in said


def test_the_built_in_checkpoint_passes(capsys):
    assert doctor.main([str(EngineConfig.checkpoint)]) == 0
    said = capsys.readouterr().out
    assert "every file is as it was released" in said and "Together" not in said


Damage = Callable[[Path], object]


def fields(**values: object) -> Damage:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values))


def swapped(old: str, new: str) -> Damage:
    def swap(path: Path) -> None:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return swap


def cut(size: int) -> Damage:
    return lambda path: os.truncate(path, size)


def tensor(name: str, value: torch.Tensor | None) -> Damage:
    """A torch file with another tensor, or without it."""

    def change(path: Path) -> None:
        state = torch.load(path, weights_only=True)
        kept = {n: t for n, t in state.items() if n != name}
        torch.save(kept if value is None else {**kept, name: value}, path)

    return change


MODEL, CODEC = "model/config.json", "codec/config.json"
SHARD = "model/model-00002-of-00002.safetensors"
DECODER, CHUNKED, VOCODER = (f"codec/{name}" for name in (CONFIG, FLOW_CHUNK, HIFT))
PREPROCESSOR, VOICE = f"codec/{PREPROCESSOR_NAME}", "codec/voices/tiny/voice.json"
BIAS = "encoder_proj.bias"
FAULTS: dict[str, tuple[str, Damage, str]] = {
    "another model": (MODEL, fields(model_type="qwen3"), "model_type is 'qwen3'"),
    "no tokenizer": ("model/tokenizer.json", Path.unlink, "tokenizer.json"),
    "a missing shard": (SHARD, Path.unlink, "model-00002-of-00002.safetensors is missing"),
    "a layer less": (MODEL, fields(num_shared_layers=1, num_hidden_layers=2), "unknown tensors"),
    "no codec config": (CODEC, Path.unlink, "config.json is missing"),
    "another encoder": (CODEC, fields(encoder_causal_attention=False),
                        "encoder_causal_attention False instead of True"),
    "an encoder of another width": (CODEC, fields(d_model=33), "d_model is no multiple"),
    "an encoder of more layers": (CODEC, fields(quantize_position=5), "quantize_position"),
    "a codec that hears another rate": (PREPROCESSOR, fields(sampling_rate=24_000),
                                        "sampling_rate 24000 instead of 16000"),
    "a codec that speaks another rate": (DECODER,
                                         swapped("sample_rate: 24000", "sample_rate: 22050"),
                                         "22050 Hz instead of 24000"),
    "a codec of another code rate": (DECODER,
                                     swapped("token_frame_rate: 12.5", "token_frame_rate: 25"),
                                     "25 codes a second instead of 12.5"),
    "encoder weights of another": ("codec", lambda folder: make_tiny_encoder(folder, 32),
                                   "the codec 32"),
    "no flow settings": (DECODER, Path.unlink, "config.yaml is missing"),
    "half a flow": (CHUNKED, cut(3000), "flow-chunk-5.pt holds no tensors"),
    "a flow without a tensor": (CHUNKED, tensor(BIAS, None),
                                f"flow-chunk-5.pt lacks tensors {BIAS}"),
    "a flow of whole numbers": (CHUNKED, tensor(BIAS, torch.zeros(80).long()),
                                f"{BIAS} of type torch.int64"),
    "a flow of another shape": (CHUNKED, tensor(BIAS, torch.zeros(3)), f"{BIAS} has shape [3]"),
    "a vocoder with one more": (VOCODER, tensor("extra.bias", torch.zeros(3)),
                                "hift.pt has the unknown tensors extra.bias"),
    "no speaker network": ("codec/flow/campplus.onnx", Path.unlink, "campplus.onnx is missing"),
    "a voice of another codec": (VOICE, fields(codec="0"), "another codec"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named(name, folders, capsys):
    file, damage, message = FAULTS[name]
    damage(folders / file)
    status, said = examine(folders, capsys)
    faults = [line for line in said.splitlines() if line.strip().startswith("FAULT")]
    assert status == 1 and any(message in line for line in faults), said
    assert "Serve with" not in said


BEFORE_LOADING = ("a missing shard", "half a flow")


@pytest.mark.parametrize("name", ["a layer less", "a voice of another codec", *BEFORE_LOADING])
def test_the_program_refuses_to_start_with_the_same_sentence(name, folders, monkeypatch):
    file, damage, message = FAULTS[name]
    damage(folders / file)
    if name in BEFORE_LOADING:  # headers are checked before anything large is read
        loaded_first = lambda *_, **__: pytest.fail("the codec was loaded first")  # noqa: E731
        monkeypatch.setattr(build, "load_codec", loaded_first)
    config = EngineConfig(checkpoint=folders / "model", codec=folders / "codec", device="cpu")
    with pytest.raises(MossError, match=re.escape(message)):
        build.build_service(config)


class Mark:
    """What a hostile pickle does when it is opened as code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("file", [FLOW_CHUNK, HIFT])
@pytest.mark.parametrize("zipped", [False, True])
def test_code_in_a_torch_file_is_not_run(file, zipped, folders, tmp_path, capsys):
    mark = tmp_path / "was run"
    path = folders / "codec" / file
    if zipped:
        torch.save({"encoder_proj.bias": Mark(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Mark(mark)))
    status, said = examine(folders, capsys)
    assert status == 1 and f"{path.name} holds no tensors" in said and not mark.exists()


def test_the_published_size_is_checked_without_reading_it(tmp_path):
    """446 tensors in 4 shards of 18.19 GB together, of which only the headers are on the disk."""
    shapes = sorted(expected_tensors(PUBLISHED).items())
    weight_map = {}
    for number in range(4):
        shard = f"model-0000{number + 1}-of-00004.safetensors"
        header, end = {}, 0
        for name, shape in shapes[number::4]:
            start, end = end, end + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
            weight_map[name] = shard
        text = json.dumps(header).encode()
        (tmp_path / shard).write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(tmp_path / shard, 8 + len(text) + end)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    assert (
        require_network_tensors(tmp_path, PUBLISHED) == "446 tensors in 4 files, bfloat16, 18.19 GB"
    )
    smaller = dataclasses.replace(PUBLISHED, num_modality_layers=3)
    with pytest.raises(MossError, match="has the unknown tensors"):
        require_network_tensors(tmp_path, smaller)


@pytest.mark.parametrize(
    ("gb", "dtype"), [(80, "bfloat16"), (20, "float8"), (14, "float8-all"), (11, "int4")]
)
def test_formats_for_the_published_size(gb, dtype):
    codec = 1_300_000_000
    lines = list(doctor.advice(PUBLISHED, gb * 10**9, codec, "python app.py"))
    assert f"--dtype {dtype}" in lines[-1] and lines[-1].startswith("Serve with")
    (fit,) = (fit for fit in doctor.fits(PUBLISHED, gb * 10**9, codec) if fit.dtype == dtype)
    assert fit.weight_bytes + codec + fit.most_kv_rows * 163_840 + (1 << 30) <= gb * 10**9
    is_tight = fit.most_kv_rows < EngineConfig.kv_rows
    assert ("--kv-rows" in lines[-1], "--kv-cache-dtype int8" in lines[-2]) == (is_tight, is_tight)


def test_too_small_a_gpu_is_said():
    lines = list(doctor.advice(PUBLISHED, 8 * 10**9, 1_300_000_000, "python app.py"))
    assert lines[-1].startswith("Nothing fits") and all(
        "does not fit" in line for line in lines[1:-1]
    )


def test_a_checkpoint_without_its_codec_is_one_sentence(whole, capsys):
    assert doctor.main([str(whole / "model")]) == 1
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "FAULT  " in line]
    assert "holds no codec; name the folder of one after the language model's" in told
    with pytest.raises(MossError, match="holds no codec; name the codec's folder with --codec"):
        build.build_service(EngineConfig(checkpoint=whole / "model", device="cpu"))
