"""What a service is and how it is doing: values that may be sent to another process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moss_engine.api.modes import Mode
from moss_engine.api.request import Sampling
from moss_engine.api.tokens import SpecialIds


@dataclass(frozen=True)
class RuntimeInfo:
    """What the status panel names: runtime, version of its library, device, number format, and the
    checkpoint whose `weights` run. `engine_digest` is the plan's SHA-256, None without an engine
    file."""

    name: str
    version: str
    device: str
    dtype: str
    weights: str
    engine_digest: str | None = None


@dataclass(frozen=True)
class ServiceInfo:
    """What a client has to know before it asks; constant while the service runs.

    `modes`, `voices` and `sampling` are what may be asked for, the first voice and the mode marked
    as default being the defaults. `samples_per_code` samples at `sample_rate_hz` are one code; the
    first `lead_samples` of a reply are silence that nobody is sent.
    `pieces[i]` is what text id i stands for. The limits are those of one message (`max_text_chars`,
    `max_speech_s`), of replies at a time (`max_sessions`, `max_waiting`), of the KV cache
    (`kv_rows`), of the sound that is made ahead of what a listener has acknowledged
    (`run_ahead_s`), and of the time for which a listener may take nothing (`lease_s`).
    `clones_voices`: `add_voice` is served. `speeds` are the slowest and the fastest speaking rate,
    None where there is nothing to choose. `recogniser` names who turns speech into text here, and
    `no_recogniser` says why nobody does; `brain` names who thinks of the answers, where that is not
    the checkpoint.
    """

    runtime: RuntimeInfo
    modes: tuple[Mode, ...]
    voices: tuple[str, ...]
    sampling: Sampling
    sample_rate_hz: int
    samples_per_code: int
    ids: SpecialIds
    pieces: tuple[str, ...]
    max_text_chars: int
    max_speech_s: float
    max_sessions: int
    max_waiting: int
    kv_rows: int
    run_ahead_s: float
    clones_voices: bool = False
    speeds: tuple[float, float] | None = None
    recogniser: str | None = None
    no_recogniser: str | None = None
    brain: str | None = None
    lease_s: float = 10.0
    lead_samples: int = 0

    def num_codes(self, num_samples: int) -> int:
        """How many codes of a reply the first `num_samples` of its sound come from; one that has
        begun to sound counts as a whole."""
        return -(-(num_samples + self.lead_samples) // self.samples_per_code) if num_samples else 0

    @property
    def default_mode(self) -> Mode:
        return next((mode for mode in self.modes if mode.default), self.modes[0])

    @property
    def reading_mode(self) -> Mode | None:
        """The mode that says a text as it stands."""
        return next((mode for mode in self.modes if mode.reads), None)

    @property
    def hears(self) -> bool:
        """Whether a mode takes speech."""
        return any(mode.input == "speech" for mode in self.modes)

    @property
    def encodes(self) -> bool:
        """Whether the checkpoint itself understands speech, so that `encode` is served."""
        return any(mode.input == "speech" and not mode.through_text for mode in self.modes)

    @property
    def scripted(self) -> bool:
        """Whether answers are canned ones, or come from the clock and the calculator."""
        return self.brain is None and any(mode.through_text for mode in self.modes)

    def pieces_of(self, ids: Iterable[int]) -> dict[str, str]:
        """What text ids stand for; those of speech are negative, and stand for nothing."""
        return {str(i): self.pieces[i] for i in set(ids) if i >= 0}

    def mode(self, name: str) -> Mode:
        """One of `modes`, by a name that was checked."""
        return next(mode for mode in self.modes if mode.name == name)


@dataclass(frozen=True)
class EngineStats:
    """Counts of this moment. Used, cached and free blocks make the pool; reserved ones are still
    cached or free."""

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    blocks_reserved: int
    leaked_blocks: int


@dataclass(frozen=True)
class ReplicaStats:
    """One replica of a cluster: its name and `ServiceStats.state`, the replies that run and wait,
    how many can run, and the KV blocks in use."""

    name: str
    state: str
    running: int
    waiting: int
    places: int
    blocks_used: int


@dataclass(frozen=True)
class ClusterStats:
    """The replicas that this page knows; how many of its replies were accepted, by the replica that
    knows their conversation, and how often one went on at another replica."""

    replicas: tuple[ReplicaStats, ...]
    num_placed: int
    num_preferred: int
    num_resumes: int


@dataclass(frozen=True)
class ServiceStats:
    """`state` is "ready" where requests are accepted and every thread was alive within the last
    seconds (`progress_age_s`), else "draining", "faulted" or "stalled". `cluster` is None where
    there are no replicas.
    """

    engine: EngineStats
    state: str
    progress_age_s: float
    cluster: ClusterStats | None = None

    @property
    def ready(self) -> bool:
        return self.state == "ready"
