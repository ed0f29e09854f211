"""The whole program on the tiny random checkpoint: from options to a WAV file."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import wave

import numpy as np
import pytest

from moss_engine import say
from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.build import build_service, build_talking_service
from moss_engine.config import EngineConfig, TalkConfig


def run_say(checkpoint, out, capsys) -> dict[str, float]:
    say.main(
        [
            "Hello there. I am here.",
            "--out",
            str(out),
            "--checkpoint",
            str(checkpoint),
            "--device",
            "cpu",
            "--seed",
            "5",
            "--json",
        ]
    )
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_text_becomes_a_file_of_exactly_the_sound_that_was_made(
    tiny_checkpoint, tmp_path, capsys
):
    figures = run_say(tiny_checkpoint, tmp_path / "a.wav", capsys)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() == round(figures["audio_s"] * 24_000) > 0
    assert figures["ttfa_ms"] > 0 and figures["num_prompt_rows"] > 0


def test_the_same_seed_gives_the_same_speech(tiny_checkpoint, tmp_path, capsys):
    """How much is decoded at a time depends on the machine's load, which may change the last bit of
    a sample."""
    waves = []
    for name in ("a.wav", "b.wav"):
        run_say(tiny_checkpoint, tmp_path / name, capsys)
        with wave.open(str(tmp_path / name)) as file:
            waves.append(np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(int))
    assert len(waves[0]) == len(waves[1]) and np.abs(waves[0] - waves[1]).max() <= 1
    assert np.abs(waves[0]).max() > 100


def test_a_second_start_does_nothing(tiny_checkpoint):
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"))
    try:
        service.start()
        running = set(threading.enumerate())
        service.start()
        assert set(threading.enumerate()) <= running
        assert asyncio.run(service.stats()).ready
    finally:
        service.close()


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint.*--checkpoint"):
        build_service(EngineConfig(checkpoint=tmp_path, device="cpu"))


def test_a_codec_of_another_size_is_refused(tiny_checkpoint, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    config["eosp_token_id"] -= 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="use parts of one checkpoint"):
        build_service(EngineConfig(checkpoint=folder, device="cpu"))


def test_the_codec_may_lie_in_another_folder(tiny_checkpoint, tmp_path):
    codec = tmp_path / "parts"
    for name in ("codec", "vocoder"):
        shutil.copytree(tiny_checkpoint / name, codec / name)
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, codec=codec, device="cpu"))
    info, stats = asyncio.run(service.describe()), asyncio.run(service.stats())
    assert info.sample_rate_hz == 24_000 and not stats.ready
    service.close()


def test_a_started_service_is_ready_until_it_is_closed(tiny_checkpoint):
    service = build_service(EngineConfig(checkpoint=tiny_checkpoint, device="cpu"))
    service.start()
    stats = asyncio.run(service.stats())
    assert stats.ready and stats.engine.blocks_used == 0
    service.close()
    assert not asyncio.run(service.stats()).ready


@pytest.mark.parametrize(
    ("talk", "sentence"),
    [
        (TalkConfig(recogniser="none", brain="http://localhost:1"), "--brain-model"),
        (TalkConfig(recogniser="none", brain="localhost", brain_model="tiny"), "http://localhost"),
        (TalkConfig(recogniser="whisper"), "moonshine"),
    ],
)
def test_who_cannot_be_talked_to_is_said_before_anything_begins(tiny_checkpoint, talk, sentence):
    config = EngineConfig(checkpoint=tiny_checkpoint, device="cpu", kv_rows=512)
    with pytest.raises(ConfigError, match=sentence):
        build_talking_service(config, talk)
