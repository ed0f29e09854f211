"""The codec thread's work: the codes of every open reply into sound, most urgent first, as many at
a time as pays."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from moss_engine.api.errors import MossError, ReplyFaultError
from moss_engine.api.events import AudioChunk, CodecRun, Finished, FinishReason
from moss_engine.codec.base import SpeechCodec, SpeechStream
from moss_engine.service.reply_stream import LocalReplyStream

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
FIRST_SOUND_S = 0.2  # a newcomer's sound is due so long after the request was accepted
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


class SpeechJob:
    """The engine thread adds codes and sets `ending`, the codec thread does all else.

    `codes` and `stream` are due when there are `missing_codes`; `ending` is the engine's last word
    while sound is still being made before it; `cancelled`: no more sound is wanted. The first
    `lead_samples` are not sent, nor the `sent_samples` behind them: those that the listener of a
    continued reply received from elsewhere, as part of the sound of its first `codes`.
    """

    def __init__(
        self,
        reply: LocalReplyStream,
        voice: str | None,
        sample_rate_hz: int,
        lead_samples: int = 0,
        sent_samples: int = 0,
        codes: Sequence[int] = (),
    ):
        self.reply = reply
        self.voice = voice
        self.codes: deque[int] = deque(codes)
        self.num_codes = len(codes)
        self.stream: SpeechStream | None = None
        self.missing_codes = 1
        self.ending: Finished | None = None
        self.cancelled = False
        self.num_rows = 0
        unplayed_s = max(0, sent_samples - reply.taken_samples) / sample_rate_hz
        self._due_s = reply.accepted_s + (unplayed_s if sent_samples else FIRST_SOUND_S)
        self._made_samples = sent_samples
        self.lead_samples = lead_samples
        self._unsent_lead = lead_samples + sent_samples
        self.first_sound_s: float | None = None
        self._sample_rate_hz = sample_rate_hz

    @property
    def request_id(self) -> str:
        return self.reply.request_id

    @property
    def made_s(self) -> float:
        """Seconds of sound so far."""
        return self._made_samples / self._sample_rate_hz

    @property
    def is_due(self) -> bool:
        """Whether there is something to do: sound that can be made now, or the reply's end."""
        return self.ending is not None or (
            len(self.codes) >= self.missing_codes and not self.cancelled
        )

    @property
    def due_s(self) -> float:
        """When its next sound is due, in seconds of the reply's clock: the earliest is made first.

        That is FIRST_SOUND_S after the request was accepted, and after the first chunk when the
        listener, who plays from it on, runs out of sound. Who has run out goes on playing where the
        next chunk begins, so lateness does not add up: a voice that cannot be kept up has pauses,
        and others, newcomers among them, wait for one chunk of it at most.
        """
        return self._due_s

    def add_code(self, code: int) -> None:
        self.num_codes += 1
        self.codes.append(code)

    def take_codes(self, most: int) -> list[int]:
        return [self.codes.popleft() for _ in range(min(most, len(self.codes)))]

    def deliver(self, samples: np.ndarray, codec: CodecRun | None = None) -> None:
        """Send float32 samples [n], which a run made, to the listener, but for those of the
        lead."""
        samples, lead = samples[self._unsent_lead :], min(self._unsent_lead, len(samples))
        self._unsent_lead -= lead
        if not len(samples):
            return
        elapsed_s = self.reply.elapsed_s()
        if self.first_sound_s is None:
            self.first_sound_s = round(elapsed_s, 3)
        now_s = self.reply.accepted_s + elapsed_s
        played_from_s = max(self._due_s, now_s) if self._made_samples else now_s
        self._due_s = played_from_s + len(samples) / self._sample_rate_hz
        self.reply.note_work()
        chunk = AudioChunk(
            self.request_id,
            elapsed_s,
            self.num_rows,
            samples,
            self._made_samples,
            self._sample_rate_hz,
            self.reply.held_s,
            codec,
        )
        self._made_samples += len(samples)
        self.reply.put(chunk)
