"""The files of a published MOSS-Speech codec folder."""

from __future__ import annotations

from pathlib import Path

import torch

from moss_engine.codec.flow_config import FlowConfig, flow_shapes, read_flow_config
from moss_engine.codec.flow_weights import FlowWeights, pack_flow
from moss_engine.codec.hift_config import HiftConfig, hift_shapes, read_hift_config
from moss_engine.codec.hift_weights import HiftWeights, fold_weight_norm, pack_hift
from moss_engine.codec.torch_file import check_tensors, read_tensors

FLOW_FOLDER = "flow"
CONFIG = f"{FLOW_FOLDER}/config.yaml"
FLOW_WHOLE = f"{FLOW_FOLDER}/flow.pt"
FLOW_CHUNK = f"{FLOW_FOLDER}/flow-chunk-5.pt"
HIFT = f"{FLOW_FOLDER}/hift.pt"
CHUNK_CODES = 5
"""What FLOW_CHUNK was trained with; FLOW_WHOLE was trained without chunks, and the two are never exchanged."""


def is_moss_codec(folder: Path) -> bool:
    """Whether a folder is laid out as the published codec is."""
    return (folder / CONFIG).is_file()


def load_flow(folder: Path, device: torch.device, dtype: torch.dtype, *, whole: bool = False) -> FlowWeights:
    """The flow for chunks of CHUNK_CODES, or the one that was trained on `whole` replies; CheckpointError names what is
    missing or does not fit."""
    config, path = read_flow_config(folder / CONFIG), folder / (FLOW_WHOLE if whole else FLOW_CHUNK)
    tensors = read_tensors(path)
    check_tensors(tensors, flow_shapes(config), path)
    return pack_flow(tensors, config, device, dtype)


def load_hift(folder: Path, device: torch.device) -> HiftWeights:
    """HiFT in float32; CheckpointError names what is missing or does not fit."""
    config, path = read_hift_config(folder / CONFIG), folder / HIFT
    tensors = fold_weight_norm(read_tensors(path))
    check_tensors(tensors, hift_shapes(config), path)
    return pack_hift(tensors, config, device)


def read_configs(folder: Path) -> tuple[FlowConfig, HiftConfig]:
    """Both parts of the folder's settings."""
    return read_flow_config(folder / CONFIG), read_hift_config(folder / CONFIG)
