"""What a reply's flow remembers between chunks: of every layer, what later frames look at.

A voice's prompt is run once; its memory is then only read. A reply adds a ring of its last
`num_chunks * chunk_codes` codes. The estimator's attention compares normed rows with normed rows
(`weights.Transformer`), so that one row of `channels` values stands for keys and values of all
heads. It has no positions: the order within a ring does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moss_engine.codec.moss.flow.config import FlowConfig
from moss_engine.codec.moss.flow.weights import NUM_STEPS, FlowWeights

BRANCHES = 2
"""Every estimate is made with and without conditions."""


@dataclass(frozen=True)
class LayerRing:
    """Keys and values of one conformer, all blocks: [blocks, 2, slots, width].

    Beside them the waves of every slot's position, [slots, width].
    """

    rows: Tensor
    waves: Tensor

    def seen(self, block: int, parts: Sequence[slice]) -> Tensor:
        """Keys and values of one block in these slots: [2, n, width]."""
        return torch.cat([self.rows[block, :, part] for part in parts], 1)

    def seen_waves(self, parts: Sequence[slice]) -> Tensor:
        """[n, width]"""
        return torch.cat([self.waves[part] for part in parts])


class FlowMemory:
    """One stream of codes. `position` counts the codes that were run, prompt included.

    `notes` [steps, layers, 2, slots, channels] are the normed rows that the estimator's attention
    saw, `tails` [2, steps, convolutions, 2, 2, inputs] the last two rows before each of its
    convolutions: of the two copies, one is read while the other is written. `last_codes` [2, width]
    are the last two codes before the upsampling, `next_codes` those after the chunk that is being
    run. `prompt` is the memory of the voice that this one continues.
    """

    def __init__(
        self,
        weights: FlowWeights,
        chunk_codes: int,
        num_chunks: int,
        prompt: FlowMemory | None = None,
    ) -> None:
        config, device = weights.config, weights.noise.device
        self.config, self.chunk_codes, self.num_chunks = config, chunk_codes, num_chunks
        self.prompt = prompt
        frames, codes = num_chunks * chunk_codes * config.ratio, num_chunks * chunk_codes
        layers = config.num_stages * config.transformers

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device, dtype=weights.dtype)

        self.notes = zeros(NUM_STEPS, layers, BRANCHES, frames, config.channels)
        self.low = LayerRing(
            zeros(config.num_blocks, 2, codes, config.width), zeros(codes, config.width)
        )
        self.high = LayerRing(
            zeros(config.num_up_blocks, 2, frames, config.width), zeros(frames, config.width)
        )
        if prompt is None:
            inputs = max(config.input_channels, 2 * config.channels)
            self.tails = zeros(2, NUM_STEPS, num_convolutions(config), BRANCHES, 2, inputs)
            self.last_codes = torch.zeros(2, config.width, device=device, dtype=weights.noise.dtype)
            self.position, self.parity = 0, 0
        else:
            self.tails, self.last_codes = prompt.tails.clone(), prompt.last_codes
            self.position, self.parity = prompt.position, prompt.parity
        self.next_codes = self.last_codes
        self.frames = 0

    @property
    def slot(self) -> int:
        """The first frame of the ring that the next chunk is written to."""
        return self.frames % self.capacity if self.capacity else 0

    @property
    def capacity(self) -> int:
        """Frames that the ring holds."""
        return self.notes.shape[3]

    def parts(self, frames: int) -> list[slice]:
        """Where the ring's frames stand that a chunk of `frames` sees, its own included."""
        end = self.slot + self.chunk_codes * self.config.ratio
        own = [slice(0, self.slot + frames)]
        return (
            [*own, slice(end, None)]
            if self.frames >= self.capacity and end < self.capacity
            else own
        )

    def advance(self, codes: int) -> None:
        """A chunk has been run. Until then it can be run again: what it read is still there, what
        it wrote is not read."""
        self.last_codes = self.next_codes
        self.position += codes
        self.frames += codes * self.config.ratio
        self.parity = 1 - self.parity

    @property
    def num_bytes(self) -> int:
        tensors = (self.notes, self.low.rows, self.high.rows, self.tails)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def num_convolutions(config: FlowConfig) -> int:
    """Convolutions of the estimator that look back: two a stage, first, last and final."""
    return 2 * config.num_stages + 3
