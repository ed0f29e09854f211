"""Which turns run in the next step, and who is let in. No tensors, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from moss_engine.api.errors import BusyError, ContextError
from moss_engine.engine.block_manager import BlockManager
from moss_engine.engine.sequence import RequestState
from moss_engine.runtime.base import Limits


@dataclass(frozen=True)
class Share:
    """A turn's part of a step: the next `num_rows` of its pending rows."""

    turn: RequestState
    num_rows: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the turn's last row, whose logits give the next one."""
        return self.num_rows == self.turn.sequence.num_pending


class Scheduler:
    """Continuous batching with chunked prefill.

    - Decodes come first, one row each, so a voice that runs never waits for somebody's prompt;
      prompts share what is left of `max_step_rows`, oldest first.
    - A turn starts only when its worst case is reserved, and then runs to its end: nothing is ever
      preempted.
    - First come, first served over sessions: a session has at most one running and one waiting
      turn, and the waiting one joins the queue when the running one is over. A later turn of the
      session takes the waiting one's place.
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

    @property
    def waiting(self) -> tuple[RequestState, ...]:
        return (*self._queue, *self._held.values())

    @property
    def max_total_rows(self) -> int:
        """Rows of the longest sequence (prompt and reply) that can be served."""
        return min(self._limits.max_seq_len, self._limits.num_blocks * self._limits.block_size)

    def submit(self, turn: RequestState) -> RequestState | None:
        """Queue a turn; returns the waiting turn of the same session that it replaces, if any.

        Raises ContextError if it can never run, BusyError if too many wait.
        """
        if turn.max_total_rows > self.max_total_rows:
            longest = max(turn.segments, key=lambda segment: segment.max_total_rows)
            raise ContextError(
                f"What was said needs {len(longest.prompt)} rows and the reply up to "
                f"{longest.max_rows}, but only "
                f"{self.max_total_rows} fit together; send a shorter text, or allow the reply "
                f"fewer rows."
            )
        session_id = turn.request.session_id
        for index, other in enumerate(self._queue):
            if other.request.session_id == session_id:
                self._queue[index] = turn
                return other
        if session_id in self._held:
            other, self._held[session_id] = self._held[session_id], turn
            return other
        num_places = self._limits.max_batch - len(self.running)
        if len(self.waiting) >= self._max_waiting + num_places:
            raise BusyError(
                f"All places are taken and {len(self.waiting)} turns are waiting; try again in a "
                f"moment."
            )
        if any(other.request.session_id == session_id for other in self.running):
            self._held[session_id] = turn
        else:
            self._queue.append(turn)
        return None

    def schedule(self, paused: Collection[str] = ()) -> list[Share]:
        """The next step's shares, with blocks allocated for their rows; empty when there is nothing
        to run.

        `paused` holds the request ids of turns that are left out of this step but keep their
        blocks.
        """
        budget = self._limits.max_step_rows
        shares, longer = [], []
        for turn in self.running:
            if not paused or turn.owner not in paused:
                if turn.sequence.num_pending == 1:
                    shares.append(Share(turn, 1))
                else:
                    longer.append(turn)
        budget -= len(shares)
        for turn in longer:
            if budget > 0:
                shares.append(Share(turn, self._chunk(turn, budget)))
                budget -= shares[-1].num_rows
        while budget > 0 and (turn := self._admit()):
            shares.append(Share(turn, self._chunk(turn, budget)))
            budget -= shares[-1].num_rows
        for share in shares:
            self.blocks.append(share.turn.owner, share.turn.sequence.num_computed + share.num_rows)
        return shares

    def _chunk(self, turn: RequestState, budget: int) -> int:
        """How many of the turn's pending rows a step with room for `budget` takes: all, or else up
        to a block's end, where an attention plugin wants every chunk but the last to end.
        """
        sequence, size = turn.sequence, self._limits.block_size
        if sequence.num_pending <= budget:
            return sequence.num_pending
        end = (sequence.num_computed + budget) // size * size
        return end - sequence.num_computed if end > sequence.num_computed else budget

    def _admit(self) -> RequestState | None:
        """Start the first turn of the queue, if there is a place for it and its worst case can be
        reserved."""
        if not self._queue or len(self.running) == self._limits.max_batch:
            return None
        turn = self._queue[0]
        if not self.blocks.reserve(turn.owner, turn.max_total_rows):
            return None
        self._queue.popleft()
        self.running.append(turn)
        self.begin_sequence(turn)
        return turn

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
