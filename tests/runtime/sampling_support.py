"""Replies in the making, as the engine gives them to a sampler."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from moss_engine.api.request import Sampling
from moss_engine.api.tokens import Modality, Row, SpecialIds
from moss_engine.runtime.base import BatchSampling, Logits, SequenceSampling
from moss_engine.runtime.sampler import Sampler


class Replies:
    """Replies by name, with their rows so far; drawn rows are added to them."""

    def __init__(self, sampler: Sampler, special_ids: SpecialIds):
        self._sampler = sampler
        self._special_ids = special_ids
        self._rows: dict[Hashable, list[Row]] = {}
        self._prompts: dict[Hashable, int] = {}
        self._samplings: dict[Hashable, Sampling] = {}
        self._finished: list[str] = []

    def add(self, name: Hashable, prompt: Iterable[Row], sampling: Sampling) -> None:
        assert name not in self._rows
        self._rows[name], self._samplings[name] = list(prompt), sampling
        self._prompts[name] = len(self._rows[name])

    def remove(self, name: Hashable) -> None:
        del self._rows[name]
        self._finished.append(str(name))

    def sampling(
        self,
        names: Sequence[Hashable],
        modalities: Sequence[Modality],
        allowed_text: Mapping[Hashable, tuple[int, ...]] | None = None,
    ) -> BatchSampling:
        """What the sampler is given for a step, with the names of those that were removed."""
        finished, self._finished = tuple(self._finished), []
        return BatchSampling(
            tuple(
                SequenceSampling(
                    str(name),
                    self._rows[name],
                    len(self._rows[name]) - self._prompts[name],
                    self._samplings[name],
                    modality,
                    (allowed_text or {}).get(name),
                )
                for name, modality in zip(names, modalities, strict=True)
            ),
            self._special_ids,
            finished,
        )

    def sample(
        self,
        logits: Logits,
        names: Sequence[Hashable],
        modalities: Sequence[Modality],
        allowed_text: Mapping[Hashable, tuple[int, ...]] | None = None,
    ) -> list[Row | None]:
        rows = self._sampler.sample(logits, self.sampling(names, modalities, allowed_text))
        self.append(names, rows)
        return rows

    def append(self, names: Sequence[Hashable], rows: Sequence[Row | None]) -> None:
        for name, row in zip(names, rows, strict=True):
            if row is not None:
                self._rows[name].append(row)
