"""The codec thread's work: the codes of every open reply into sound, most urgent first, as many at
a time as pays."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from moss_engine.api.errors import MossError, ReplyFaultError
from moss_engine.api.events import CodecRun, Finished, FinishReason
from moss_engine.codec.base import SpeechCodec
from moss_engine.service.speech_job import SpeechJob

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
PLENTY_S = 0.5  # of sound that a listener has left while another's is more urgent


class SpeechWorker:
    """`run_once` is called by one thread over and over, `notify` and `wake` by any.

    A run makes one chunk for each of the most urgent replies, at most `codec.max_together` of
    them; so the longest time by which voices delay each other is that of one such run. `finish`
    delivers a terminal event, `fail` ends a reply, by its request id, with an error;
    `on_first_sound` is called when first sounds have been made.
    """

    def __init__(
        self,
        codec: SpeechCodec,
        *,
        finish: Callable[[Finished], None],
        fail: Callable[[str, MossError], None],
        on_first_sound: Callable[[], None],
    ):
        self._codec = codec
        self._finish = finish
        self._fail_reply = fail
        self._on_first_sound = on_first_sound
        self._first_sounds: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._due: dict[str, SpeechJob] = {}

    def notify(self, job: SpeechJob) -> None:
        """Something about a reply has changed: if there is sound to be made, or its end to be said,
        that is done."""
        if job.is_due:
            with self._changed:
                self._due[job.request_id] = job
                self._changed.notify()

    def wake(self) -> None:
        """Let a waiting `run_once` return."""
        with self._changed:
            self._changed.notify()

    def is_awaited(self, ahead_s: Mapping[str, float]) -> bool:
        """Whether no listener would be served sooner by a step of the engine: of those with so many
        seconds of sound left, each waits for a first sound that is being made, or has plenty."""
        first_sounds = self._first_sounds
        return bool(first_sounds) and all(
            request_id in first_sounds or left_s >= PLENTY_S
            for request_id, left_s in ahead_s.items()
        )

    def run_once(self) -> None:
        """Do what is most urgent; wait for a moment where there is nothing to do."""
        with self._changed:
            if not self._due:
                self._changed.wait(IDLE_POLL_S)
            jobs = heapq.nsmallest(
                self._codec.max_together, self._due.values(), key=lambda job: job.due_s
            )
            for job in jobs:
                del self._due[job.request_id]
        open_ = [job for job in jobs if self._is_open(job)]
        pushing = [(job, codes) for job in open_ if (codes := job.take_codes(job.missing_codes))]
        busy = {job.request_id for job, _ in pushing}
        flushing = [job for job in open_ if job.request_id not in busy]
        if pushing:
            self._push(pushing)
        if flushing:
            self._run(
                self._codec.flush_together, flushing, [job.stream for job in flushing], ends=True
            )

    def _push(self, pushing: Sequence[tuple[SpeechJob, list[int]]]) -> None:
        jobs = [job for job, _ in pushing]
        self._first_sounds = frozenset(job.request_id for job in jobs if job.first_sound_s is None)
        try:
            work = [(job.stream, codes) for job, codes in pushing]
            self._run(self._codec.push_together, jobs, work, ends=False)
        finally:
            if self._first_sounds:
                self._first_sounds = frozenset()
                self._on_first_sound()

    def _is_open(self, job: SpeechJob) -> bool:
        """Whether there is sound to be made, with a stream for it; a reply that was cancelled gets
        its end here."""
        if job.cancelled:
            if job.ending:
                self._finish(dataclasses.replace(job.ending, reason=FinishReason.CANCELLED))
            return False
        if not job.is_due:  # its codes were taken between the look at it and its being noted
            return False
        if job.stream is None:
            try:
                job.stream = self._codec.open_stream(job.voice)
            except Exception as error:
                self._fail(job, error)
                return False
        return True

    def _run(
        self,
        run: Callable[[Any], list[np.ndarray]],
        jobs: Sequence[SpeechJob],
        work: Sequence[Any],
        *,
        ends: bool,
    ) -> None:
        """One run of the codec for all; where it raises, one for each, so that a faulty reply fails
        alone."""
        began_s = time.perf_counter()
        try:
            waves = run(work)
            assert len(waves) == len(jobs), (
                "the codec gave more or fewer waves than it was asked for"
            )
        except Exception as error:
            if len(jobs) == 1:
                self._fail(jobs[0], error)
                return
            for job, one in zip(jobs, work, strict=True):
                self._run(run, [job], [one], ends=ends)
            return
        made_by = CodecRun(time.perf_counter() - began_s, len(jobs))
        for job, samples in zip(jobs, waves, strict=True):
            try:
                self._deliver(job, samples, made_by, ends)
            except Exception as error:
                self._fail(job, error)

    def _deliver(self, job: SpeechJob, samples: np.ndarray, made_by: CodecRun, ends: bool) -> None:
        if not np.isfinite(samples).all():
            raise ReplyFaultError("The vocoder's output was not a number; ask again.")
        if len(samples) and not job.cancelled:
            job.deliver(samples, made_by)
        if ends:
            assert job.ending is not None
            reason = FinishReason.CANCELLED if job.cancelled else job.ending.reason
            self._finish(dataclasses.replace(job.ending, reason=reason))
            return
        assert job.stream is not None
        job.missing_codes = job.stream.missing_codes
        self.notify(job)

    def _fail(self, job: SpeechJob, error: Exception) -> None:
        """The reply's only word for what went wrong; `notify` finds nothing to do for it any more.

        Raises `error` again where the GPU itself failed: nothing works on it until the process
        ends, so no reply can go on, whether or not it is to be spoken now.
        """
        if isinstance(error, torch.AcceleratorError):
            raise error
        log.error("the codec failed", exc_info=error)
        known = (
            error
            if isinstance(error, MossError)
            else ReplyFaultError("The sound could not be made; ask again.")
        )
        self._fail_reply(job.request_id, known)
