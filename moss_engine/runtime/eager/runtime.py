"""The torch runtime: paged KV and mixed batches of prefill and decode in plain PyTorch, on a CPU or
a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from moss_engine.api.info import RuntimeInfo
from moss_engine.models.checkpoint import SCALE_SUFFIX, expected_tensors, load_tensors, quantise
from moss_engine.models.config import ModelConfig
from moss_engine.models.load import refuse_tied
from moss_engine.runtime.base import Limits, Logits, ScheduledBatch, ScheduledSequence, check_batch
from moss_engine.runtime.eager.gathered import GatheredAttention, KVPool, make_pool
from moss_engine.runtime.eager.linear import FloatLinear, Int8Linear, Linear, fastest_prefill_dtype
from moss_engine.runtime.eager.packed import PackedNetwork
from moss_engine.runtime.eager.recorded import RecordedDecode
from moss_engine.runtime.logits_runtime import LogitsRuntime

INT8 = "int8"
FEW_ROWS = 8
"""So many rows take less time as decode rows than as a prompt, and their values are those of one
row a step."""


class TorchRuntime(LogitsRuntime):
    """`Runtime` in plain PyTorch. `threads` is the number of CPU threads of the thread that
    runs it."""

    few_rows = FEW_ROWS

    def __init__(
        self, network: PackedNetwork, pool: KVPool, limits: Limits, info: RuntimeInfo, threads: int
    ):
        self.limits = limits
        self.info = info
        self._network: PackedNetwork | None = network
        self._pool: KVPool | None = pool
        self._recorded = RecordedDecode(network, pool) if pool.device.type == "cpu" else None
        self._threads = threads
        self._thread_id: int | None = None

    @torch.inference_mode()
    def forward(self, batch: ScheduledBatch) -> Logits:
        assert self._network is not None and self._pool is not None, "the runtime was closed"
        check_batch(batch, self.limits)
        self._set_threads()
        runs = [run for sequence in batch.sequences for run in _runs(sequence)]
        order = sorted(range(len(runs)), key=lambda i: _packing_key(runs[i]))
        sequences = [runs[i] for i in order]
        num_decode = sum(map(_decodes, sequences))
        select, ends = [], 0
        for sequence in sequences:
            ends += len(sequence.rows)
            if sequence.sample:
                select.append(ends - 1)
        device = self._pool.device
        table_index = self._network.table_index
        indices = torch.tensor([table_index(row) for s in sequences for row in s.rows]).to(device)
        positions = _positions(sequences, device)
        attention = GatheredAttention.of_sequences(self._pool, sequences, num_decode)
        decode_rows = attention.decode_rows if num_decode == len(sequences) else None
        if self._recorded is not None and decode_rows is not None:
            text, audio = self._recorded(
                indices, positions, decode_rows, text_logits=batch.text_logits
            )
        else:
            text, audio = self._network.forward(
                indices,
                positions,
                attention,
                num_decode,
                torch.tensor(select, device=device, dtype=torch.long)
                if len(select) < len(indices)
                else None,
                text_logits=batch.text_logits,
            )
        sampled = [i for i in order if runs[i].sample]
        wanted = [sampled.index(i) for i in _last_runs(batch) if runs[i].sample]
        if wanted != list(range(len(sampled))):
            back = torch.tensor(wanted, device=device)
            text, audio = text.index_select(0, back), audio.index_select(0, back)
        return Logits(text, audio)

    def close(self) -> None:
        self._network = self._pool = self._recorded = None
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _set_threads(self) -> None:
        # torch keeps the number of threads per calling thread; the codec's thread has its own
        if self._thread_id != threading.get_ident():
            self._thread_id = threading.get_ident()
            torch.set_num_threads(self._threads)


def _runs(sequence: ScheduledSequence) -> list[ScheduledSequence]:
    """A sequence as it is run: few rows of a reply as decode rows, each of a sequence that ends
    with it."""
    if not (sequence.of_reply and sequence.sample) or len(sequence.rows) > FEW_ROWS:
        return [sequence]
    return [
        sequence._replace(rows=(row,), num_cached=position)
        for position, row in enumerate(sequence.rows, sequence.num_cached)
    ]


def _last_runs(batch: ScheduledBatch) -> list[int]:
    """Which of all sequences' runs is the last one of each."""
    return [end - 1 for end in accumulate(len(_runs(s)) for s in batch.sequences)]


def _positions(sequences: list[ScheduledSequence], device: torch.device) -> Tensor:
    return torch.tensor(
        [p for s in sequences for p in range(s.num_cached, s.num_cached + len(s.rows))],
        device=device,
    )


def _packing_key(sequence: ScheduledSequence) -> tuple[bool, int]:
    """Decoding sequences first, by length."""
    return not _decodes(sequence), sequence.num_cached


def _decodes(sequence: ScheduledSequence) -> bool:
    return sequence.sample and len(sequence.rows) == 1


class _CheckpointWeights:
    """`WeightSource` out of loaded tensors, which it gives up one by one as they are joined."""

    def __init__(self, tensors: dict[str, Tensor], linear_dtype: torch.dtype | str, threads: int):
        self._tensors = tensors
        self._int8 = linear_dtype == INT8
        self._prefill_dtype = fastest_prefill_dtype(threads) if self._int8 else None

    def vector(self, name: str) -> Tensor:
        return self._tensors.pop(name).float()

    def linear(self, names: list[str], order: Tensor | None = None) -> Linear:
        if not self._int8:
            return FloatLinear(self._join([self._tensors.pop(name) for name in names], order))
        values, scales = zip(*[self._pop_int8(name) for name in names], strict=True)
        assert self._prefill_dtype is not None
        return Int8Linear(
            self._join(list(values), order), self._join(list(scales), order), self._prefill_dtype
        )

    def embedding(self, names: list[str]) -> Callable[[Tensor], Tensor]:
        if not self._int8:
            table = self._join([self._tensors.pop(name) for name in names], None)
            return lambda ids: F.embedding(ids, table).float()
        values, scales = zip(*[self._pop_int8(name) for name in names], strict=True)
        table, scale = torch.cat(values), torch.cat(scales).unsqueeze(1)
        return lambda ids: F.embedding(ids, table) * F.embedding(ids, scale)

    def _pop_int8(self, name: str) -> tuple[Tensor, Tensor]:
        tensor = self._tensors.pop(name)
        if tensor.dtype is torch.int8:
            return tensor, self._tensors.pop(name + SCALE_SUFFIX)
        values, scale = quantise(tensor)
        return values, scale.float()

    @staticmethod
    def _join(tensors: list[Tensor], order: Tensor | None) -> Tensor:
        joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return joined if order is None else joined[order.to(joined.device)]


def load_torch_runtime(
    folder: Path, limits: Limits, *, device: torch.device, dtype: torch.dtype | str, threads: int
) -> TorchRuntime:
    """Load a checkpoint folder into a runtime.

    dtype: float32, bfloat16 or "int8" (CPU only). Norms, rotary embedding and the residual stream
    are float32 in all of them; so is KV on a CPU, while on a GPU it has the weights' dtype. Raises
    CheckpointError.
    """
    config = ModelConfig.from_file(folder / "config.json")
    int8 = dtype == INT8
    weight_dtype = torch.float32 if int8 else dtype
    assert isinstance(weight_dtype, torch.dtype)
    tensors = load_tensors(
        folder, expected_tensors(config), dtype=weight_dtype, device=device, keep_int8=int8
    )
    refuse_tied(folder, tensors)
    network = PackedNetwork(
        config, _CheckpointWeights(tensors, dtype, threads), device, limits.max_seq_len
    )
    assert not tensors, "a tensor was not used"
    pool = make_pool(
        config,
        limits.num_blocks,
        limits.block_size,
        torch.float32 if device.type == "cpu" else weight_dtype,
        device,
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    info = RuntimeInfo(
        "torch", torch.__version__, name, str(dtype).removeprefix("torch."), folder.resolve().name
    )
    return TorchRuntime(network, pool, limits, info, threads)
