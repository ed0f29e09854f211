"""Moonshine tiny-en: the weights in the wheel of moonshine-voice 0.0.65, run by ONNX Runtime.

The library's own runner keeps every core busy for a third of the speed, and does not say how sure
it is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.recogniser.base import RATE_HZ, Heard

INSTALL = "pip install moonshine-voice==0.0.65 onnxruntime silero-vad"
WEIGHTS = Path("assets") / "tiny-en"
SILENCE_PEAK = 1e-3
NOTHING = ("", "you", "thankyouforwatching")
"""What it writes, letters alone, where there are no words: notes for music, "You" for noise."""
BEGIN, END = 1, 2
TOKENS_PER_S, LEAST_TOKENS = 6.5, 4
MOST_S = 14.0
"""A longer recording is heard in parts, cut where it is softest."""
CUT_FROM_S, SOFT_S = 8.0, 0.1
LEAST_S = 0.5  # the network takes no shorter ones
UNSURE = -0.9
"""Log-probability of the mean token below which it was not English, or not to be made out."""
FEW_TOKENS = 3  # that say too little about it


class Moonshine:
    """`encoder` and `decoder` are sessions of ONNX Runtime, `pieces[i]` is token i in UTF-8."""

    name = "Moonshine tiny"
    language = "English"

    def __init__(self, encoder: Any, decoder: Any, pieces: list[bytes]):
        self._encoder: Any = encoder
        self._decoder: Any = decoder
        self._pieces = pieces
        self._outputs = [output.name for output in decoder.get_outputs()]
        self._empty = {
            given.name: np.zeros([1, given.shape[1], 0, given.shape[3]], np.float32)
            for given in decoder.get_inputs()
            if given.name.startswith("past")
        }

    def transcribe(self, wave: np.ndarray) -> Heard:
        """As `Recogniser.transcribe`."""
        texts, scores = [], []
        for part in _parts(wave):
            tokens, found = self._decode(part)
            text = b"".join(self._pieces[token] for token in tokens).decode("utf-8", "ignore")
            text = text.replace("▁", " ").strip()
            if _letters(text) not in NOTHING:
                texts.append(text)
                scores += found
        unsure = len(scores) > FEW_TOKENS and float(np.mean(scores)) < UNSURE
        return Heard(" ".join(texts), not unsure)

    def close(self) -> None:
        self._encoder = self._decoder = None

    def _decode(self, wave: np.ndarray) -> tuple[list[int], list[float]]:
        """float32 [samples] -> the likeliest tokens one by one, and their log-probabilities, that
        of the end among them."""
        seen = np.ones((1, len(wave)), np.int64)  # of samples, for both
        (states,) = self._encoder.run(None, {"input_values": wave[None], "attention_mask": seen})
        past, tokens, scores = dict(self._empty), [BEGIN], []
        for _ in range(LEAST_TOKENS + int(TOKENS_PER_S * len(wave) / RATE_HZ)):
            given = {
                "input_ids": np.array([tokens[-1:]], np.int64),
                "encoder_hidden_states": states,
                "encoder_attention_mask": seen,
                "use_cache_branch": np.array([len(tokens) > 1]),
            }
            found = dict(zip(self._outputs, self._decoder.run(None, given | past), strict=True))
            logits = found.pop("logits")[0, -1]
            for name, value in found.items():
                if len(tokens) == 1 or ".decoder." in name:  # what was encoded stays as it is
                    past[name.replace("present", "past_key_values")] = value
            tokens.append(int(logits.argmax()))
            scores.append(-float(np.log(np.exp(logits - logits.max()).sum())))
            if tokens[-1] == END:
                return tokens[1:-1], scores
        return tokens[1:], scores


def _parts(wave: np.ndarray) -> Iterator[np.ndarray]:
    """What is not silent of a recording, in parts of at most MOST_S."""
    wave = np.ascontiguousarray(wave, np.float32)
    while len(wave):
        end, size = len(wave), round(SOFT_S * RATE_HZ)
        if end > MOST_S * RATE_HZ:
            first, last = round(CUT_FROM_S * RATE_HZ), round(MOST_S * RATE_HZ)
            frames = wave[first : last - (last - first) % size].reshape(-1, size)
            end = first + size * int((frames**2).mean(axis=1).argmin()) + size // 2
        if max(wave[:end].max(), -wave[:end].min()) >= SILENCE_PEAK:
            yield np.pad(wave[:end], (0, max(0, round(LEAST_S * RATE_HZ) - end)))
        wave = wave[end:]


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def load() -> Moonshine:
    """Raises MissingPackageError with the command that installs it."""
    found = importlib.util.find_spec("moonshine_voice")  # not imported: its files are all we need
    folder = Path(found.origin).parent / WEIGHTS if found and found.origin else None
    if folder is None or importlib.util.find_spec("onnxruntime") is None:
        raise MissingPackageError(f"Talking to it needs a recogniser; run: {INSTALL}")
    if not folder.is_dir():
        raise MissingPackageError(
            f"The installed moonshine-voice has no weights in {WEIGHTS}; run: {INSTALL}"
        )
    switch_off_telemetry()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    encoder, decoder = (
        onnxruntime.InferenceSession(
            str(folder / f"{name}.ort"), options, providers=["CPUExecutionProvider"]
        )
        for name in ("encoder_model", "decoder_model_merged")
    )
    return Moonshine(encoder, decoder, _pieces((folder / "tokenizer.bin").read_bytes()))


def _pieces(data: bytes) -> list[bytes]:
    """Tokens, each behind its length: one byte, or two from 128 on."""
    pieces, at = [], 0
    while at < len(data):
        size, at = data[at], at + 1
        if size >= 128:
            size, at = data[at] * 128 + size - 128, at + 1
        pieces.append(data[at : at + size])
        at += size
    return pieces
