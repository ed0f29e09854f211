"""What a chunk of the flow has to do."""

from __future__ import annotations

from moss_engine.codec.moss.flow.decoder import Chunk, run_chunks
from moss_engine.codec.moss.flow.weights import NUM_STEPS, FlowWeights
from moss_engine.codec.tally import Cost, operations_of, tensors_of


def chunk_cost(weights: FlowWeights, first: Chunk) -> Cost:
    """Of one chunk: `fixed`, and `per_step` for each frame of its reply that it looks back at.

    `first` is the first chunk of a reply; its memory moves on. The estimator's weights are read in
    every step of the solver.
    """
    alone = operations_of(lambda: run_chunks(weights, [first]))
    seen = first.memory.seen_frames
    behind = operations_of(lambda: run_chunks(weights, [first]))
    weight_bytes = sum(tensor.nbytes for tensor in tensors_of(weights.encoder))
    weight_bytes += NUM_STEPS * sum(tensor.nbytes for tensor in tensors_of(weights.estimator))
    return Cost((behind - alone) / max(1, seen), alone, weight_bytes)
