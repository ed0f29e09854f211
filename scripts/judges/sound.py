"""How good speech sounds, by two networks that predict listeners' opinions: DistillMOS and DNSMOS.

They do not replace a listening test, and hear only what 16 kHz sound has. Every file is judged at
-24 dBFS and without the silence around it, which both would count against it. Modules that their
packages import but do not need for this are not loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from moss_engine.api.errors import MissingPackageError
from scripts.judges.words import resample

RATE_HZ = 16_000
LEVEL_DBFS = -24.0
SILENCE = 0.03
"""At the ends, samples below this share of the peak are silence; EDGE_S seconds of it are kept."""
EDGE_S = (0.05, 0.1)
DNSMOS_SECONDS = 9.01
UNUSED = ("torchaudio", "librosa")
INSTALL = "pip install --no-deps distillmos==0.9.1 speechmos==0.0.1.1 xls-r-sqa==0.1.0"


class SoundJudges:
    """Both networks, from 1 (bad) to 5 (excellent)."""

    def __init__(self) -> None:
        with _left_out(UNUSED), contextlib.redirect_stdout(None):
            self._mos = _module("distillmos").ConvTransformerSQAModel().eval()
            package = _module("speechmos.dnsmos")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = Path(package.__file__).parent / "dnsmos_models" / "sig_bak_ovr.onnx"
        self._dns = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self._calibrate: Any = package.DNSMOS.get_polyfit_val

    @torch.inference_mode()
    def distillmos(self, wave: np.ndarray, rate_hz: int) -> float:
        """float32 [samples] mono -> overall quality"""
        return self._mos(torch.from_numpy(prepared(wave, rate_hz))[None]).item()

    def dnsmos(self, wave: np.ndarray, rate_hz: int) -> float:
        """float32 [samples] mono -> overall quality; a short file is repeated, a long one judged
        second by second."""
        samples, size = prepared(wave, rate_hz), int(DNSMOS_SECONDS * RATE_HZ)
        samples = np.tile(samples, -(-size // len(samples)))[: max(size, len(samples))]
        starts = range(0, len(samples) - size + 1, RATE_HZ)
        raw = [
            np.asarray(self._dns.run(None, {"input_1": samples[None, a : a + size]})[0])[0]
            for a in starts
        ]
        overall = [self._calibrate(self, *scores, False)[2] for scores in raw]
        return float(np.mean(overall))

    def figures(self, name: str, waves: Sequence[np.ndarray], rate_hz: int) -> dict[str, float]:
        """mean and worst of both, as `distillmos_NAME` and so on"""
        found = {}
        for judge in (self.distillmos, self.dnsmos):
            opinions = [judge(wave, rate_hz) for wave in waves]
            label = f"{judge.__name__}_{name}"
            found |= {label: round(float(np.mean(opinions)), 3)}
            found |= {f"{label}_worst": round(min(opinions), 3)}
        return found


def prepared(wave: np.ndarray, rate_hz: int) -> np.ndarray:
    """float32 [samples] at RATE_HZ and LEVEL_DBFS, without the silence around"""
    wave = np.asarray(wave, np.float32)
    peak = np.abs(wave).max(initial=0.0)
    assert peak > 0, "silence has no quality"
    loud = np.flatnonzero(np.abs(wave) > SILENCE * peak)
    first, last = int(loud[0] - EDGE_S[0] * rate_hz), int(loud[-1] + EDGE_S[1] * rate_hz)
    samples = resample(wave[max(0, first) : last], rate_hz, RATE_HZ)
    level = 10 ** (LEVEL_DBFS / 20) / np.sqrt(np.mean(samples**2))
    return np.clip(samples * level, -1, 1).astype(np.float32)


@contextlib.contextmanager
def _left_out(names: Sequence[str]) -> Iterator[None]:
    """While a package is imported, put stand-ins in place of modules that it never calls here."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    sys.modules.update({name: ModuleType(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{name} cannot be imported ({error}); install the judges with: {INSTALL}"
        ) from error
