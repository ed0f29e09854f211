"""The work of the codec thread: codes of all open replies become sound, the most urgent first, as
many replies at a time as pays."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from moss_engine.api.errors import MossError, ReplyFaultError
from moss_engine.api.events import AudioChunk, CodecRun, Finished, FinishReason
from moss_engine.api.request import Progress, SpeechState
from moss_engine.codec.base import MovableStream, Push, SpeechCodec, SpeechStream
from moss_engine.service.reply_stream import LocalReplyStream

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
FIRST_SOUND_S = 0.2  # a newcomer's sound is due so long after the request was accepted
LETS_BY_S = 1.0  # so long after it, a first sound lets those go before who else would run dry
PLENTY_S = 0.5  # of sound that a listener has left while another's is more urgent
URGENT_S = 0.25  # of sound left: what is made beside first sounds
MANY = 32  # due replies: more are done by full runs, fewer when it suits first sounds
FEW = 16  # replies of a run: beside more the network rests after each step
SHORT_S = 0.16  # of sound that does not last (`SpeechStream.lasting_codes`)
BEGUN_S = 0.03  # so long after a code others are expected
HOLD_POLL_S = 0.01
RECENT_S = 1.0  # runs so long ago say how long the next may take
BEHIND_ANOTHER = 1.7  # such runs: what a chunk takes that comes due just as another's begins


class SpeechWorker:
    """One thread calls `run_once` over and over; any thread may `notify` and `wake`.

    A run makes one chunk for each of the most urgent replies, at most `codec.max_together` of them,
    so replies delay each other by no more than one such run. `finish` delivers a terminal event,
    `fail` ends a reply, by its request id, with an error; `on_first_sound` is called when first
    sounds have been made.

    Where network and codec share `one_gpu` and no more than MANY replies are due, chunks that
    nobody needs soon are not made together with first sounds, nor while the first codes of some
    reply are being sampled. A first sound that would be over before the next chunk is ready waits,
    to be made with that one. While `runs_many`, the network's steps leave half of the time to the
    codec.
    """

    def __init__(
        self,
        codec: SpeechCodec,
        *,
        finish: Callable[[Finished], None],
        fail: Callable[[str, MossError], None],
        on_first_sound: Callable[[], None],
        one_gpu: bool = False,
    ):
        self._codec = codec
        self._one_gpu, self.runs_many = one_gpu, False
        self._finish = finish
        self._fail_reply = fail
        self._on_first_sound = on_first_sound
        self._first_sounds: frozenset[str] = frozenset()
        self._runs: deque[tuple[float, float]] = deque()  # recent ones: when, and how long
        self._run_s = 0.0  # what a run takes, by the longest of these
        self._changed = threading.Condition()
        self._due: dict[str, SpeechJob] = {}
        self._begun_s = -math.inf  # when some reply got a code of its first sound, but not the last

    def notify(self, job: SpeechJob) -> None:
        """A reply has changed: if sound can be made for it, or its end is due, that will be
        done."""
        if job.is_due:
            with self._changed:
                self._due[job.request_id] = job
                self._changed.notify()
            if job.is_new:
                self._begun_s = -math.inf
        elif job.is_new and not job.cancelled:
            self._begun_s = time.perf_counter()

    def wake(self) -> None:
        """Let a waiting `run_once` return."""
        with self._changed:
            self._changed.notify()

    def is_awaited(self, ahead_s: Mapping[str, float]) -> bool:
        """Whether the engine may rest, as no listener would hear anything sooner: each (`ahead_s`:
        seconds of sound left) waits for a first sound that is being made, or has plenty."""
        with self._changed:
            jobs = list(self._due.values())
        first_sounds = self._first_sounds.union(
            job.request_id for job in jobs if job.is_new and job.stream and self._lasts(job)
        )
        return bool(first_sounds) and all(
            request_id in first_sounds or left_s >= PLENTY_S
            for request_id, left_s in ahead_s.items()
        )

    def _lasts(self, job: SpeechJob) -> bool:
        """Whether the sound that the reply would get now is not over before its next is ready."""
        next_s = job.lasting_in_s
        if not self._one_gpu or next_s is None:
            return True
        return next_s + BEHIND_ANOTHER * self._run_s < SHORT_S

    def _chosen(self) -> list[SpeechJob]:
        """The due jobs of the next run."""
        spare_s = 2 * self._run_s  # a chunk that is made behind another's comes so late
        due = sorted(filter(self._lasts, self._due.values()), key=lambda job: job.urgency(spare_s))
        begun = time.perf_counter() - self._begun_s < BEGUN_S
        if self._one_gpu and len(due) <= MANY and (begun or any(job.is_new for job in due)):
            due = [job for job in due if not job.can_wait(URGENT_S)]
        chosen, room = [], self._codec.max_together
        for job in due:
            if job.places <= room or not chosen:
                chosen.append(job)
                room -= job.places
        return chosen

    def run_once(self) -> None:
        """Do what is most urgent; wait for a moment if there is nothing to do."""
        while self._runs and self._runs[0][0] < time.perf_counter() - RECENT_S:
            self._runs.popleft()
        self._run_s = max((ran_s for _, ran_s in self._runs), default=0.0)
        with self._changed:
            jobs = self._chosen()
            if not jobs:
                self._changed.wait(HOLD_POLL_S if self._due else IDLE_POLL_S)
                jobs = self._chosen()
            for job in jobs:
                del self._due[job.request_id]
        open_ = [job for job in jobs if self._is_open(job)]
        if not open_:
            return
        self._first_sounds = frozenset(job.request_id for job in open_ if job.is_new)
        try:
            self._run(open_, [job.next_push() for job in open_])
        finally:
            if self._first_sounds:
                self._first_sounds = frozenset()
                self._on_first_sound()

    def _is_open(self, job: SpeechJob) -> bool:
        """Whether there is sound to be made for it; opens its stream. A reply that was cancelled is
        ended here."""
        if job.cancelled:
            if job.ending:
                self._finish(dataclasses.replace(job.ending, reason=FinishReason.CANCELLED))
            return False
        if not job.is_due:  # its codes were taken between the look at it and its being noted
            return False
        if job.stream is None:
            try:
                job.open(self._codec)
            except Exception as error:
                self._fail(job, error)
                return False
            assert job.stream is not None
            job.missing_codes = job.stream.missing_codes
        return job.is_due

    def _run(self, jobs: Sequence[SpeechJob], work: Sequence[Push]) -> None:
        """One run of the codec for all jobs; if it raises, one run for each, so that a faulty reply
        fails alone."""
        began_s = time.perf_counter()
        self.runs_many = len(jobs) > FEW
        try:
            waves = self._codec.push_together(work)
            assert len(waves) == len(jobs), (
                "the codec gave more or fewer waves than it was asked for"
            )
        except Exception as error:
            if len(jobs) == 1:
                self._fail(jobs[0], error)
                return
            for job, one in zip(jobs, work, strict=True):
                self._run([job], [one])
            return
        finally:
            self.runs_many = False
        made_by = CodecRun(time.perf_counter() - began_s, len(jobs))
        self._runs.append((time.perf_counter(), made_by.ran_s))
        for job, push, samples in zip(jobs, work, waves, strict=True):
            try:
                self._deliver(job, samples, made_by, push.is_last)
            except Exception as error:
                self._fail(job, error)

    def _deliver(self, job: SpeechJob, samples: np.ndarray, made_by: CodecRun, ends: bool) -> None:
        if not np.isfinite(samples).all():
            raise ReplyFaultError("The vocoder's output was not a number; ask again.")
        if len(samples) and not job.cancelled:
            job.deliver(samples, made_by, None if ends else job.state)
        if ends:
            assert job.ending is not None
            reason = FinishReason.CANCELLED if job.cancelled else job.ending.reason
            self._finish(dataclasses.replace(job.ending, reason=reason))
            return
        assert job.stream is not None
        job.missing_codes = job.stream.missing_codes
        self.notify(job)

    def _fail(self, job: SpeechJob, error: Exception) -> None:
        """End a reply with this error; `notify` finds nothing to do for it any more.

        Raises `error` again where the GPU itself failed: nothing works on it until the process
        ends, so no reply can go on.
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


NEW = Progress()


class SpeechJob:
    """The sound of one reply. The engine thread adds codes and sets `ending`, the codec thread does
    all else.

    The next sound can be made from `missing_codes` codes on. `ending` is the engine's last event,
    which waits for the sound before it; `cancelled`: no more sound is wanted. The first
    `lead_samples` are not sent. Of a reply that is continued (`progress`), neither are the samples
    that its listener already received: they are made once more from its first codes, unless the
    codec's state came with them. `moves` as in `Request`.
    """

    def __init__(
        self,
        reply: LocalReplyStream,
        voice: str | None,
        sample_rate_hz: int,
        lead_samples: int = 0,
        progress: Progress = NEW,
        moves: bool = False,
    ):
        self.reply = reply
        self.voice = voice
        self.num_codes, sent_samples = len(progress.codes), progress.num_samples
        self._restored, self._moves = progress.state, moves
        self._num_spoken = self._restored.num_codes if self._restored else 0
        self.codes: deque[int] = deque(progress.codes[self._num_spoken :])
        self.stream: SpeechStream | None = None
        self.missing_codes = 1
        self.ending: Finished | None = None
        self.cancelled = False
        unplayed_s = max(0, sent_samples - reply.taken_samples) / sample_rate_hz
        self._due_s = reply.accepted_s + (unplayed_s if sent_samples else FIRST_SOUND_S)
        self._made_samples = sent_samples
        self.lead_samples = lead_samples
        self._unsent_lead = 0 if self._restored else lead_samples + sent_samples
        self.first_sound_s: float | None = None
        self._sample_rate_hz = sample_rate_hz
        self._code_times: list[float] = []  # of the first sound's, on the reply's clock

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

    def urgency(self, spare_s: float) -> tuple[float, float]:
        """When its next sound is due, in seconds of the reply's clock; the earliest is made first.

        A first sound is due FIRST_SOUND_S after the request was accepted, later ones when the
        listener, who plays from the first chunk on, runs out. Somebody who has run out goes on
        playing where the next chunk begins, so lateness does not add up: a reply that cannot be
        kept up has pauses, and delays others by one chunk at most. Until LETS_BY_S after its
        request, a first sound comes behind those who run out within `spare_s`: a slightly later
        start is heard less than a gap.
        """
        elapsed_s = self.reply.elapsed_s()
        if self._made_samples or elapsed_s > LETS_BY_S:
            return self._due_s, self._due_s
        return max(self._due_s, self.reply.accepted_s + elapsed_s + spare_s), self._due_s

    @property
    def is_new(self) -> bool:
        """Whether its listener has heard nothing yet."""
        return not self._made_samples

    def can_wait(self, enough_s: float) -> bool:
        """Whether its listener has heard something, and has at least so much sound left."""
        left_s = self._due_s - self.reply.accepted_s - self.reply.elapsed_s()
        return not (self.is_new or self.cancelled) and left_s >= enough_s

    @property
    def lasting_in_s(self) -> float | None:
        """In how many seconds there are codes enough for a first sound that lasts (`SpeechStream`),
        at the rate at which they come; None where there are, or no more are expected."""
        times = self._code_times
        if not (self.is_new and self.stream and len(times) > 1) or self.ending is not None:
            return None
        lacking = self.stream.lasting_codes - len(self.codes)
        if lacking <= 0 or self.reply.elapsed_s() - times[-1] > SHORT_S:
            return None
        return lacking * (times[-1] - times[0]) / (len(times) - 1)

    @property
    def _num_next(self) -> int:
        """Codes of its next push: those of a chunk, or of a first sound that lasts."""
        lasting = self.stream.lasting_codes if self.stream and self.is_new else self.missing_codes
        return min(len(self.codes), lasting if len(self.codes) >= lasting else self.missing_codes)

    @property
    def places(self) -> int:
        """How many places of the next run it takes."""
        return self.stream.places(self._num_next) if self.stream else 1

    def add_code(self, code: int) -> None:
        self.num_codes += 1
        self.codes.append(code)
        if self.is_new:
            self._code_times.append(self.reply.elapsed_s())

    def next_push(self) -> Push:
        """Its part of the next run."""
        assert self.stream is not None
        is_last = self.ending is not None and len(self.codes) < self.missing_codes
        taken = [self.codes.popleft() for _ in range(self._num_next)]
        self._num_spoken += len(taken)
        return Push(self.stream, taken, is_last)

    def open(self, codec: SpeechCodec) -> None:
        """Open its stream, with the state that came with the reply, if any."""
        stream = codec.open_stream(self.voice)
        if self._restored is not None:
            assert isinstance(stream, MovableStream), "the replicas' codecs differ"
            stream.restore(self._restored.values)
        self.stream = stream

    @property
    def state(self) -> SpeechState | None:
        """The codec's state for another replica; None where that is not asked for."""
        if not self._moves or not isinstance(self.stream, MovableStream):
            return None
        saved = self.stream.saved()
        return None if saved is None else SpeechState(self._num_spoken, saved)

    def deliver(
        self, samples: np.ndarray, codec: CodecRun | None = None, state: SpeechState | None = None
    ) -> None:
        """Send float32 samples [n], made by a run, to the listener, without those of the lead;
        `state` is the codec's behind them."""
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
            self.reply.num_rows,
            samples,
            self._made_samples,
            self._sample_rate_hz,
            self.reply.held_s,
            codec,
            state,
        )
        self._made_samples += len(samples)
        self.reply.put(chunk)
