"""Figures for Prometheus, folded from the same events as those of the page; a cluster's out of the
page's last look at its replicas."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

import moss_engine
from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Event, Failed, Finished
from moss_engine.api.info import ClusterStats, ServiceInfo, ServiceStats
from moss_engine.api.metrics import Timeline, fold, measure
from moss_engine.api.request import Request
from moss_engine.api.service import ReplyStream, ReplyWrapper, ServiceWrapper, SpeechService

MEDIA_TYPE = CONTENT_TYPE_LATEST
WAITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60)
FACTORS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 5)
LATENESS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
PREFIX = "moss_speech"
IN_STORE_S = 0.3
"""Sound that a listener has left when others may take time for what nobody waits for."""


class Figures:
    """Everything that /metrics tells. Used on any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def seconds(name: str, help: str) -> Histogram:
            return Histogram(f"{PREFIX}_{name}_seconds", help, buckets=WAITS_S, registry=registry)

        self.queue_wait = seconds("queue_wait", "From a request being accepted to its prefill.")
        self.prefill = seconds("prefill", "From the first prefill step to the first row.")
        self.ttfa = seconds("ttfa", "From a request being accepted to its first samples.")
        self.rtf = Histogram(
            f"{PREFIX}_rtf", "Working time of a reply divided by the length of its sound.",
            buckets=FACTORS, registry=registry,
        )  # fmt: skip
        self.lateness = Histogram(
            f"{PREFIX}_chunk_lateness_seconds",
            "How long a listener who plays from the first chunk on waited for a later one.",
            buckets=LATENESS_S, registry=registry,
        )  # fmt: skip
        self.replies = Counter(
            f"{PREFIX}_replies", "Replies by how they ended.", ["outcome"], registry=registry
        )
        self.refusals = Counter(
            f"{PREFIX}_refusals",
            "Requests that were refused, or failed before their answer, by code.", ["code"],
            registry=registry,
        )  # fmt: skip
        self.underruns = Counter(
            f"{PREFIX}_underruns", "Gaps that such a listener heard.", registry=registry
        )
        self.audio = Counter(
            f"{PREFIX}_audio_seconds", "Seconds of sound that were made.", registry=registry
        )
        self.ahead = Counter(
            f"{PREFIX}_ahead",
            "Answers that were begun before their turn was over: released, or thrown_away.",
            ["outcome"], registry=registry,
        )  # fmt: skip
        self.ahead_wasted = Counter(
            f"{PREFIX}_ahead_wasted_seconds", "Time for which the latter ran.", registry=registry
        )
        self.mended = Counter(
            f"{PREFIX}_turns_mended",
            "Turns that went on behind their judged end and were answered as one.",
            registry=registry,
        )
        self._replicas = ReplicaFigures(registry)
        self._add_gauges()
        self.watches: set[Watch] = set()

    def _add_gauges(self) -> None:
        registry = self.registry
        self.listeners = Gauge(
            f"{PREFIX}_listeners", "Replies that somebody listens to.", registry=registry
        )
        self.places = Gauge(
            f"{PREFIX}_places", "Replies that run or wait, and how many may.", ["state"],
            registry=registry,
        )  # fmt: skip
        self.blocks = Gauge(
            f"{PREFIX}_kv_blocks", "Blocks of the KV pool; reserved ones are cached or free.",
            ["state"], registry=registry,
        )  # fmt: skip
        self.ready = Gauge(
            f"{PREFIX}_ready", "1 while requests are accepted and all threads are alive.",
            registry=registry,
        )  # fmt: skip
        self.progress_age = Gauge(
            f"{PREFIX}_progress_age_seconds", "Since the slowest thread last came around.",
            registry=registry,
        )  # fmt: skip
        self.build = Gauge(
            f"{PREFIX}_build_info", "What runs here.",
            ["version", "model", "runtime", "device", "dtype"], registry=registry,
        )  # fmt: skip

    def text(self, info: ServiceInfo, model: str, stats: ServiceStats) -> bytes:
        """Prometheus's text format, with the counts of this moment."""
        engine = stats.engine
        for state, number in (
            ("running", engine.running), ("waiting", engine.waiting),
            ("max_running", info.max_sessions), ("max_waiting", info.max_waiting),
        ):  # fmt: skip
            self.places.labels(state).set(number)
        for state in ("used", "cached", "free", "reserved"):
            self.blocks.labels(state).set(getattr(engine, f"blocks_{state}"))
        self.blocks.labels("leaked").set(engine.leaked_blocks)
        self.ready.set(stats.ready)
        self._replicas.take(stats.cluster)
        self.progress_age.set(stats.progress_age_s)
        runtime = info.runtime
        self.build.labels(
            moss_engine.__version__, model, f"{runtime.name} {runtime.version}", runtime.device,
            runtime.dtype,
        ).set(1)  # fmt: skip
        return generate_latest(self.registry)

    def all_in_store(self) -> bool:
        """Whether every listener has IN_STORE_S of sound that was not played yet."""
        until_s = time.monotonic() + IN_STORE_S
        return all(watch.plays_until_s >= until_s for watch in tuple(self.watches))

    def refused(self, code: str) -> None:
        self.refusals.labels(code).inc()


class Watch:
    """What becomes of one reply; `take` every event, and `close` once."""

    def __init__(self, figures: Figures):
        self._figures = figures
        self._timeline = Timeline()
        self._outcome = "cancelled"  # a listener who leaves early hears no last event
        self.plays_until_s = 0.0
        figures.listeners.inc()
        figures.watches.add(self)

    def take(self, event: Event) -> None:
        before, self._timeline = self._timeline, fold(self._timeline, event)
        if isinstance(event, AudioChunk):
            length_s = len(event.samples) / event.sample_rate_hz
            self.plays_until_s = max(self.plays_until_s, time.monotonic()) + length_s
            if before.first_pcm_s is not None:
                self._figures.lateness.observe(self._timeline.stalled_s - before.stalled_s)
        elif isinstance(event, Finished):
            self._outcome = event.reason.value
        elif isinstance(event, Failed):
            self._outcome = "failed"

    def close(self) -> None:
        figures, found = self._figures, measure(self._timeline)
        figures.watches.discard(self)
        figures.listeners.dec()
        figures.replies.labels(self._outcome).inc()
        figures.underruns.inc(found.underruns)
        figures.audio.inc(found.audio_s)
        for histogram, ms in (
            (figures.queue_wait, found.queue_wait_ms),
            (figures.prefill, found.prefill_ms),
            (figures.ttfa, found.ttfa_ms),
        ):
            if ms is not None:
                histogram.observe(ms / 1000)
        if found.rtf is not None:
            figures.rtf.observe(found.rtf)


class ReplicaFigures:
    """Nothing is told where there is no cluster."""

    def __init__(self, registry: CollectorRegistry):
        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", help, labels, registry=registry)

        self._replies = gauge(
            "replica_replies", "Replies that run or wait at a replica.", "replica", "state"
        )
        self._places = gauge("replica_places", "Replies that a replica can run.", "replica")
        self._blocks = gauge("replica_kv_blocks", "KV blocks in use at a replica.", "replica")
        self._counts = gauge(
            "cluster_replies",
            "Replies of this page: placed, at the replica that knows their conversation "
            "(preferred), and gone on elsewhere (resumed).",
            "what",
        )

    def take(self, cluster: ClusterStats | None) -> None:
        """The values of this moment; replicas that are gone are told no more."""
        if cluster is None:
            return
        for gauge in (self._replies, self._places, self._blocks):
            gauge.clear()
        for replica in cluster.replicas:
            self._replies.labels(replica.name, "running").set(replica.running)
            self._replies.labels(replica.name, "waiting").set(replica.waiting)
            self._places.labels(replica.name).set(replica.places)
            self._blocks.labels(replica.name).set(replica.blocks_used)
        self._counts.labels("placed").set(cluster.num_placed)
        self._counts.labels("preferred").set(cluster.num_preferred)
        self._counts.labels("resumed").set(cluster.num_resumes)


class WatchedReply(ReplyWrapper):
    """A reply whose events are folded when its listener takes them."""

    def __init__(self, reply: ReplyStream, figures: Figures):
        super().__init__(reply)
        self._figures = figures

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        watch = Watch(self._figures)
        try:
            async with aclosing(self._reply.events(acknowledge=acknowledge)) as events:
                async for event in events:
                    watch.take(event)
                    yield event
        finally:
            watch.close()


class WatchedService(ServiceWrapper):
    """Another service, and the figures of what it does.

    `counts_refusals`: of `submit`, for callers that do not count what they refuse themselves.
    """

    def __init__(self, service: SpeechService, figures: Figures, *, counts_refusals: bool = True):
        super().__init__(service)
        self._figures = figures
        self._counts_refusals = counts_refusals

    async def submit(self, request: Request) -> ReplyStream:
        try:
            return WatchedReply(await self._below.submit(request), self._figures)
        except MossError as error:
            if self._counts_refusals:
                self._figures.refused(error.code)
            raise
