"""The files of a published MOSS-Speech codec folder."""

from __future__ import annotations

from pathlib import Path

import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.moss.flow.config import FlowConfig, flow_shapes, read_flow_config
from moss_engine.codec.moss.flow.weights import FlowWeights, pack_flow
from moss_engine.codec.torch_file import check_tensors, read_tensors
from moss_engine.codec.vocoder.hift.config import HiftConfig, hift_shapes, read_hift_config
from moss_engine.codec.vocoder.hift.weights import HiftWeights, fold_weight_norm, pack_hift

FLOW_FOLDER = "flow"
CONFIG = f"{FLOW_FOLDER}/config.yaml"
FLOW_WHOLE = f"{FLOW_FOLDER}/flow.pt"
FLOW_CHUNK = f"{FLOW_FOLDER}/flow-chunk-5.pt"
HIFT = f"{FLOW_FOLDER}/hift.pt"
CHUNK_CODES = 5
"""FLOW_CHUNK was trained with chunks of this size, FLOW_WHOLE without; never exchanged."""


def is_moss_codec(folder: Path) -> bool:
    """Whether a folder is laid out as the published codec is."""
    return (folder / FLOW_FOLDER).is_dir()


def load_flow(
    folder: Path, device: torch.device, dtype: torch.dtype, *, whole: bool = False
) -> FlowWeights:
    """The flow for chunks of CHUNK_CODES, or for `whole` replies; raises CheckpointError."""
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
    """Settings of flow and HiFT; raises CheckpointError for another codec's rates or mel."""
    path = folder / CONFIG
    flow, hift = read_flow_config(path), read_hift_config(path)
    found = {
        "mel bands": (flow.num_mels, MOSS_MEL.num_mels),
        "mel bands for HiFT": (hift.num_mels, MOSS_MEL.num_mels),
        "Hz": (hift.sample_rate_hz, MOSS_MEL.sample_rate_hz),
        "samples a mel frame": (hift.samples_per_frame, MOSS_MEL.hop_size),
        "codes a second": (flow.code_rate_hz, MOSS_MEL.frame_rate_hz / flow.ratio),
    }
    wrong = [
        f"{value:g} {what} instead of {float(wanted):g}"
        for what, (value, wanted) in found.items()
        if value != wanted
    ]
    if wrong:
        raise CheckpointError(
            f"{path} describes another codec ({'; '.join(wrong)}); "
            "use the published MOSS-Speech codec."
        )
    return flow, hift
