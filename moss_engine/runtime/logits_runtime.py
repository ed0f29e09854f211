"""`LogitsRuntime`: a step as forward pass and sampling, for runtimes that compute logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Protocol

from moss_engine.api.info import RuntimeInfo
from moss_engine.api.tokens import Row
from moss_engine.runtime.base import BatchSampling, Limits, Logits, ScheduledBatch
from moss_engine.runtime.sampler import TorchSampler


class Sampler(Protocol):
    """Logits of a step -> its rows, as of `Runtime.step`."""

    def sample(self, logits: Logits, sampling: BatchSampling) -> list[Row | None]: ...


class LogitsRuntime(ABC):
    """`Runtime` out of `forward`; its `sampler` may be replaced."""

    limits: Limits
    info: RuntimeInfo
    few_rows = 1

    @abstractmethod
    def forward(self, batch: ScheduledBatch) -> Logits:
        """Run the batch's rows; a batch without a sampled sequence gives empty logits."""

    @abstractmethod
    def close(self) -> None:
        """See `Runtime`."""

    @cached_property
    def sampler(self) -> Sampler:
        return TorchSampler()

    def step(self, batch: ScheduledBatch, sampling: BatchSampling) -> list[Row | None]:
        """See `Runtime`."""
        return self.sampler.sample(self.forward(batch), sampling)
