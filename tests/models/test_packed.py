"""Weights in 8 and 4 bits: where each value lies, what rounding loses, which parts have them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.layout import bits_of_format, parts_of, require_sizes, stored_bits
from moss_engine.models.packed import (
    gptq4,
    group_of,
    lost_power,
    pack4,
    quantise4,
    round4,
    scales4,
    searched_scales4,
    unpack4,
    widen4,
)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_byte_holds_two_inputs_half_a_group_apart() -> None:
    integers = torch.arange(-8, 8, dtype=torch.int8).repeat(4).view(1, 64)
    integers[0, 3], integers[0, 35] = -2, 7
    packed = pack4(integers, 64)
    assert packed.shape == (1, 32) and packed.dtype is torch.uint8
    assert packed[0, 3].item() == (-2 + 8) | (7 + 8) << 4
    assert torch.equal(unpack4(packed, 64), integers)


def test_4_bits_are_the_nearest_of_their_group() -> None:
    weight = normal(6, 256)
    weight[2, 128:] = 0
    values, scale = quantise4(weight, 128)
    assert values.shape == (6, 128) and scale.shape == (6, 2) and scale.dtype is torch.float16
    lost = (widen4(values, scale) - weight).abs().unflatten(1, (2, 128))
    steps = scale.float().abs().unsqueeze(2)
    # half a step; a whole one at the far end, which has the integer 7 and no 8
    assert (lost <= 1.01 * steps).all() and (lost <= 0.51 * steps).float().mean() > 0.99
    assert not widen4(values, scale)[2, 128:].any()
    # the value of largest magnitude is met, whichever its sign
    assert (lost.flatten(1).gather(1, weight.abs().argmax(1, keepdim=True)) < 2e-3).all()
    assert torch.equal(pack4(round4(weight, scales4(weight, 128)), 128), values)


def test_searched_scales_lose_less_of_the_weights() -> None:
    weight = normal(24, 128)
    scale = searched_scales4(weight, 64)
    plain = lost_power(weight, widen4(*quantise4(weight, 64)))
    searched = widen4(pack4(round4(weight, scale), 64), scale)
    assert lost_power(weight, searched) < 0.95 * plain < 0.02


def test_calibration_loses_less_of_the_output() -> None:
    """Of rows in which inputs go together, as in a network, and one input is never used."""
    weight = normal(24, 128)
    inputs = normal(400, 16, seed=2) @ normal(16, 128, seed=3) + 0.3 * normal(400, 128, seed=4)
    inputs[:, 5] = 0
    products = inputs.T @ inputs
    values, scale = quantise4(weight, 64)
    plain = lost_power(weight, widen4(values, scale), products)
    integers, scale = gptq4(weight, products, 64)
    assert integers.min() >= -8 and integers.max() <= 7
    calibrated = widen4(pack4(integers, 64), scale)
    lost = lost_power(weight, calibrated, products)
    assert lost < 0.3 * plain
    wanted, found = inputs @ weight.T, inputs @ calibrated.T
    assert ((found - wanted).square().sum() / wanted.square().sum()).item() == pytest.approx(
        lost, rel=0.01
    )


def test_matrices_that_are_one_product_are_one_part_and_formats_name_them_all() -> None:
    parts = parts_of(PUBLISHED)
    attention = "model.shared_block.layers.3.self_attn."
    assert parts["trunk.3.qkv"] == [f"{attention}{name}_proj.weight" for name in "qkv"]
    assert parts["branches.0.down"] == [
        f"model.{branch}_block.layers.0.mlp.down_proj.weight" for branch in ("text", "audio")
    ]
    assert parts["heads"] == ["text_lm_head.weight", "audio_lm_head.weight"]
    assert len(parts) == 4 * (32 + 4) + 1 and sum(map(len, parts.values())) == 7 * 40 + 2
    bits = bits_of_format(PUBLISHED, "int4")
    assert bits["heads"] == 8 and set(bits.values()) == {4, 8} and bits["trunk.31.down"] == 4
    assert set(bits_of_format(PUBLISHED, "int8").values()) == {8}


def test_sizes_without_groups_are_refused() -> None:
    odd = dataclasses.replace(PUBLISHED, intermediate_size=12_304)
    require_sizes(odd, 8)
    with pytest.raises(ConfigError, match=r"int4 needs .* 32, .* intermediate_size 12304; use"):
        bits_of_format(odd, "int4")


def packed_copy(folder: Path, out: Path, names: list[str]) -> ModelConfig:
    """A copy of a folder of int8 with some matrices in 4 bits."""
    config = ModelConfig.from_file(folder / "config.json")
    tensors = load_file(folder / FILE_NAME)
    for name in names:
        wide = tensors[name].float() * tensors[name + "_scale"].float()[:, None]
        group = group_of(wide.shape[1])
        assert group is not None
        tensors[name], tensors[name + "_scale"] = quantise4(wide, group)
    save_file(tensors, out / FILE_NAME)
    return config


def test_a_folder_tells_its_bits_by_its_headers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    names = ["model.shared_block.layers.0.mlp.down_proj.weight"]
    config = packed_copy(tiny_checkpoint, tmp_path, names)
    bits = stored_bits(tmp_path, config)
    assert bits["trunk.0.down"] == 4 and bits["trunk.0.o"] == bits["heads"] == 8
    stored = load_file(tmp_path / FILE_NAME)
    wide = load_tensors(tmp_path, expected_tensors(config))[names[0]]
    assert torch.equal(wide, widen4(stored[names[0]], stored[names[0] + "_scale"]))


def test_parts_of_two_kinds_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = packed_copy(
        tiny_checkpoint, tmp_path, ["model.text_block.layers.0.mlp.down_proj.weight"]
    )
    with pytest.raises(CheckpointError, match=r"branches\.0\.down with .*scripts\.quantize"):
        stored_bits(tmp_path, config)


def test_tables_have_no_4_bits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = packed_copy(tiny_checkpoint, tmp_path, ["model.audio_embed.weight"])
    with pytest.raises(CheckpointError, match="may not be stored in 4 bits"):
        stored_bits(tmp_path, config)
