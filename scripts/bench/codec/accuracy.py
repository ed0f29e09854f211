"""The MOSS-Speech codec's memory, and the accuracy that short formats and a short history cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.moss.flow.decoder import (
    OUTSIDE,
    Chunk,
    flow_voice,
    prompt_memory,
    run_chunks,
)
from moss_engine.codec.moss.flow.encoder import LOOK_BACK, FlowMemory
from moss_engine.codec.moss.flow.weights import pack_flow
from moss_engine.codec.moss.load import CHUNK_CODES
from moss_engine.codec.vocoder.hift.stream import Window
from moss_engine.codec.vocoder.hift.weights import pack_hift
from moss_engine.codec.vocoder.stream import MelVocoder
from scripts.bench.random_weights import Parts

NARROW = (torch.float16, torch.bfloat16)


def memory(weights: Parts) -> dict[str, float]:
    """Megabytes of the codec's tensors in float16: its parts, a voice's prompt, a reply."""
    flow = pack_flow(weights.flow, weights.sizes.flow, torch.device("cpu"), torch.float16)
    hift = pack_hift(weights.hift, weights.sizes.hift, torch.device("cpu"))
    prompt_chunks = weights.sizes.voice_codes // CHUNK_CODES - 1
    prompt = FlowMemory(flow, CHUNK_CODES, prompt_chunks)
    reply = FlowMemory(flow, CHUNK_CODES, weights.sizes.history_codes // CHUNK_CODES + 1, prompt)
    parts = {
        "encoder": sum(map(num_bytes, weights.encoder(torch.float16).tensors())),
        "flow": num_bytes(flow),
        "hift": num_bytes(hift),
        "voice": prompt.num_bytes,
        "reply": reply.num_bytes,
    }
    found = {f"float16_{name}_mb": round(size / 1e6, 1) for name, size in parts.items()}
    return found | {"float16_one_voice_one_reply_mb": round(sum(parts.values()) / 1e6, 1)}


def num_bytes(value: Any) -> int:
    """Bytes of all tensors in a value of dataclasses and tuples."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if dataclasses.is_dataclass(value):
        return sum(num_bytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    return sum(num_bytes(inner) for inner in value) if isinstance(value, tuple) else 0


class Listener:
    """A vocoder that keeps the mel it is given."""

    def __init__(self, vocoder: MelVocoder) -> None:
        self.open, self._speak = vocoder.open, vocoder.speak
        self.mels: list[Tensor] = []

    def speak(self, windows: Sequence[Window]) -> list[tuple[Tensor, Any]]:
        self.mels += [one.mel for one in windows]
        return self._speak(windows)


def rounding(weights: Parts) -> dict[str, Any]:
    """Relative RMS error of 16-bit formats against float32: mel, wave, and the wave's log-mel.

    The log-mel does not hear the wave's phase.
    """
    sizes = weights.sizes
    codes = np.random.RandomState(2).randint(0, sizes.num_codes, sizes.compared_codes).tolist()
    results: dict[torch.dtype, dict[str, Tensor]] = {}
    for dtype in (torch.float32, *NARROW):
        codec = weights.codec(dtype, 1)
        codec.vocoder = listener = Listener(codec.vocoder)
        stream = codec.open_stream()
        wave = torch.from_numpy(
            np.concatenate(
                [*(stream.push(codes[i : i + 5]) for i in range(0, len(codes), 5)), stream.flush()]
            )
        )
        results[dtype] = {
            "mel": torch.cat(listener.mels, 1),
            "wave": wave,
            "log_mel_of_wave": log_mel(wave, MOSS_MEL),
        }
    found: dict[str, Any] = {"compared_codes": sizes.compared_codes}
    for dtype in NARROW:
        for part, wanted in results[torch.float32].items():
            share = float((results[dtype][part] - wanted).norm() / wanted.norm())
            name = f"{part}_in_{str(dtype).removeprefix('torch.')}_against_float32"
            found |= {
                f"{name}_rms": round(share, 5),
                f"{name}_db": round(20 * math.log10(share), 1),
            }
    return found


def history(weights: Parts) -> dict[str, Any]:
    """Relative RMS error of a mel with a history of `history_codes` against an unbounded one.

    In float32, over the frames whose past differs.
    """
    sizes, voice = weights.sizes, weights.voice
    flow = pack_flow(weights.flow, sizes.flow, weights.device, torch.float32)
    of_flow = flow_voice(flow, voice.codes, voice.mel, voice.speaker)
    prompt = prompt_memory(flow, of_flow, CHUNK_CODES)
    reply = np.random.RandomState(2).randint(0, sizes.num_codes, sizes.compared_codes).tolist()
    row = [
        *of_flow.codes.tolist()[-CHUNK_CODES - LOOK_BACK :],
        *reply,
        *[OUTSIDE] * sizes.flow.look_ahead,
    ]
    mels = []
    for kept in (sizes.history_codes, sizes.compared_codes + CHUNK_CODES):
        memory, made = FlowMemory(flow, CHUNK_CODES, kept // CHUNK_CODES + 1, prompt), []
        for at in range(0, sizes.compared_codes, CHUNK_CODES):
            window = tuple(row[at : at + LOOK_BACK + CHUNK_CODES + sizes.flow.look_ahead])
            condition = of_flow.mel[-CHUNK_CODES * sizes.flow.ratio :] if at == 0 else None
            made.append(run_chunks(flow, [Chunk(memory, of_flow, window, condition)])[0])
        mels.append(torch.cat(made)[sizes.history_codes * sizes.flow.ratio :])
    share = float((mels[0] - mels[1]).norm() / mels[1].norm())
    return {"compared_codes": sizes.compared_codes, "mel_with_bounded_history_rms": round(share, 5)}
