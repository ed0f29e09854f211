"""A reply that came half-way elsewhere, as a turn that goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moss_engine.api.request import Progress
from moss_engine.engine.sequence import RequestState


class Missed(NamedTuple):
    """Text of the restored rows that the listener did not receive, and how many codes come before
    it."""

    text: str = ""
    num_codes: int = 0


def open_turn(
    make: Callable[[], RequestState], progress: Progress | None, *, replays: bool
) -> tuple[RequestState, Missed]:
    """A new turn, brought to `progress`.

    With `replays` its rows are run again one by one, as they first were, so that they round alike;
    else all at once, as a prompt, which is faster. Raises InputError for rows of another reply.
    """
    turn = make()
    if progress is None:
        return turn, Missed()
    missed = Missed(turn.restore(progress.rows)[progress.num_chars :], turn.num_codes)
    if replays and not turn.is_complete:
        turn = make()
        turn.to_replay.extend(progress.rows)
    return turn, missed
