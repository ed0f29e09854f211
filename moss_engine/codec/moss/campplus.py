"""The speaker network CAM++ of the published codec, an ONNX file run by onnxruntime on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError, MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.codec.moss.fbank import fbank
from moss_engine.codec.moss.voice import SPEAKER_DIM

CAMPPLUS_NAME = "flow/campplus.onnx"
INSTALL = "pip install onnxruntime"


class SpeakerEncoder:
    """Speech -> a vector that says whose it is."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a bad file, MissingPackageError without onnxruntime."""
        switch_off_telemetry()
        try:
            import onnxruntime
        except ImportError:
            raise MissingPackageError(
                f"Making a voice needs the package onnxruntime; run: {INSTALL}"
            ) from None
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; download the codec again.")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), options, ["CPUExecutionProvider"]
            )
            (self._input,), (output,) = self._session.get_inputs(), self._session.get_outputs()
        except Exception as error:  # the package has no common base class for its errors
            raise CheckpointError(
                f"{path} is no speaker network ({type(error).__name__}); download the codec again."
            ) from None
        if output.shape[-1] != SPEAKER_DIM:
            raise CheckpointError(
                f"{path} gives vectors of {output.shape[-1]} values instead of {SPEAKER_DIM}; "
                "use the published MOSS-Speech codec."
            )

    def vector(self, wave: Tensor) -> Tensor:
        """float32 [samples] at 16 kHz, 25 ms or more -> float32 [192]"""
        features = fbank(wave)
        features = features - features.mean(0, keepdim=True)
        (found,) = self._session.run(None, {self._input.name: features[None].numpy()})
        return torch.from_numpy(found).reshape(SPEAKER_DIM).float()
