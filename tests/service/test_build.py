"""The whole program on the tiny random checkpoint: from options to a WAV file; and what a start
loads."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from moss_engine import say
from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.audio.pcm import read_wav
from moss_engine.build import build_service, build_talking_service
from moss_engine.config import REPO_ROOT, EngineConfig, TalkConfig

FIGURES = ("audio_s", "ttfa_ms", "num_prompt_rows")


def test_a_text_becomes_a_file_of_the_sound_that_was_made_by_the_same_seed_the_same(
    tiny_checkpoint, tmp_path, capsys
):
    """How much is decoded at a time depends on the machine's load, which may change the last bit of
    a sample."""
    waves = []
    for name in ("a.wav", "b.wav"):
        asked = ["Hello there. I am here.", "--out", str(tmp_path / name), "--seed", "5"]
        asked += ["--play-metrics", "--checkpoint", str(tiny_checkpoint), "--device", "cpu"]
        say.main(asked)
        lines = map(str.split, capsys.readouterr().out.splitlines())
        figures = {name: float(value) for name, value, *_ in lines if name in FIGURES}
        pcm, rate_hz = read_wav(tmp_path / name)
        assert rate_hz == 24_000 and len(pcm) == round(figures["audio_s"] * 24_000) > 0
        assert figures["ttfa_ms"] > 0 and figures["num_prompt_rows"] > 0
        waves.append(pcm.astype(int))
    assert np.abs(waves[0] - waves[1]).max() <= 1 and np.abs(waves[0]).max() > 100


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


BUILD = """
import sys
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
build_service(EngineConfig(device="cpu"))
print(sorted({"sympy", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_building_the_service_loads_no_compiler() -> None:
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
