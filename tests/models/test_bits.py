"""Which parts have how many bits, by a format and by a folder's headers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moss_engine.api.errors import CheckpointError, ConfigError
from moss_engine.models.checkpoint import FILE_NAME, expected_tensors, load_tensors
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.layout import bits_of_format, part_of, parts_of, require_sizes, stored_bits
from moss_engine.models.packed import group_of, quantise4, widen4


def test_matrices_that_are_one_product_are_one_part() -> None:
    assert part_of("model.shared_block.layers.3.self_attn.q_proj.weight") == "trunk.3.qkv"
    assert part_of("model.text_block.layers.0.mlp.up_proj.weight") == "branches.0.gate_up"
    assert part_of("model.audio_block.layers.0.mlp.gate_proj.weight") == "branches.0.gate_up"
    assert part_of("audio_lm_head.weight") == "heads"
    assert part_of("model.embed_tokens.weight") is None
    assert part_of("model.shared_block.layers.3.self_attn.q_norm.weight") is None
    parts = parts_of(PUBLISHED)
    assert len(parts) == 4 * (32 + 4) + 1 and sum(map(len, parts.values())) == 7 * 40 + 2


def test_formats_name_every_part() -> None:
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


def test_a_folder_of_another_model_is_refused_by_its_headers(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    names = ["model.shared_block.layers.0.mlp.down_proj.weight"]
    config = packed_copy(tiny_checkpoint, tmp_path, names)
    other = dataclasses.replace(config, intermediate_size=2 * config.intermediate_size)
    with pytest.raises(CheckpointError, match="belong together"):
        stored_bits(tmp_path, other)
