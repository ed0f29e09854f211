"""Filling the CUDA runtime's weights from a checkpoint: every value in its place, and one tensor at
a time."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import pytest
import torch

from moss_engine.models import checkpoint
from moss_engine.models.checkpoint import (
    FILE_NAME,
    expected_tensors,
    load_tensors,
    save_tensors,
    stream_tensors,
)
from moss_engine.models.float8 import row_scales
from moss_engine.runtime.cuda import weights as cuda_weights
from moss_engine.runtime.cuda.weights import Float8, allocate, fill, num_bytes, places
from tests.fixtures.make_tiny_checkpoint import make_config

CPU = torch.device("cpu")
EVEN = dataclasses.replace(
    make_config(160),
    hidden_size=48,
    intermediate_size=80,
    num_attention_heads=6,
    head_dim=16,
    num_modality_layers=2,
    audio_vocab_size=80,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("even")
    generator = torch.Generator().manual_seed(1)
    shapes = expected_tensors(EVEN).items()
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes}
    save_tensors(path / FILE_NAME, tensors)
    return path


def test_every_tensor_is_in_its_place(folder: Path) -> None:
    tensors = load_tensors(folder, expected_tensors(EVEN))
    weights = allocate(EVEN, torch.float32, CPU)
    fill(weights, EVEN, stream_tensors(folder, expected_tensors(EVEN)))
    for name, place in places(weights, EVEN).items():
        assert torch.equal(place.values, tensors[name])
    layer, text = weights.branches.layers[1], "model.text_block.layers.1."
    assert torch.equal(layer.gate_up.weight[0, 80:], tensors[text + "mlp.up_proj.weight"])
    assert torch.equal(layer.qkv.weight[0, 96:128], tensors[text + "self_attn.k_proj.weight"])
    assert torch.equal(weights.heads.weight[0, 160:], tensors["audio_lm_head.weight"])


def test_float8_takes_the_given_scales(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a matrix is made float8 some rows at a time, the last of them fewer."""
    monkeypatch.setattr(cuda_weights, "_ROWS_AT_ONCE", 7)
    tensors = load_tensors(folder, expected_tensors(EVEN))
    scales = {
        name: 0.8 * row_scales(tensor)
        for name, tensor in tensors.items()
        if tensor.dim() == 2 and "embed" not in name
    }
    weights = allocate(EVEN, torch.bfloat16, CPU, Float8.ALL)
    fill(
        weights, EVEN, stream_tensors(folder, expected_tensors(EVEN), dtype=torch.bfloat16), scales
    )
    for name, place in places(weights, EVEN).items():
        if place.scale is None:
            assert torch.equal(place.values, tensors[name].bfloat16())
            continue
        assert torch.equal(place.scale, scales[name])
        # nearest of 3 bits of mantissa, after 8; what is beyond 0.8 of the row's largest value is
        # cut off
        limit = 448 * scales[name][:, None]
        wanted = tensors[name].clamp(-limit, limit)
        assert (
            (place.widened() - wanted).abs() <= wanted.abs() / 14 + scales[name][:, None] * 2**-9
        ).all()


def test_host_memory_holds_one_tensor_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, most, read = weakref.WeakSet(), [0], checkpoint.read_tensor

    def watched(stored: checkpoint.StoredTensor) -> torch.Tensor:
        tensor = read(stored)
        alive.add(tensor)
        most[0] = max(most[0], len(alive))
        return tensor

    monkeypatch.setattr(checkpoint, "read_tensor", watched)
    weights = allocate(EVEN, torch.bfloat16, CPU)
    tensors = stream_tensors(folder, expected_tensors(EVEN), dtype=torch.bfloat16)
    fill(weights, EVEN, tensors)
    assert most[0] <= 2  # one is still held while the next one is read


def test_memory_of_weights_is_known_before_they_are_made() -> None:
    for float8 in Float8:
        weights = allocate(EVEN, torch.bfloat16, CPU, float8)
        kept = [
            tensor
            for place in places(weights, EVEN).values()
            for tensor in (place.values, place.scale)
        ]
        assert num_bytes(EVEN, torch.bfloat16, float8) == sum(
            t.nbytes for t in kept if t is not None
        )
