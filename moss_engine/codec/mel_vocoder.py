"""mel -> samples behind one seam: HiFT, or BigVGAN on the same mel."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from moss_engine.codec import vocoder_stream
from moss_engine.codec.bigvgan import mel_spec_of
from moss_engine.codec.cuda_vocoder import CudaVocoder
from moss_engine.codec.hift_stream import Hift, HiftState, Window
from moss_engine.codec.vocoder_stream import Generator, VocoderStream, WindowPlan, context_frames

CONTEXT_SHARE = 0.8
"""Context of a BigVGAN window as a share of its nominal support; the outermost frames act through products of filter
edges only."""


class Work(NamedTuple):
    """A reply's state and its next mel frames [mels, n], which are its last ones or not."""

    state: Any
    mel: Tensor
    is_last: bool


class MelVocoder(Protocol):
    """Speaks many replies. A state is a value: what is spoken from it leaves it as it was."""

    def open(self) -> Any:
        """The state of a reply before its first frame."""
        ...

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, Any]]:
        """-> for each, the samples [n] that are final now, and the state that follows."""
        ...


class HiftVocoder:
    """HiFT: 12 frames of the first 20 are final, and from then on as many as come in."""

    def __init__(self, hift: Hift) -> None:
        self._hift = hift

    def open(self) -> HiftState:
        return self._hift.open()

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, HiftState]]:
        return self._hift.speak([Window(*one) for one in work])


class BigVganVocoder:
    """BigVGAN: a frame is final once its context on the right is known."""

    def __init__(self, generator: Generator, plan: WindowPlan, num_mels: int, hop_size: int, device: torch.device,
                 ) -> None:
        self._open = lambda: VocoderStream(generator, num_mels, hop_size, plan, device)

    def open(self) -> VocoderStream:
        return self._open()

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, VocoderStream]]:
        streams = [copy.copy(one.state) for one in work]
        for stream, one in zip(streams, work, strict=True):
            stream.add(one.mel)
        done: dict[int, Tensor] = {}
        for is_last, run in ((False, vocoder_stream.speak_together), (True, vocoder_stream.flush_together)):
            members = [i for i, one in enumerate(work) if one.is_last == is_last]
            if members:
                done.update(zip(members, run([streams[i] for i in members]), strict=True))
        return [(done[i], stream) for i, stream in enumerate(streams)]


def bigvgan_plan(config: Mapping[str, Any], chunk_frames: int) -> WindowPlan:
    """Windows for mel that comes `chunk_frames` at a time: sound as soon as a frame is final, all windows of one
    length."""
    context = context_frames(config, CONTEXT_SHARE)
    first = chunk_frames - context % chunk_frames
    return WindowPlan((first, chunk_frames), context, context, lengths=(2 * context + chunk_frames,))


def bigvgan_vocoder(generator: nn.Module, config: Mapping[str, Any], chunk_frames: int, device: torch.device,
                    max_together: int) -> BigVganVocoder:
    """From a generator that is ready to run, and its config; on a GPU at most `max_together` replies at a time."""
    mel, plan = mel_spec_of(config), bigvgan_plan(config, chunk_frames)
    run: Generator = generator
    if device.type == "cuda":
        run = CudaVocoder(generator, mel.num_mels, plan.lengths, max_together, device)
    return BigVganVocoder(run, plan, mel.num_mels, mel.hop_size, device)
