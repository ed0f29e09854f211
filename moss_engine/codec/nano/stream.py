"""The nano codec's decoder as a stream: every block keeps the inputs its kernel needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from moss_engine.codec.nano.fsq import LOOK_AHEAD_CODES, Block, Decoder


class DecoderStream:
    """Codes in, mel frames out, one code late: the frames of `Decoder` over all codes at once.

    `past` holds, for each block, the inputs [1, dim, steps] that it will need again. It is
    replaced, never written to.
    """

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self.decoder = decoder
        self.past = tuple(_zeros(block, block.look_back, device) for block in _blocks(decoder))

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
    return _run(streams, streams[0].decoder.embed(points).transpose(1, 2))


@torch.inference_mode()
def flush_together(streams: Sequence[DecoderStream]) -> Tensor:
    """Ended streams of one phase -> the last code's log-mel [streams, num_mels, frames]."""
    first, like = _blocks(streams[0].decoder)[0], streams[0].past[0]
    return _run(streams, _zeros(first, LOOK_AHEAD_CODES, like.device).expand(len(streams), -1, -1))


def _run(streams: Sequence[DecoderStream], x: Tensor) -> Tensor:
    """[streams, dim, codes] -> log-mel [streams, num_mels, frames]; updates every stream."""
    decoder = streams[0].decoder
    pasts = [torch.cat(pasts) for pasts in zip(*(stream.past for stream in streams), strict=True)]
    x = _through(list(decoder.code_blocks), pasts, 0, x)
    if x.shape[-1]:
        x = _through(
            list(decoder.frame_blocks), pasts, len(decoder.code_blocks), decoder.to_frames(x)
        )
        mel = decoder.finish(x)
    else:
        mel = x.new_zeros(len(streams), decoder.config.mel.num_mels, 0)
    for index, stream in enumerate(streams):
        stream.past = tuple(past[index : index + 1] for past in pasts)
    return mel


def _through(blocks: Sequence[object], pasts: list[Tensor], first: int, x: Tensor) -> Tensor:
    """Run blocks, whose inputs so far begin at `pasts[first]` and are renewed there."""
    for index, block in enumerate(cast("Sequence[Block]", blocks), first):
        x = torch.cat([pasts[index], x], dim=2)
        context = block.look_back + block.look_ahead
        pasts[index] = x[..., -context:]
        if x.shape[-1] <= context:
            return x[..., :0]
        x = block.forward_padded(x)
    return x


def _blocks(decoder: Decoder) -> list[Block]:
    return cast("list[Block]", [*decoder.code_blocks, *decoder.frame_blocks])


def _zeros(block: Block, steps: int, device: torch.device) -> Tensor:
    return torch.zeros(1, block.depthwise.in_channels, steps, device=device)
