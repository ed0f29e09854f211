"""Figures for Prometheus, from the same events as those of the page; of a cluster, as the page
knows its replicas."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
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
"""Sound that every listener has left before time is spent on answers that nobody waits for yet."""


class Figures:
    """Everything that /metrics tells. Used on any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def histogram(name: str, buckets: Sequence[float], help: str) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", help, buckets=buckets, registry=registry)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", help, labels, registry=registry)

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", help, labels, registry=registry)

        self.queue_wait = histogram(
            "queue_wait_seconds", WAITS_S, "From a request being accepted to its prefill."
        )
        self.prefill = histogram(
            "prefill_seconds", WAITS_S, "From the first prefill step to the first row."
        )
        self.ttfa = histogram(
            "ttfa_seconds", WAITS_S, "From a request being accepted to its first samples."
        )
        self.rtf = histogram(
            "rtf", FACTORS, "Working time of a reply divided by the length of its sound."
        )
        self.lateness = histogram(
            "chunk_lateness_seconds", LATENESS_S,
            "How long a listener who plays from the first chunk on waited for a later one.",
        )  # fmt: skip
        self.replies = counter("replies", "Replies by how they ended.", "outcome")
        self.refusals = counter(
            "refusals",
            "Requests that were refused, or failed before their answer, by code.",
            "code",
        )
        self.underruns = counter("underruns", "Gaps that such a listener heard.")
        self.audio = counter("audio_seconds", "Seconds of sound that were made.")
        self.ahead = counter(
            "ahead",
            "Answers that were begun before their turn was over: released, or thrown_away.",
            "outcome",
        )
        self.ahead_wasted = counter("ahead_wasted_seconds", "Working time of the latter.")
        self.mended = counter(
            "turns_mended", "Turns that went on behind their judged end and were answered as one."
        )
        self.listeners = gauge("listeners", "Replies that somebody listens to.")
        self.places = gauge("places", "Replies that run or wait, and how many may.", "state")
        self.blocks = gauge(
            "kv_blocks", "Blocks of the KV pool; reserved ones are cached or free.", "state"
        )
        self.ready = gauge("ready", "1 while requests are accepted and all threads are alive.")
        self.progress_age = gauge(
            "progress_age_seconds", "Since the slowest thread last came around."
        )
        self.build = gauge(
            "build_info", "What runs here.", "version", "model", "runtime", "device", "dtype"
        )
        self.replica_replies = gauge(
            "replica_replies", "Replies that run or wait at a replica.", "replica", "state"
        )
        self.replica_places = gauge("replica_places", "Replies that a replica can run.", "replica")
        self.replica_blocks = gauge(
            "replica_kv_blocks", "KV blocks in use at a replica.", "replica"
        )
        self.cluster_replies = gauge(
            "cluster_replies",
            "Replies of this page: placed, at the replica that knows their conversation "
            "(preferred), and gone on elsewhere (resumed).",
            "what",
        )
        self.heard: set[WatchedReply] = set()

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
        self.take(stats.cluster)
        self.progress_age.set(stats.progress_age_s)
        runtime = info.runtime
        self.build.labels(
            moss_engine.__version__, model, f"{runtime.name} {runtime.version}", runtime.device,
            runtime.dtype,
        ).set(1)  # fmt: skip
        return generate_latest(self.registry)

    def take(self, cluster: ClusterStats | None) -> None:
        """Set the gauges of a cluster; replicas that are gone are removed, and without a cluster
        nothing is told."""
        if cluster is None:
            return
        for gauge in (self.replica_replies, self.replica_places, self.replica_blocks):
            gauge.clear()
        for replica in cluster.replicas:
            self.replica_replies.labels(replica.name, "running").set(replica.running)
            self.replica_replies.labels(replica.name, "waiting").set(replica.waiting)
            self.replica_places.labels(replica.name).set(replica.places)
            self.replica_blocks.labels(replica.name).set(replica.blocks_used)
        for what in ("placed", "preferred", "resumes"):
            told = self.cluster_replies.labels(what.replace("resumes", "resumed"))
            told.set(getattr(cluster, f"num_{what}"))

    def all_in_store(self) -> bool:
        """Whether every listener has at least IN_STORE_S of sound left."""
        until_s = time.monotonic() + IN_STORE_S
        return all(reply.plays_until_s >= until_s for reply in tuple(self.heard))

    def refused(self, code: str) -> None:
        self.refusals.labels(code).inc()


class WatchedReply(ReplyWrapper):
    """A reply whose events are counted when its listener takes them."""

    def __init__(self, reply: ReplyStream, figures: Figures):
        super().__init__(reply)
        self._figures = figures
        self._timeline = Timeline()
        self._outcome = "cancelled"  # a listener who leaves early hears no last event
        self.plays_until_s = 0.0

    async def events(self) -> AsyncGenerator[Event, None]:
        self._figures.listeners.inc()
        self._figures.heard.add(self)
        try:
            async with aclosing(self._reply.events()) as events:
                async for event in events:
                    self._take(event)
                    yield event
        finally:
            self._figures.heard.discard(self)
            self._figures.listeners.dec()
            self._tell()

    def _take(self, event: Event) -> None:
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

    def _tell(self) -> None:
        figures, found = self._figures, measure(self._timeline)
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


class WatchedService(ServiceWrapper):
    """Another service, whose replies are counted.

    `counts_refusals`: also count what `submit` refuses; off for callers that do so themselves.
    """

    def __init__(self, service: SpeechService, figures: Figures, *, counts_refusals: bool = True):
        super().__init__(service)
        self.figures = figures
        self._counts_refusals = counts_refusals

    async def submit(self, request: Request) -> ReplyStream:
        try:
            return WatchedReply(await self._below.submit(request), self.figures)
        except MossError as error:
            if self._counts_refusals:
                self.figures.refused(error.code)
            raise
