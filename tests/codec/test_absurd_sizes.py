"""Codec folders that ask for absurd sizes, or hold what is no number: refused in a sentence, before
memory is taken."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.load import load_codec
from moss_engine.codec.moss.load import CONFIG
from moss_engine.codec.moss.voice import JSON_NAME
from moss_engine.codec.nano import load_fsq
from moss_engine.codec.vocoder.make import load_vocoder
from moss_engine.config import NANO_CHECKPOINT
from tests.fixtures.make_tiny_codec import make_tiny_codec
from tests.fixtures.make_tiny_moss import VOICE, make_tiny_codec_folder

ABSURD = (10**9, 2**40, -1)
HARMLESS = {"fmin", "fmax", "fmin_hz", "fmax_hz", "mel_mean", "mel_scale"}
"""Numbers that ask for no memory, of which any finite one can be meant."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("absurd")
    make_tiny_codec_folder(folder / "moss")
    make_tiny_codec(folder / "nano")
    return folder


@pytest.fixture
def moss(whole, tmp_path) -> Path:
    return shutil.copytree(whole / "moss", tmp_path / "moss")


def leaves(tree: Any, place: tuple = ()) -> Iterator[tuple]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from leaves(value, (*place, key))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield (*place, key)


@pytest.mark.parametrize(
    ("folder", "load"),
    [
        (NANO_CHECKPOINT / "codec", load_fsq),
        (NANO_CHECKPOINT / "vocoder" / "source_filter", load_vocoder),
        (None, load_vocoder),  # a BigVGAN
    ],
)
def test_every_absurd_number_of_a_config_is_refused(folder, load, whole, tmp_path):
    copy = shutil.copytree(folder or whole / "nano" / "vocoder", tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    for place in leaves(config):
        if place[-1] in HARMLESS:
            continue
        for number in ABSURD:
            changed = json.loads(json.dumps(config))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = number
            (copy / "config.json").write_text(json.dumps(changed))
            with pytest.raises(CheckpointError):
                load(copy)


@pytest.mark.parametrize("number", ["1000000000", ".nan"])
def test_every_absurd_number_of_the_published_codec_is_refused(number, moss):
    path = moss / CONFIG
    lines = path.read_text(encoding="utf-8").splitlines()
    named = r"(spk_embed_dim|vocab_size|output_size|attention_heads|linear_units|num_blocks|"
    named += r"attention_head_dim|n_blocks|num_mid_blocks|num_heads|base_channels|nb_harmonics|"
    named += r"n_fft|hop_len|cond_channels|sample_rate|token_mel_ratio)"
    found = [i for i, line in enumerate(lines) if re.match(rf"\s*{named}: \d+", line)]
    assert len(found) > 12
    for i in found:
        changed = [*lines[:i], re.sub(r": .*", f": {number}", lines[i]), *lines[i + 1 :]]
        path.write_text("\n".join(changed), encoding="utf-8")
        with pytest.raises(CheckpointError):
            load_codec(moss)


def test_a_voice_with_a_code_that_the_codec_lacks_is_refused(moss):
    path = moss / "voices" / VOICE / JSON_NAME
    values = json.loads(path.read_text())
    values["codes"][0] = 10**9
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"holds code 1000000000, but the codec has 64"):
        load_codec(moss)
