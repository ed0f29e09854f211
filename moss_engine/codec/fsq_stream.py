"""The nano codec's decoder as a stream: every block keeps the inputs that its kernel still needs."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from moss_engine.codec.fsq import LOOK_AHEAD_CODES, Block, Decoder


class DecoderStream:
    """Codes in, mel frames out, one code late; the joined frames are those of `Decoder` over all codes at once."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self._decoder = decoder
        self._code_blocks = cast("list[Block]", list(decoder.code_blocks))
        self._frame_blocks = cast("list[Block]", list(decoder.frame_blocks))
        blocks = [*self._code_blocks, *self._frame_blocks]
        self._past = {block: _zeros(block, block.look_back, device) for block in blocks}
        self._device = device

    @torch.inference_mode()
    def push(self, points: Tensor) -> Tensor:
        """Grid points [codes, len(levels)] -> log-mel [num_mels, frames] that became final"""
        return self._run(self._decoder.embed(points[None]).transpose(1, 2))

    @torch.inference_mode()
    def flush(self) -> Tensor:
        """-> the last code's log-mel [num_mels, frames]; nothing follows it."""
        return self._run(_zeros(self._code_blocks[0], LOOK_AHEAD_CODES, self._device))

    def _run(self, x: Tensor) -> Tensor:
        decoder = self._decoder
        x = self._through(self._code_blocks, x)
        if not x.shape[-1]:
            return x.new_zeros(decoder.config.mel.num_mels, 0)
        return decoder.finish(self._through(self._frame_blocks, decoder.to_frames(x)))[0]

    def _through(self, blocks: list[Block], x: Tensor) -> Tensor:
        for block in blocks:
            x = torch.cat([self._past[block], x], dim=2)
            context = block.look_back + block.look_ahead
            self._past[block] = x[..., -context:]
            if x.shape[-1] <= context:
                return x[..., :0]
            x = block.forward_padded(x)
        return x


def _zeros(block: Block, steps: int, device: torch.device) -> Tensor:
    return torch.zeros(1, block.depthwise.in_channels, steps, device=device)
