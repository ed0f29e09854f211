"""The nano codec's decoder as a stream: every block keeps the inputs its kernel needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from moss_engine.codec.nano.fsq import LOOK_AHEAD_CODES, Block, Decoder
from moss_engine.codec.tally import Cost, cost_of
from moss_engine.models.recording import Recording

RECORDED_CODES = 2
"""From so many new codes on, every block has something to do in every run."""


class StreamedDecoder:
    """A decoder that runs as streams; `start` is what its blocks know before the first code."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self.decoder = decoder
        self._blocks = cast("list[Block]", [*decoder.code_blocks, *decoder.frame_blocks])
        self.start = tuple(_zeros(block, block.look_back, device) for block in self._blocks)
        self._advance: Callable[..., tuple[Tensor, ...]] = self._advance_blocks
        if device.type == "cpu":
            x = _zeros(self._blocks[0], RECORDED_CODES, device)
            self._advance = Recording(self._advance_blocks, (x, *self.start))

    def cost(self) -> Cost:
        """What a run costs, by the codes that it makes final."""
        decoder, (like, *_) = self.decoder, self.start
        size = len(decoder.config.levels)
        return cost_of(
            lambda codes: decoder(like.new_zeros(1, codes, size)), 1, 2, *decoder.parameters()
        )

    def open(self) -> DecoderStream:
        return DecoderStream(self)

    def embed(self, points: Tensor) -> Tensor:
        """Grid points [streams, codes, len(levels)] -> [streams, dim, codes]"""
        return self.decoder.embed(points).transpose(1, 2)

    def ending(self) -> Tensor:
        """What follows the last code: [1, dim, LOOK_AHEAD_CODES]"""
        return _zeros(self._blocks[0], LOOK_AHEAD_CODES, self.start[0].device)

    def run(self, streams: Sequence[DecoderStream], x: Tensor) -> Tensor:
        """[streams, dim, codes] -> log-mel [streams, num_mels, frames]; updates every stream."""
        pasts = [torch.cat(pasts) for pasts in zip(*(stream.past for stream in streams))]
        advance = self._advance if x.shape[-1] >= RECORDED_CODES else self._advance_blocks
        mel, *pasts = advance(x, *pasts)
        for index, stream in enumerate(streams):
            stream.past = tuple(past[index : index + 1] for past in pasts)
        return mel

    def _advance_blocks(self, x: Tensor, *pasts: Tensor) -> tuple[Tensor, ...]:
        """-> log-mel, and the inputs that every block needs again"""
        decoder, kept = self.decoder, list(pasts)
        num_code_blocks = len(decoder.code_blocks)
        x = _through(self._blocks[:num_code_blocks], kept, 0, x)
        if not x.shape[-1]:
            return x.new_zeros(x.shape[0], decoder.config.mel.num_mels, 0), *kept
        frame_blocks = self._blocks[num_code_blocks:]
        return decoder.finish(
            _through(frame_blocks, kept, num_code_blocks, decoder.to_frames(x))
        ), *kept


class DecoderStream:
    """Codes in, mel frames out, one code late: the frames of `Decoder` over all codes at once.

    `past` holds, for each block, the inputs [1, dim, steps] that it will need again. It is
    replaced, never written to.
    """

    def __init__(self, decoder: StreamedDecoder) -> None:
        self.decoder = decoder
        self.past = decoder.start

    def push(self, points: Tensor) -> Tensor:
        """Grid points [codes, len(levels)] -> log-mel [num_mels, frames] that became final"""
        return decode_together([self], points[None])[0]

    def flush(self) -> Tensor:
        """-> the last code's log-mel [num_mels, frames]; nothing follows it."""
        return flush_together([self])[0]

    @property
    def phase(self) -> tuple[int, ...]:
        """Streams of one phase can be decoded together when they get equally many codes."""
        return tuple(past.shape[-1] for past in self.past)


@torch.inference_mode()
def decode_together(streams: Sequence[DecoderStream], points: Tensor) -> Tensor:
    """Streams of one phase: grid points [streams, codes, len(levels)] -> log-mel."""
    decoder = streams[0].decoder
    return decoder.run(streams, decoder.embed(points))


@torch.inference_mode()
def flush_together(streams: Sequence[DecoderStream]) -> Tensor:
    """Ended streams of one phase -> the last code's log-mel [streams, num_mels, frames]."""
    decoder = streams[0].decoder
    return decoder.run(streams, decoder.ending().expand(len(streams), -1, -1))


def _through(blocks: Sequence[Block], pasts: list[Tensor], first: int, x: Tensor) -> Tensor:
    """Run blocks, whose inputs so far begin at `pasts[first]` and are renewed there."""
    for index, block in enumerate(blocks, first):
        x = torch.cat([pasts[index], x], dim=2)
        context = block.look_back + block.look_ahead
        pasts[index] = x[..., -context:]
        if x.shape[-1] <= context:
            return x[..., :0]
        x = block.forward_padded(x)
    return x


def _zeros(block: Block, steps: int, device: torch.device) -> Tensor:
    return torch.zeros(1, block.depthwise.in_channels, steps, device=device)
