"""The recipe of the built-in voice with tiny sizes, from the teacher's speech to the manifest."""

from __future__ import annotations

import gzip
import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from moss_engine import open_service
from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano import FsqConfig, codes_of_points
from moss_engine.config import NANO_CHECKPOINT
from moss_engine.models.manifest import verify_manifest
from scripts.nano import train_vocoder
from scripts.nano.lm.sequences import NANO_CONFIG
from scripts.nano.speech.second_voice import FRAME_SAMPLES, phase_of
from scripts.nano.speech.shards import (
    DONE,
    SAMPLES_PER_CODE,
    Utterance,
    load_speech,
    read_speech,
    stream_mel,
    write_shard,
)
from scripts.nano.speech.teacher_voice import Sound
from scripts.nano.teacher import UNIT, trimmed
from scripts.nano.text.grammar import TABLES
from scripts.nano.tokenizer import MAX_TAKES
from scripts.nano.train_codec import Trainee, mel_crops
from scripts.nano.vocoder.crops import HOP, VocoderSpeech

CPU = torch.device("cpu")
TINY_LM = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "num_shared_layers": 1, "num_modality_layers": 1, "num_hidden_layers": 2,
}  # fmt: skip
TINY_VOCODERS = {
    "source_filter": {"width": 16, "blocks": 3, "fine_blocks": 1, "pitch_width": 8},
    "bigvgan": {"width": 16, "pitch_width": 8},
}
SPOKEN = 16
"""So many of the texts have speech."""


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


def made_up(number: int, text: str, split: str) -> Utterance:
    """A gliding tone with noise, a fifth of a second for each word"""
    words, random = len(text.split()), np.random.default_rng(number)
    samples = 4800 * words + 37 * number
    wave = 0.2 * np.sin(np.cumsum(np.linspace(0.02, 0.1, samples)))
    wave += 0.02 * random.normal(size=samples)
    starts_s = tuple(0.2 * k for k in range(words))
    phonemes = np.full(-(-samples // SAMPLES_PER_CODE), 7, np.uint8)
    return Utterance(number, split, (wave * 32767).astype(np.int16), starts_s, phonemes)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Texts, and what the teacher would make of them."""
    work = tmp_path_factory.mktemp("work")
    lines = [*TABLES["everyday"], *TABLES["talk"]]
    lines = [line for line in lines if 4 < len(line.split()) < 12]
    prompts = [
        {"id": k, "spoken": text, "takes": [["ada", 1.0]], "split": "train" if k % 4 else "held"}
        for k, text in enumerate(lines)
    ]
    write_lines(work / "prompts.jsonl.gz", prompts)
    (work / "speech").mkdir()
    made = [made_up(MAX_TAKES * row["id"], row["spoken"], row["split"]) for row in prompts[:SPOKEN]]
    write_shard(work / "speech", 0, made[:9])
    write_shard(work / "speech", 1, made[9:])
    (work / "speech" / DONE).write_text("{}")
    f0 = np.full(40 * UNIT // FRAME_SAMPLES, 200, np.float32)
    phase, random = phase_of(f0), np.random.default_rng(0)
    voiced = 0.25 * np.cos(2 * np.pi * phase)
    sound = Sound(voiced, 0.01 * random.normal(size=len(voiced)), f0, phase, np.empty(0))
    np.savez(work / "speech" / "00000.npz", **trimmed(sound))
    return work


@pytest.fixture
def run(work, monkeypatch):
    def stage(name: str, *options: object, device: bool = True) -> None:
        shared = ["--work", work, *(["--device", "cpu"] if device else [])]
        monkeypatch.setattr("sys.argv", [name, *map(str, (*shared, *options))])
        importlib.import_module(f"scripts.nano.{name}").main()

    for name, value in TINY_LM.items():
        monkeypatch.setitem(NANO_CONFIG, name, value)
    for name, sizes in TINY_VOCODERS.items():
        kind = replace(train_vocoder.KINDS[name], sizes=sizes)
        monkeypatch.setitem(train_vocoder.KINDS, name, kind)
    return stage


def test_every_stage_makes_what_the_next_one_reads(work, run, tmp_path):
    run("tokenizer", device=False)
    run("train_codec", "--steps", 2, "--decoder-steps", 2, "--batch", 2, "--crop-frames", 40)
    run("codes")
    with np.load(work / "codes.npz") as codes:
        assert len(codes["ids"]) == SPOKEN and codes["codes"].max() < 4096
    run("train_lm", "--steps", 2, "--rows", 2048, "--workers", 1)
    for kind in TINY_VOCODERS:
        run("train_vocoder", kind, "--steps", 2, "--batch", 1, "--crop-frames", 10)
    out = tmp_path / "nano"
    run("export", "--out", out, device=False)
    assert verify_manifest(out)["name"] == "nano"
    with open_service(checkpoint=out) as service:
        reply = service.say("Hello there.", seed=1)
    assert reply.text.startswith("Hello") and np.isfinite(reply.samples).all()
    (out / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="empty folder"):
        run("export", "--out", out, device=False)


def test_the_shipped_files_are_those_of_their_manifest():
    assert verify_manifest(NANO_CHECKPOINT)["command"].startswith("python -m scripts.nano.export")


def test_speech_is_read_once_the_teacher_has_said_it_all(work, tmp_path):
    (tmp_path / "speech").mkdir()
    write_shard(tmp_path / "speech", 0, [made_up(3, "one two", "train")])
    with pytest.raises(CheckpointError, match="not complete"):
        next(read_speech(tmp_path))
    utterance = next(read_speech(work))[1]
    expected = made_up(utterance.id, "x " * len(utterance.word_starts_s), utterance.split)
    assert (utterance.pcm == expected.pcm).all() and utterance.word_starts_s[1] == 0.2


def test_speech_is_one_stream_of_whole_codes(work):
    streams = load_speech(work, CPU, hours=1.0)
    for stream, split in zip(streams, ("train", "held")):
        said = [u for shard in read_speech(work) for u in shard if u.split == split]
        lengths = [-(-len(u.pcm) // SAMPLES_PER_CODE) for u in said]
        assert stream.num_frames == 2 * sum(lengths) and len(stream.phonemes) == sum(lengths)
        begins = lengths[0] * SAMPLES_PER_CODE
        assert (stream.pcm[begins : begins + 900].numpy() == said[1].pcm[:900]).all()
    mel, phonemes = mel_crops(streams[0], 40, 3, CPU)
    assert mel.shape == (3, 80, 40) and (phonemes == 7).all() and phonemes.shape == (3, 20)


def test_the_streams_mel_is_that_of_the_wave_in_silence():
    pcm = (torch.randn(480 * 1203) * 3000).to(torch.int16)
    mel = stream_mel(pcm, MOSS_MEL)
    padded = torch.nn.functional.pad(pcm.float() / 32768, (4800, 4800))
    expected = log_mel(padded, MOSS_MEL).t()[10:-10]
    assert mel.shape == (1203, 80) and mel.dtype == torch.float16
    torch.testing.assert_close(mel.float(), expected, atol=1e-2, rtol=0)


def test_folding_the_normalisation_keeps_every_code():
    torch.manual_seed(0)
    trainee = Trainee(FsqConfig())
    mel = torch.randn(2, 80, 60) * 2 - 5
    for _ in range(3):
        trainee.points(mel)
    trainee.eval()
    with torch.no_grad():
        expected = codes_of_points(trainee.points(mel), FsqConfig().levels)
        assert (trainee.folded().codes_of_mel(mel) == expected).float().mean() > 0.99
    assert len(expected.unique()) > 20


def test_crops_show_one_place_in_every_stream(work, run):
    run("train_codec", "--steps", 1, "--decoder-steps", 1, "--batch", 1, "--crop-frames", 40)
    speech = VocoderSpeech(work / "speech", work / "codec", CPU)
    torch.manual_seed(0)
    crops = speech.crops(32, 20, (12, 8), 0.5)
    assert crops.mel.shape == (32, 80, 40) and crops.rest.shape == (32, 20 * HOP)
    assert (crops.f0_hz == 200).all()
    edge = (crops.source.shape[1] - 40 * HOP) // 2
    inside = crops.source[:, edge + 12 * HOP :][:, : 20 * HOP]
    spectrum = torch.fft.rfft(inside * torch.hann_window(20 * HOP)).abs()
    voiced = torch.fft.rfft(crops.voiced * torch.hann_window(20 * HOP))
    at = round(200 * 20 * HOP / MOSS_MEL.sample_rate_hz)
    turned = torch.fft.rfft(inside * torch.hann_window(20 * HOP))[:, at] / voiced[:, at]
    assert (turned.angle().abs() < 0.05).all(), "the pulses are in phase with the voice"
    assert spectrum[:, at].min() > 10 * spectrum[:, at + at // 2].max()
