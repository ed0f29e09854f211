"""What a recogniser understands of a turn while it is said, looked at now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from moss_engine.api.transcript import Transcript
from moss_engine.audio.follower import Follower
from moss_engine.audio.turn_taking import LOOK_S as PAUSED_S
from moss_engine.audio.turn_taking import RATE_HZ

TranscribePartial = Callable[[np.ndarray, int], Awaitable[Transcript | None]]

LOOK_S = 0.35
"""New speech that is worth another look."""
MOST_S = 15.0
"""A longer turn is heard when it is over: looking at it again and again would cost too much."""


class Partial:
    """Of one microphone, used on one event loop. `text` is what was understood so far; `seen` is
    called when that is more."""

    def __init__(self, transcribe_partial: TranscribePartial, seen: Callable[[], None]):
        self._transcribe_partial = transcribe_partial
        self._told = seen
        self.begin()

    def begin(self) -> None:
        """A new turn; what was being looked at is given up."""
        self.text = ""
        self.transcript: Transcript | None = None
        self._covers = 0
        self._looking: asyncio.Task[Transcript | None] | None = None
        self._looks_at = 0

    def covers(self, num_spoken: int) -> bool:
        """Whether everything up to that many samples of the turn was understood."""
        return self._covers >= num_spoken > 0

    def look(self, follower: Follower) -> None:
        """At the turn that goes on, if that is worth it."""
        num_spoken = follower.num_spoken
        too_long = num_spoken > MOST_S * RATE_HZ
        if self._looking is not None or too_long or self.covers(num_spoken):
            return
        grown_s = (num_spoken - self._covers) / RATE_HZ
        if grown_s < LOOK_S and follower.silent_s < PAUSED_S:
            return
        wave = follower.sound.astype(np.float32) / 32768
        self._looks_at = num_spoken
        self._looking = asyncio.ensure_future(self._transcribe_partial(wave, RATE_HZ))
        self._looking.add_done_callback(self._seen)

    async def settled(self, num_spoken: int) -> Transcript | None:
        """What was understood of the whole turn, if that is known or being found out."""
        if self._looking is not None and self._looks_at >= num_spoken:
            await asyncio.wait({self._looking})
        return self.transcript if self.covers(num_spoken) else None

    def _seen(self, task: asyncio.Task[Transcript | None]) -> None:
        if task is not self._looking:  # of a turn that is over
            if not task.cancelled():
                task.exception()
            return
        self._looking = None
        if task.cancelled() or task.exception() is not None:
            return
        found = task.result()
        if found is not None:
            self.text, self.transcript, self._covers = found.text, found, self._looks_at
            self._told()
