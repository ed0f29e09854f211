"""Streaming a vocoder that keeps what its layers need of the past: every frame is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.tally import Tally, cost_of
from moss_engine.codec.vocoder.pasts import Pasts
from moss_engine.models.recording import Recording

SILENT_FRAMES = 64
"""Silence before a stream's first frame: longer than anything that a layer remembers."""
RUN_FRAMES = 40
"""Frames of one run: as many as keep the layers' tensors in a processor's cache."""
KNEE = 0.8
"""Samples beyond it are bent, so that none reaches 1."""


class Network(Protocol):
    """A generator that can be streamed; `delay` samples pass before a mel frame's first sample."""

    delay: int

    def parameters(self) -> Iterator[Tensor]: ...

    def advance(self, mel: Tensor, pasts: Pasts) -> Tensor: ...


class CachedVocoder:
    """Speaks replies with one network, `gain` times as loud as it was trained.

    Sound comes in chunks of `chunk_frames` frames, the last number again and again.
    """

    def __init__(
        self,
        network: Network,
        mel: MelSpec,
        gain: float,
        chunk_frames: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.network, self.mel = network, mel
        self._gain, self._chunk_frames = gain, chunk_frames
        silence = torch.full((1, mel.num_mels, SILENT_FRAMES), LOG_FLOOR, device=device)
        with torch.inference_mode():
            pasts = Pasts(None)
            self.network.advance(silence, pasts)
        self._silent = tuple(pasts.kept)
        self._cost = cost_of(
            lambda frames: network.advance(silence[..., :frames], Pasts(None)),
            1,
            2,
            *network.parameters(),
        )
        self.tally = Tally(self._cost.weight_bytes)
        self._advance_one: Callable[..., tuple[Tensor, ...]] = self._advance
        if device.type == "cpu":
            self._advance_one = Recording(self._advance, (silence, *self._silent))
        self._device = device

    def open(self) -> CachedStream:
        empty = torch.empty(self.mel.num_mels, 0, device=self._device)
        delay, hop = self.network.delay, self.mel.hop_size
        return CachedStream(self._silent, empty, self._chunk_frames, delay, hop)

    @torch.inference_mode()
    def speak_together(self, streams: Sequence[CachedStream]) -> list[Tensor]:
        """-> the samples [n] of each that became final, of those whose chunk is complete"""
        ready = [stream for stream in streams if stream.missing_frames <= 0]
        made = dict(zip(map(id, ready), self._run(ready), strict=True))
        none = torch.empty(0, device=self._device)
        for stream in ready:
            stream.num_chunks += 1
        return [made.get(id(stream), none) for stream in streams]

    @torch.inference_mode()
    def flush_together(self, streams: Sequence[CachedStream]) -> list[Tensor]:
        """Replies that are over -> the remaining samples [n] of each; silence follows the last
        frame."""
        owed = [stream.owed_samples for stream in streams]
        tail = -(-self.network.delay // self.mel.hop_size)
        for stream in streams:
            stream.mel = pad(stream.mel, (0, tail), value=LOG_FLOOR)
        waves = self._run(streams)
        return [wave[:count] for wave, count in zip(waves, owed, strict=True)]

    def _run(self, streams: Sequence[CachedStream]) -> list[Tensor]:
        """All frames that wait, those of equally many together"""
        done: list[list[Tensor]] = [[] for _ in streams]
        while waiting := [i for i, stream in enumerate(streams) if stream.pending_frames]:
            count = min(RUN_FRAMES, streams[waiting[0]].pending_frames)
            members = [i for i in waiting if min(RUN_FRAMES, streams[i].pending_frames) == count]
            mel = torch.stack([streams[i].mel[:, :count] for i in members])
            pasts = (torch.cat(kept) for kept in zip(*(streams[i].kept for i in members)))
            self.tally.add(self._cost, count, len(members))
            waves, *news = (self._advance_one if len(members) == 1 else self._advance)(mel, *pasts)
            for row, (i, wave) in enumerate(zip(members, waves, strict=True)):
                stream = streams[i]
                stream.kept = tuple(kept[row : row + 1] for kept in news)
                stream.mel = stream.mel[:, count:]
                done[i].append(wave[stream.skipped :])
                stream.skipped = max(0, stream.skipped - len(wave))
        return [torch.cat(pieces) if pieces else self._none() for pieces in done]

    def _advance(self, mel: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        """-> samples [batch, n], and what the layers keep"""
        pasts = Pasts(kept)
        waves = limited(self.network.advance(mel, pasts) * self._gain)
        return waves, *pasts.kept

    def _none(self) -> Tensor:
        return torch.empty(0, device=self._device)


class CachedStream:
    """One reply: `kept` is what the layers know of it, `mel` [num_mels, frames] what they do not
    know yet.

    Both are replaced, never written to, so that a shallow copy is the stream as it was.
    """

    def __init__(
        self,
        kept: tuple[Tensor, ...],
        mel: Tensor,
        chunk_frames: tuple[int, ...],
        delay: int,
        hop_size: int,
    ) -> None:
        self.kept, self.mel, self.num_chunks = kept, mel, 0
        self.skipped = delay
        self._chunk_frames, self._delay, self._hop = chunk_frames, delay, hop_size

    def add(self, mel: Tensor) -> None:
        """Take float32 [num_mels, frames] without running anything yet."""
        self.mel = torch.cat([self.mel, mel], 1)

    @property
    def pending_frames(self) -> int:
        return self.mel.shape[1]

    @property
    def missing_frames(self) -> int:
        """Frames that must still be added before more samples become final."""
        chunk = self._chunk_frames[min(self.num_chunks, len(self._chunk_frames) - 1)]
        return chunk + -(-self.skipped // self._hop) - self.pending_frames

    @property
    def owed_samples(self) -> int:
        """Samples of the frames so far that have not been given out."""
        return self.pending_frames * self._hop + self._delay - self.skipped


def limited(wave: Tensor) -> Tensor:
    """Samples up to KNEE as they are, louder ones bent towards 1, each by itself."""
    over = (wave.abs() - KNEE).clamp_min(0)
    bent = KNEE + (1 - KNEE) * torch.tanh(over / (1 - KNEE))
    return torch.where(over > 0, bent * wave.sign(), wave)
