"""mel -> samples behind one seam: HiFT, or a vocoder on the same mel."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from moss_engine.codec.base import MelSpec
from moss_engine.codec.tally import Tally
from moss_engine.codec.vocoder.hift.stream import Hift, HiftState, Window


class Work(NamedTuple):
    """A reply's state and its next mel frames [mels, n], which are its last ones or not."""

    state: Any
    mel: Tensor
    is_last: bool


class MelVocoder(Protocol):
    """Speaks many replies. A state is a value: what is spoken from it leaves it as it was. `tally`
    takes note of every run."""

    tally: Tally

    def open(self) -> Any:
        """The state of a reply before its first frame."""
        ...

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, Any]]:
        """-> for each, the samples [n] that are final now, and the state that follows."""
        ...


class HiftVocoder:
    """HiFT: 12 frames of the first 20 are final, and from then on as many as come in."""

    def __init__(self, hift: Hift) -> None:
        self._hift, self.tally = hift, hift.tally

    def open(self) -> HiftState:
        return self._hift.open()

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, HiftState]]:
        return self._hift.speak([Window(*one) for one in work])


class StreamVocoder(Protocol):
    """A generator run as a stream: `stream.WindowVocoder` or `cached.CachedVocoder`.

    A stream takes mel by `add` and says by `missing_frames` how much more it waits for. All that it
    holds is replaced, never written to, so that a shallow copy is the stream as it was. `tally`
    takes note of every run.
    """

    mel: MelSpec
    tally: Tally

    def open(self) -> Any:
        """A reply before its first frame."""
        ...

    def speak_together(self, streams: Sequence[Any]) -> list[Tensor]:
        """-> the samples [n] of each stream that became final"""
        ...

    def flush_together(self, streams: Sequence[Any]) -> list[Tensor]:
        """Replies that are over -> the remaining samples [n] of each"""
        ...


class StreamedMelVocoder:
    """A `StreamVocoder` whose streams are values."""

    def __init__(self, vocoder: StreamVocoder) -> None:
        self._vocoder, self.tally = vocoder, vocoder.tally

    def open(self) -> Any:
        return self._vocoder.open()

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, Any]]:
        streams = [copy.copy(one.state) for one in work]
        for stream, one in zip(streams, work, strict=True):
            stream.add(one.mel)
        done: dict[int, Tensor] = {}
        for is_last, run in (
            (False, self._vocoder.speak_together),
            (True, self._vocoder.flush_together),
        ):
            members = [i for i, one in enumerate(work) if one.is_last == is_last]
            if members:
                done.update(zip(members, run([streams[i] for i in members]), strict=True))
        return [(done[i], stream) for i, stream in enumerate(streams)]
