"""The engine: `step()` runs every turn it can by one forward pass, and says what became of it.

schedule -> runtime.step -> append -> emit. One thread calls `step`; `submit`, `cancel` and `stats`
may be called from any thread, and wait for the bookkeeping around a forward pass, never for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from moss_engine.api.errors import (
    IN_USE,
    BusyError,
    EngineFaultError,
    MossError,
    ParameterError,
    ReplyFaultError,
)
from moss_engine.api.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.info import EngineStats
from moss_engine.api.request import Request
from moss_engine.api.tokens import Modality, Row
from moss_engine.config import EngineConfig
from moss_engine.engine.block_manager import BlockManager
from moss_engine.engine.scheduler import CROWDED_OUT, Scheduler, Share
from moss_engine.engine.sequence import Preparer, RequestState, open_turn
from moss_engine.runtime.base import BatchSampling, Runtime, ScheduledBatch, ScheduledSequence

log = logging.getLogger(__name__)

FAULT = "The engine stopped after an internal error; restart the program."
NO_NUMBER = "The model's output was not a number; ask again."
NO_PLACE = "No place became free within {:g} s; try again later."


@dataclass(frozen=True)
class StepResult:
    """`events` since the last step; `num_rows` computed, 0 when there was nothing to run."""

    events: tuple[Event, ...]
    num_rows: int


class Engine:
    """Owns every turn from `submit` to its one terminal event, and all KV blocks.

    `samples_per_code` places text in the audio; `replays`: see `open_turn`; `max_cached`: see
    `BlockManager`. After an exception of the runtime `fault` is a sentence: all turns failed.
    """

    def __init__(
        self,
        runtime: Runtime,
        processor: Preparer,
        config: EngineConfig,
        *,
        samples_per_code: int,
        replays: bool = False,
        max_cached: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.runtime = runtime
        self.processor = processor
        self.fault: str | None = None
        self._ids = processor.ids
        self._wait_limit_s = config.wait_limit_s
        self._samples_per_code = samples_per_code
        self._replays = replays
        limits = runtime.limits
        self._few_rows = max(1, min(runtime.few_rows, limits.max_step_rows // limits.max_batch))
        self._clock = clock
        self._max_waiting = config.max_waiting
        self._max_cached = max_cached
        self._make_empty_pool()
        self._lock = threading.Lock()
        self._turns: dict[str, RequestState] = {}
        self._events: list[Event] = []
        self._finished: list[str] = []  # sequences that ended since the runtime's last step
        self._leaked_blocks = 0

    def submit(self, request: Request, accepted_s: float | None = None) -> Accepted:
        """Validate and queue a request. Its events count their time from `accepted_s` on the
        engine's clock, by default from now.

        Raises a MossError if it cannot be served, before any work is done for it. All further
        events come out of `step`, the last of them, once, a terminal one.
        """
        accepted_s = self._clock() if accepted_s is None else accepted_s
        with self._lock:
            if not self.fault:
                self._scheduler.check_place(request)
        segments = self.processor.prepare(request)
        with self._lock:
            if self.fault:
                raise EngineFaultError(self.fault)
            if request.request_id in self._turns:
                raise ParameterError(IN_USE)
            decoder = self.processor.open_text_decoder
            turn, missed = open_turn(
                lambda: RequestState(request, segments, self._ids, decoder(), accepted_s),
                request.progress,
                replays=self._replays,
            )
            left = None if turn.is_complete else self._scheduler.submit(turn)
            self._turns[turn.owner] = turn
            if left and left.request.session_id == request.session_id:
                self._finish(left, FinishReason.CANCELLED)
            elif left:
                self._fail(left, BusyError(CROWDED_OUT))
            if missed.text:
                self._say(turn, missed.text, missed.num_codes)
            if turn.is_complete:
                self._finish(turn, turn.finish_reason)
        return Accepted(turn.owner, 0.0, len(turn.reply_rows), len(segments[0].prompt))

    def cancel(self, request_id: str) -> None:
        """End a request before the next step, wherever it stands, unless it is over or unknown."""
        if (turn := self._turns.get(request_id)) is not None:
            turn.cancelled = True

    def step(
        self, paused: Collection[str] = (), ahead_s: Mapping[str, float] | None = None
    ) -> StepResult:
        """Run one step.

        `paused` holds the request ids of turns whose listeners are too far behind to be given more,
        `ahead_s` how many seconds of sound listeners have left.
        """
        shares: list[Share] = []
        try:
            with self._lock:
                self._reap()
                if not self.fault:
                    shares = self._scheduler.schedule(paused, ahead_s)
                batch = ScheduledBatch(tuple(self._begin(share) for share in shares))
                sampling = self._sampling(shares)
                if not self._turns:
                    self._reconcile()
            if shares:
                rows = self.runtime.step(batch, sampling)
                with self._lock:
                    self._apply(shares, rows)
        except Exception:
            # The KV pool is in an unknown state: every reply ends with a sentence, nothing hangs.
            log.exception("the engine stopped")
            with self._lock:
                self._stop_with_fault()
        with self._lock:
            events, self._events = tuple(self._events), []
        return StepResult(events, sum(share.num_rows for share in shares))

    def stats(self) -> EngineStats:
        with self._lock:
            blocks, scheduler = self._blocks, self._scheduler
            return EngineStats(
                len(scheduler.running),
                len(scheduler.waiting),
                blocks.num_used,
                blocks.num_cached,
                blocks.num_free,
                blocks.num_reserved,
                self._leaked_blocks,
            )

    def check_integrity(self) -> None:
        """Assert that the block pool is sound and that exactly the running turns own blocks."""
        with self._lock:
            self._blocks.check_integrity()
            running, waiting = self._scheduler.running, self._scheduler.waiting
            owners = {turn.owner for turn in running}
            assert self._blocks.owners == owners, "blocks without a turn"
            assert len(self._turns) == len(running) + len(waiting), "a turn is lost"

    def close(self) -> None:
        """Give back the runtime's memory; not while another thread is in `step`."""
        self.runtime.close()

    def _make_empty_pool(self) -> None:
        limits = self.runtime.limits
        self._blocks = BlockManager(limits.num_blocks, limits.block_size, self._max_cached)
        self._scheduler = Scheduler(self._blocks, limits, self._max_waiting)

    def stop_with_fault(self) -> None:
        """Every open request fails, and no other is accepted. From any thread."""
        with self._lock:
            self._stop_with_fault()

    def _stop_with_fault(self) -> None:
        self.fault = FAULT
        self._make_empty_pool()
        for turn in list(self._turns.values()):
            self._fail(turn, EngineFaultError(FAULT))

    def _begin(self, share: Share) -> ScheduledSequence:
        turn, sequence = share.turn, share.turn.sequence
        start = sequence.num_computed
        if not turn.started:
            turn.started = True
            self._events.append(Started(turn.owner, self._elapsed_s(turn), 0, start))
        return ScheduledSequence(
            tuple(sequence.rows[start : start + share.num_rows]),
            start,
            self._blocks.table(turn.owner),
            share.samples,
            sequence.modality is Modality.TEXT,
            start >= sequence.num_prompt_rows,
        )

    def _sampling(self, shares: list[Share]) -> BatchSampling:
        """How the shares that are sampled are drawn."""
        finished: tuple[str, ...] = ()
        if shares:
            finished = (*self._finished, *self._scheduler.left_out(shares))
            self._finished.clear()
        drawn = [share.turn for share in shares if share.samples]
        return BatchSampling(
            tuple(turn.sequence.row_sampling(turn.owner) for turn in drawn), self._ids, finished
        )

    def _apply(self, shares: list[Share], rows: list[Row | None]) -> None:
        """Take over what was computed: `rows` holds one for each share that `samples`. Rows that
        need no sampling, as they are bound or replayed, are appended behind it, as many as the
        runtime computes at the cost of one."""
        for share in shares:
            self._scheduler.advance(share)
        for turn, row in zip([s.turn for s in shares if s.samples], rows, strict=True):
            now_s = self._elapsed_s(turn)  # of one step
            if row is None:
                self._fail(turn, ReplyFaultError(NO_NUMBER))
            while row is not None and not turn.cancelled:
                self._append(turn, row, now_s)
                row = turn.row_without_draw(self._few_rows)

    def _append(self, turn: RequestState, row: Row, now_s: float) -> None:
        modality = turn.sequence.modality
        replayed, num_codes = bool(turn.to_replay), turn.num_codes
        text = turn.append(row)
        num_rows, ends = len(turn.reply_rows), turn.sequence.finish_reason is not None
        goes_on = ends and turn.next_segment()
        if not replayed:
            pause = turn.silence if goes_on else ()
            self._events.append(Sampled(turn.owner, now_s, num_rows, row, modality, 0.0, pause))
            if text:
                self._say(turn, text, num_codes)
        if goes_on:
            self._scheduler.begin_sequence(turn)
            self._finished.append(turn.owner)
        elif ends:
            self._finish(turn, turn.finish_reason)

    def _say(self, turn: RequestState, text: str, num_codes: int) -> None:
        """Text that is spoken after so many codes."""
        at_s, start_sample = self._elapsed_s(turn), num_codes * self._samples_per_code
        self._events.append(TextDelta(turn.owner, at_s, len(turn.reply_rows), text, start_sample))

    def _reap(self) -> None:
        """End turns that were cancelled, or that waited too long for a place."""
        for turn in [turn for turn in self._turns.values() if turn.cancelled]:
            self._finish(turn, FinishReason.CANCELLED)
        for turn in self._scheduler.waiting:
            if self._clock() - turn.accepted_s > self._wait_limit_s:
                self._fail(turn, BusyError(NO_PLACE.format(self._wait_limit_s)))

    def _reconcile(self) -> None:
        """No turn is open, so nobody may own blocks: take back and count those that were leaked."""
        for owner in self._blocks.owners:
            self._leaked_blocks += len(self._blocks.table(owner))
            log.error("KV blocks were left behind by a reply that is over")
            self._blocks.free(owner)

    def _finish(self, turn: RequestState, reason: FinishReason) -> None:
        rows = tuple(turn.reply_rows)
        self._end(turn, Finished(turn.owner, self._elapsed_s(turn), len(rows), reason, rows))

    def _fail(self, turn: RequestState, error: MossError) -> None:
        elapsed_s, num_rows = self._elapsed_s(turn), len(turn.reply_rows)
        self._end(turn, Failed(turn.owner, elapsed_s, num_rows, error.code, str(error)))

    def _elapsed_s(self, turn: RequestState) -> float:
        return self._clock() - turn.accepted_s

    def _end(self, turn: RequestState, event: Finished | Failed) -> None:
        """The only way out of the engine."""
        del self._turns[turn.owner]
        self._scheduler.remove(turn)
        if turn.started:
            self._finished.append(turn.owner)
        self._events.append(event)
