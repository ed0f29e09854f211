"""When the page's player would have sounded: `live_audio_worklet.js` by the times at which sound
arrives, without a browser. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

PREBUFFER_S, MAX_PREBUFFER_S = 0.04, 0.4
MAX_WAIT_S, MARGIN, SPARE_S = 1.5, 1.25, 0.04
FADE_S = 0.004
BLOCK_S = 128 / 24_000  # samples that the browser plays at a time


@dataclass
class Played:
    """A reply at the listener: when it began to sound, where it stopped although more was to come,
    the silence that this inserted, and the least sound that was left when more came, in seconds.
    """

    began_s: float | None = None
    least_left_s: float = math.inf
    gaps: int = 0
    gaps_s: float = 0.0
    heard_s: float = 0.0


class Playback:
    """One listener's player, told of everything with the time, which never goes back. It starts a
    reply with PREBUFFER_S of it, and with more after replies that were late."""

    def __init__(self) -> None:
        self._least = max(PREBUFFER_S, FADE_S + BLOCK_S)
        self._first_target = self._least
        self._late = 0.0  # by which earlier replies came late, or nearly did
        self._opening = 0.0  # sound that came first of the reply before
        self._held_at: float | None = None
        self._held = 0.0
        self._begin()

    @property
    def held(self) -> bool:
        return self._held_at is not None

    def sounds(self, now_s: float) -> bool:
        """Sound of a reply has come, and not all of it was heard."""
        self._until(now_s)
        return self._state in ("fill", "play")

    def over(self, now_s: float) -> bool:
        """All of the reply was heard."""
        self._until(now_s)
        return self._state == "done"

    def push(self, now_s: float, seconds: float) -> None:
        """Sound arrives."""
        now = self._until(now_s)
        if self._state == "idle":
            self._state, self._since, self._first = "fill", now, seconds
        else:
            left = 0.0 if self._played.gaps else self._buffered
            self._played.least_left_s = min(self._played.least_left_s, left)
            self._lateness = max(self._lateness, now - self._since - self._received)
        self._received += seconds
        self._buffered += seconds
        self._until(now_s)

    def end(self, now_s: float) -> None:
        """Nothing more will come."""
        self._until(now_s)
        self._ended = True

    def hold(self, now_s: float) -> None:
        """Silence, until `go_on`."""
        if self._held_at is None:
            self._until(now_s)
            self._held_at = now_s

    def go_on(self, now_s: float) -> None:
        if self._held_at is not None:
            self._held += now_s - self._held_at
            self._held_at = None

    def now(self, now_s: float) -> Played:
        """The reply so far."""
        self._until(now_s)
        return self._played

    def leave(self, now_s: float) -> Played:
        """The reply makes room for the next one. After one that starved, that begins with the
        buffer which this one needed in the end."""
        played = self.now(now_s)
        self.go_on(now_s)
        self._first_target = (
            self._target if played.gaps else max(self._least, self._first_target / 2)
        )
        if self._received:
            needed = MARGIN * (self._lateness + SPARE_S)
            self._late = min(MAX_WAIT_S, max(needed, self._late / 2))
            self._opening = self._first
        self._begin()
        return played

    def _begin(self) -> None:
        self._played = Played()
        self._state, self._ended = "idle", False
        self._buffered = self._received = self._first = self._since = self._at = 0.0
        self._lateness = -math.inf
        self._target = self._first_target

    def _until(self, now_s: float) -> float:
        """Play up to there; that time on the player's own clock, which stands while it is held."""
        now = (now_s if self._held_at is None else self._held_at) - self._held
        while self._at < now and (self._fill(now) if self._state == "fill" else self._play(now)):
            pass
        self._at = max(self._at, now)
        return now

    def _fill(self, now: float) -> bool:
        """Wait for enough of it; whether it sounds before `now`."""
        begin, first = self._at, self._played.began_s is None
        if first and self._buffered < self._opening + 2 * self._late:
            begin = max(begin, self._since + self._late)
        enough = self._buffered >= self._target and begin < now
        if not enough and not (self._ended and self._buffered):
            if not first:
                self._played.gaps_s += now - self._at
            return False
        begin = begin if enough else self._at
        if first:
            self._played.began_s = begin + self._held
        self._state, self._at = "play", begin
        return True

    def _play(self, now: float) -> bool:
        """Sound; whether it starves before `now`."""
        if self._state != "play":
            self._state = "done" if self._ended and self._buffered == 0 else self._state
            return False
        least = 0.0 if self._ended else FADE_S
        lasts = max(0.0, self._buffered - least)
        heard = min(now - self._at, lasts)
        self._buffered -= heard
        self._played.heard_s += heard
        self._at += heard
        if heard < lasts:
            return False
        if self._ended:
            self._state = "done"
            return False
        self._played.gaps += 1
        self._target = min(2 * self._target, MAX_PREBUFFER_S)
        self._state = "fill"
        return True
