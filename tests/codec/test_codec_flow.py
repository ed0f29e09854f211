"""The flow against its authors' own code, chunks against one run, and its files."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.moss.flow.network import (
    OUTSIDE,
    Chunk,
    FlowMemory,
    FlowVoice,
    flow_voice,
    prompt_memory,
    run_chunks,
)
from moss_engine.codec.moss.flow.weights import (
    FlowConfig,
    FlowWeights,
    flow_shapes,
    pack_flow,
    read_flow_config,
)
from scripts.bench.random_weights import random_flow
from tests.fixtures.golden.make_moss import CHUNK_CODES, FLOW, PATH, SEED, prompt, reply
from tests.fixtures.make_tiny_moss import TINY_FLOW, TINY_HIFT, config_yaml

CPU = torch.device("cpu")
GOLDEN = 1e-5


def relative_error(value: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((value - wanted).abs().max() / wanted.abs().max())


@pytest.fixture(scope="module")
def weights() -> FlowWeights:
    return pack_flow(random_flow(FLOW, SEED), FLOW, CPU, torch.float32)


@pytest.fixture(scope="module")
def voice(weights: FlowWeights) -> FlowVoice:
    codes, mel, speaker = prompt()
    return flow_voice(weights, codes, mel, speaker)


def chunked(
    weights: FlowWeights, voice: FlowVoice, codes: list[int], *, end: bool = True
) -> torch.Tensor:
    """The mel [mels, frames] of all chunks whose look-ahead is known, and with `end` of the
    rest."""
    memory = FlowMemory(weights, CHUNK_CODES, 21, prompt_memory(weights, voice, CHUNK_CODES))
    given = voice.codes.tolist()
    row = [OUTSIDE] * 2 + given + codes + [OUTSIDE] * 3 * end
    mels, at = [], len(given) - CHUNK_CODES
    while (size := min(CHUNK_CODES, len(row) - at - 5)) > 0 and (end or size == CHUNK_CODES):
        condition = voice.mel[-4 * CHUNK_CODES :] if at < len(given) else None
        chunk = Chunk(memory, voice, (tuple(row[at : at + size + 5]),), condition)
        mels.append(run_chunks(weights, [chunk])[0])
        at += size
    return torch.cat(mels[1:]).t()


def test_chunks_are_one_run_of_the_authors_code(weights, voice):
    with np.load(PATH) as golden:
        mel = chunked(weights, voice, reply())
        assert mel.shape == (80, 4 * len(reply()))
        assert relative_error(mel, torch.from_numpy(golden["chunked"])) < GOLDEN
        first = chunked(weights, voice, reply()[: CHUNK_CODES + 3], end=False)
        assert first.shape == (80, 20)
        assert relative_error(first, torch.from_numpy(golden["first"])) < GOLDEN


def test_published_sizes():
    shapes = flow_shapes(FlowConfig())
    assert len(shapes) == 1121
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 120_724_464
    assert shapes["decoder.estimator.up_blocks.0.0.block1.block.0.weight"] == (256, 512, 3)
    assert shapes["encoder.up_layer.conv.weight"] == (512, 512, 9)


def test_config_is_read_from_the_tagged_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(config_yaml(TINY_FLOW, TINY_HIFT))
    assert read_flow_config(path) == TINY_FLOW
    path.write_text("flow: !new:some.Class\n  output_size: 80\n")
    assert read_flow_config(path) == FlowConfig()


@pytest.mark.parametrize(("old", "new", "says"), [
    ("upsample_stride: 4", "upsample_stride: 2", "upsample_stride 2, and this program runs 4 only"),
    ("channels: [24]", "channels: [24, 24]",
     "only networks of one level are known; use the published MOSS-Speech codec."),
    ("input_layer: linear", "input_layer: conv2d",
     "'conv2d', and this program runs 'linear' only; use the published MOSS-Speech codec."),
    ("num_heads: 3", "num_heads: three", "estimator_heads 'three'"),
    ("!ref <spk_embed_dim>", "!ref <nothing>", "<nothing>"),
    ("chunk_size: 5", "chunk_size: [", "cannot be read"),
])  # fmt: skip
def test_another_codec_is_refused_by_name(tmp_path, old, new, says):
    path = tmp_path / "config.yaml"
    text = config_yaml(TINY_FLOW, TINY_HIFT)
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(CheckpointError, match=re.escape(says)):
        read_flow_config(path)
