"""The nano codec as a SpeechCodec: FSQ encoder and decoder, and BigVGAN, joined on the same mel.

Torch's thread count is per calling thread: a codec thread sets its own with `torch.set_num_threads` before its first
call, and one thread is the setting to choose beside a language model on another core. A stream belongs to one thread at
a time; the networks are shared and only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from moss_engine.codec.bigvgan import mel_spec_of
from moss_engine.codec.fsq import LOOK_AHEAD_CODES, NanoFsq, points_of_codes
from moss_engine.codec.fsq_stream import DecoderStream
from moss_engine.codec.mel import log_mel
from moss_engine.codec.resample import resample
from moss_engine.codec.store import load_fsq, load_vocoder
from moss_engine.codec.vocoder_stream import VocoderStream, WindowPlan, context_frames
from moss_engine.errors import ParameterError

CHUNK_CODES = (6, 8, 10)
"""Codes of the first chunks and of every later one: the first is short so that sound starts early, but long enough that
the next one is ready in time. With (4, 6, 10) sound came 26 ms earlier, and 3 streams on 2 cores ran dry 25 times in 12
replies, with these 0 to 7 times (`python -m scripts.nano.evaluate --only-speed`)."""
CONTEXT_SHARE = 0.8
"""Context of a window as a share of the vocoder's nominal support. The outermost frames act only through products of
filter edges: on the trained vocoder, 0.8 of the support differs from all of it by rounding noise (-127 dB), 0.6 of it
by -44 dB (`python -m scripts.nano.vocoder_context`)."""


class NanoCodec:
    """wave <-> codes; one voice."""

    def __init__(self, fsq: NanoFsq, generator: nn.Module, plan: WindowPlan, device: torch.device) -> None:
        self._fsq, self._generator, self._plan, self._device = fsq, generator, plan, device
        mel = fsq.config.mel
        self.mel = mel
        self.sample_rate_hz = mel.sample_rate_hz
        self.code_rate_hz = Fraction(mel.sample_rate_hz, fsq.config.samples_per_code)
        self.num_codes = fsq.config.num_codes
        self.voices: tuple[str, ...] = ("nano",)

    @torch.inference_mode()
    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        """float32 [samples] mono -> one code per started 40 ms; a wave without samples has none."""
        if len(wave) == 0:
            return []
        samples = torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32)).to(self._device)
        samples = resample(samples, sample_rate_hz, self.sample_rate_hz)
        missing = -len(samples) % self._fsq.config.samples_per_code
        mel = log_mel(torch.nn.functional.pad(samples, (0, missing)), self.mel)
        return self._fsq.codes_of_mel(mel[None])[0].tolist()

    def open_stream(self, voice: str | None = None) -> NanoStream:
        """A new reply; raises ParameterError for a voice that does not exist."""
        if voice is not None and voice not in self.voices:
            raise ParameterError(f"voice {voice!r} is unknown; choose one of {', '.join(self.voices)}.")
        return NanoStream(self._fsq, self._generator, self._plan, self._device)


class NanoStream:
    """One reply being spoken: codes -> mel frames -> samples.

    Codes wait until they complete a chunk of the vocoder, since one run of the decoder over many costs as much as over
    one. The last code that it took is held back in it, until its look-ahead is known.
    """

    def __init__(self, fsq: NanoFsq, generator: nn.Module, plan: WindowPlan, device: torch.device) -> None:
        config = fsq.config
        self._config, self._device = config, device
        self._decoder = DecoderStream(fsq.decoder, device)
        self._vocoder = VocoderStream(generator, config.mel.num_mels, config.mel.hop_size, plan, device)
        self._waiting: list[int] = []
        self._held_back = 0

    def push(self, codes: Sequence[int]) -> np.ndarray:
        """Codes -> the samples float32 [n] that are final now; raises ParameterError for a code out of range."""
        for code in codes:
            if not 0 <= code < self._config.num_codes:
                raise ParameterError(f"code {code} is none of the codec's {self._config.num_codes} codes.")
        self._waiting.extend(codes)
        ready_frames = (self._held_back + len(self._waiting) - LOOK_AHEAD_CODES) * self._config.frames_per_code
        if ready_frames < self._vocoder.missing_frames:
            return np.zeros(0, dtype=np.float32)
        return self._vocoder.push(self._decode()).cpu().numpy()

    def flush(self) -> np.ndarray:
        """-> the remaining samples; the stream is over."""
        if not self._held_back and not self._waiting:
            return np.zeros(0, dtype=np.float32)
        mel = torch.cat([self._decode(), self._decoder.flush()], dim=1)
        return torch.cat([self._vocoder.push(mel), self._vocoder.flush()]).cpu().numpy()

    def _decode(self) -> Tensor:
        codes = torch.tensor(self._waiting, dtype=torch.int64, device=self._device)
        self._waiting, self._held_back = [], LOOK_AHEAD_CODES
        return self._decoder.push(points_of_codes(codes, self._config.levels))


def load_nano_codec(
    codec_folder: Path,
    vocoder_folder: Path,
    device: torch.device | str = "cpu",
    *,
    context_share: float = CONTEXT_SHARE,
    chunk_codes: tuple[int, ...] = CHUNK_CODES,
) -> NanoCodec:
    """Read both folders and join them; MelSpecError where they were trained on different mels.

    Less context on the right lets the first samples out earlier, less on either side makes every chunk cheaper; with a
    `context_share` of 1 the joins are exact for any weights.
    """
    device = torch.device(device)
    fsq = load_fsq(codec_folder, device)
    generator, vocoder_config = load_vocoder(vocoder_folder, device)
    fsq.config.mel.check_equal(mel_spec_of(vocoder_config), ours=str(codec_folder), theirs=str(vocoder_folder))
    context = context_frames(vocoder_config, context_share)
    plan = WindowPlan(
        chunk_frames=tuple(codes * fsq.config.frames_per_code for codes in chunk_codes),
        left_frames=context,
        right_frames=context,
    )
    return NanoCodec(fsq, generator, plan, device)
