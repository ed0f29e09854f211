"""Which turns run in the next step, and who is let in. No tensors, no clock, no threads."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from moss_engine.api.errors import BusyError, ContextError
from moss_engine.api.request import Request
from moss_engine.engine.block_manager import BlockManager
from moss_engine.engine.sequence import RequestState, visitor_of
from moss_engine.runtime.base import Limits

SPARE_S = 2.0  # a turn so far ahead of its listener can be left out of steps for others

CROWDED_OUT = "Many visitors are waiting, and you for several answers; ask this again later."


class Share(NamedTuple):
    """A turn's part of a step: the next `num_rows` of its pending rows. `samples`: the turn's last
    row is among them, whose logits give the next one."""

    turn: RequestState
    num_rows: int
    samples: bool


class Scheduler:
    """Continuous batching with chunked prefill.

    - Decodes come first, one row each, then the few of a bound text, so a voice that runs never
      waits for somebody's prompt; prompts share what is left of `max_step_rows`, oldest first.
    - A turn starts only when its worst case is reserved, and keeps its blocks to its end: nothing
      is ever computed twice.
    - `max_batch` turns run in a step. Where some of them are far ahead of their listeners, others
      are let in, as many again at the most; a step then takes those who are least ahead.
    - Replies that began elsewhere go first, those whose listeners have the least sound left before
      others, and share the steps with those that run even if nobody is far ahead. Then first come,
      first served over visitors: of those waiting the one goes first whose visitor has the fewest
      running. A session has at most one running and one waiting turn, and the waiting one joins the
      queue when the running one is over. A later turn of the session takes the waiting one's place.
    """

    def __init__(self, blocks: BlockManager, limits: Limits, max_waiting: int):
        assert limits.max_step_rows >= limits.max_batch, (
            "a step must have room for one row of every running turn"
        )
        self.blocks = blocks
        self.running: list[RequestState] = []
        self._limits = limits
        self._max_waiting = max_waiting
        self._queue: deque[RequestState] = deque()
        self._held: dict[str, RequestState] = {}  # by session: waits for the session's running turn
        self._num_shares = 0

    @property
    def waiting(self) -> tuple[RequestState, ...]:
        return (*self._queue, *self._held.values())

    @property
    def max_total_rows(self) -> int:
        """Rows of the longest sequence (prompt and reply) that can be served."""
        return min(self._limits.max_seq_len, self._limits.num_blocks * self._limits.block_size)

    def left_out(self, shares: list[Share]) -> set[str]:
        """Request ids of running turns that this step leaves out in favour of others."""
        if len(self.running) <= self._limits.max_batch:
            return set()
        return {turn.owner for turn in self.running} - {share.turn.owner for share in shares}

    @property
    def _is_full(self) -> bool:
        num_places = max(0, self._limits.max_batch - len(self.running))
        return len(self.waiting) >= self._max_waiting + num_places

    def check_place(self, request: Request) -> None:
        """Raise BusyError if no request could be queued now, whatever its text: so a text is not
        prepared in vain, which takes long."""
        if any(other.request.session_id == request.session_id for other in self.waiting):
            return
        if self._is_full and request.progress is None:
            self._longest_waiting(visitor_of(request))

    def _longest_waiting(self, visitor: str) -> RequestState:
        """The turn that has to leave a full queue for one of this visitor: the last one of the
        visitor with the most waiting, if these are at least two more than this visitor has. Replies
        that began elsewhere are not counted, and stay. Raises BusyError if none has to."""
        fresh = [other for other in self.waiting if other.request.progress is None]
        waiting = Counter(other.visitor for other in fresh)
        crowd, most = max(waiting.items(), key=lambda item: item[1], default=("", 0))
        if most <= waiting[visitor] + 1:
            raise BusyError(
                f"All places are taken and {len(self.waiting)} turns are waiting; try again in a "
                f"moment."
            )
        return next(other for other in reversed(fresh) if other.visitor == crowd)

    def submit(self, turn: RequestState) -> RequestState | None:
        """Queue a turn; returns the waiting turn that leaves for it, if any: that of the same
        session, or in a full queue one of a visitor who has many.

        Raises ContextError if it can never run, BusyError if too many wait: but a reply that began
        elsewhere has nowhere else to go, and there are no more of them than a lost replica had.
        """
        self._check_length(turn)
        session_id, left = turn.request.session_id, None
        for index, other in enumerate(self._queue):
            if other.request.session_id == session_id:
                self._queue[index] = turn
                return other
        if session_id in self._held:
            other, self._held[session_id] = self._held[session_id], turn
            return other
        if self._is_full and turn.request.progress is None:
            left = self._longest_waiting(turn.visitor)
            self.remove(left)
        if any(other.request.session_id == session_id for other in self.running):
            self._held[session_id] = turn
        else:
            self._queue.append(turn)
        return left

    def _check_length(self, turn: RequestState) -> None:
        if turn.max_total_rows > self.max_total_rows:
            longest = max(turn.segments, key=lambda segment: segment.max_total_rows)
            raise ContextError(
                f"What was said needs {len(longest.prompt)} rows and the reply up to "
                f"{longest.max_rows}, but only "
                f"{self.max_total_rows} fit together; send a shorter text, or allow the reply "
                f"fewer rows."
            )

    def schedule(
        self, paused: Collection[str] = (), ahead_s: Mapping[str, float] | None = None
    ) -> list[Share]:
        """The next step's shares, with blocks allocated for their rows; empty when there is nothing
        to run.

        `paused` holds the request ids of turns that are left out of this step but keep their
        blocks; `ahead_s` tells for request ids how many seconds of sound their listeners have left.
        """
        ahead_s = ahead_s or {}
        budget = self._limits.max_step_rows
        ready = [turn for turn in self.running if turn.owner not in paused]
        newcomer = self._next_in(ready, ahead_s)
        places = self._limits.max_batch - (newcomer is not None)
        if len(ready) > places:
            ready.sort(key=lambda turn: (int(ahead_s.get(turn.owner, 0.0)), turn.last_share))
            del ready[places:]
            for turn in ready:
                self._num_shares += 1
                turn.last_share = self._num_shares
        shares, longer = [], []
        for turn in ready:
            if turn.sequence.num_pending == 1:
                shares.append(Share(turn, 1, samples=True))
            else:
                longer.append(turn)
        budget -= len(shares)
        longer.sort(key=lambda turn: not turn.reply_rows)
        for turn in longer:
            if budget > 0:
                shares.append(self._chunk(turn, budget))
                budget -= shares[-1].num_rows
        while budget > 0 and newcomer is not None and len(shares) < self._limits.max_batch:
            self._admit(newcomer)
            shares.append(self._chunk(newcomer, budget))
            budget -= shares[-1].num_rows
            ready.append(newcomer)
            newcomer = self._next_in(ready, ahead_s)
        for share in shares:
            self.blocks.append(share.turn.owner, share.turn.sequence.num_computed + share.num_rows)
        return shares

    def _chunk(self, turn: RequestState, budget: int) -> Share:
        """As many of the turn's pending rows as a step with room for `budget` takes: all, or else
        up to a block's end, where an attention plugin wants every chunk but the last to end.
        """
        sequence, size = turn.sequence, self._limits.block_size
        if sequence.num_pending <= budget:
            return Share(turn, sequence.num_pending, samples=True)
        end = (sequence.num_computed + budget) // size * size
        num_rows = end - sequence.num_computed if end > sequence.num_computed else budget
        return Share(turn, num_rows, samples=False)

    def _next_in(
        self, ready: list[RequestState], ahead_s: Mapping[str, float]
    ) -> RequestState | None:
        """The waiting turn to start, if there is a place for it beside those that are `ready` to
        run, and its worst case can be reserved."""
        most = self._limits.max_batch
        if not self._queue or len(self.running) >= 2 * most:
            return None
        running = Counter(turn.visitor for turn in self.running)

        def rank(turn: RequestState) -> tuple[float, int]:
            goes_on = turn.request.progress is not None
            return ahead_s.get(turn.owner, 0.0) if goes_on else float("inf"), running[turn.visitor]

        turn = min(self._queue, key=rank)
        is_new = turn.request.progress is None
        if is_new and sum(ahead_s.get(turn.owner, 0.0) < SPARE_S for turn in ready) >= most:
            return None
        return turn if self.blocks.has_room(turn.max_total_rows) else None

    def _admit(self, turn: RequestState) -> None:
        reserved = self.blocks.reserve(turn.owner, turn.max_total_rows)
        assert reserved, "a turn was let in without room for it"
        self._queue.remove(turn)
        self.running.append(turn)
        self.begin_sequence(turn)

    def begin_sequence(self, turn: RequestState) -> None:
        """Give the turn's current sequence its blocks, as far as possible from the prefix cache."""
        turn.sequence.num_computed = self.blocks.allocate(turn.owner, turn.sequence.effective_ids)

    def advance(self, share: Share) -> None:
        """The share was computed: its full blocks can be found by later turns."""
        sequence = share.turn.sequence
        sequence.num_computed += share.num_rows
        self.blocks.commit(share.turn.owner, sequence.effective_ids, sequence.num_computed)

    def remove(self, turn: RequestState) -> None:
        """Forget a turn wherever it stands and release its blocks; the only place where blocks are
        given back."""
        session_id = turn.request.session_id
        if turn in self.running:
            self.running.remove(turn)
            if session_id in self._held:
                self._queue.append(self._held.pop(session_id))
        elif turn in self._queue:
            self._queue.remove(turn)
        elif self._held.get(session_id) is turn:
            del self._held[session_id]
        self.blocks.free(turn.owner)
