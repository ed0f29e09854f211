"""The microphone of an open tab: its blocks in their order, one look at a time, so that what comes
meanwhile is looked at together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from moss_engine.api.errors import MossError
from moss_engine.audio.hearing import Paused
from moss_engine.ui.audio_in.ingest import AudioIngest, MicSession

MAX_LOOK_BYTES = 128 * 1024  # four seconds
MAX_WAITING_BYTES = 1 << 20  # half a minute
MAX_SAYING = 400  # letters of the answer's last words
BEHIND = "The server is too busy to listen; say it again in a moment."


@dataclass(frozen=True)
class Block:
    """int16 PCM, and what the page was playing and saying meanwhile; `played` is None where that is
    not known."""

    number: int
    pcm: bytes
    played: bytes | None
    answering: bool
    saying: str


class Microphone:
    """`tell` hands the page what was heard, `paused` is as for `MicSession`. Used on one event
    loop."""

    def __init__(
        self, ingest: AudioIngest, visitor: str, tell: Callable[..., None], paused: Paused
    ):
        self._session = MicSession(ingest, visitor, paused)
        self._tell = tell
        self._looking: asyncio.Task[None] | None = None
        self.answering, self._saying, self._has_played = False, "", False
        self._reset(0, hands_free=False)
        self._active = False

    def begin(self, recording: int, hands_free: bool) -> None:
        """A recording of that number begins, whatever was recorded before."""
        self._reset(recording, hands_free)

    def update(self, answering: bool, saying: str, has_played: bool) -> None:
        """What the page says from the next block on, and whether the second half of a block is what
        was played meanwhile."""
        self.answering, self._saying = answering, saying[-MAX_SAYING:]
        self._has_played = has_played

    def push(self, pcm: bytes) -> None:
        if not self._active:
            return
        size = len(pcm) // 2 if self._has_played else len(pcm)
        played = pcm[size:] if self._has_played else None
        self._blocks.append(Block(self._pushed, pcm[:size], played, self.answering, self._saying))
        self._pushed += 1
        self._waiting += size
        if self._waiting > MAX_WAITING_BYTES:
            self._fail(BEHIND)
        self._look()

    def end(self) -> None:
        """Nothing more comes of this recording."""
        self._ending = True
        self._look()

    def drop(self) -> None:
        """What is on its way is nobody's."""
        self._reset(0, hands_free=False)
        self._active = False

    def close(self) -> None:
        self.drop()
        if self._looking is not None:
            self._looking.cancel()
        self._session.begin(hands_free=False)  # what is being understood is nobody's, either

    def _reset(self, recording: int, hands_free: bool) -> None:
        self._recording = recording
        self._hands_free = hands_free
        self._blocks: deque[Block] = deque()
        self._pushed = self._waiting = 0
        self._is_begun = False
        self._ending, self._active = False, True

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_at_all())

    async def _look_at_all(self) -> None:
        while self._active and (self._blocks or self._ending):
            recording = self._recording
            blocks = self._take()
            last = self._ending and not self._blocks
            try:
                played = [block.played for block in blocks if block.played is not None]
                heard = await self._begun().hear(
                    b"".join(block.pcm for block in blocks),
                    played=b"".join(played) if played else None,
                    answering=any(block.answering for block in blocks),
                    end=last,
                    saying=next((b.saying for b in reversed(blocks) if b.saying), ""),
                )
            except MossError as error:
                if recording == self._recording:
                    self._fail(str(error))
                continue
            if recording != self._recording:
                continue
            self._active = not last
            block = blocks[-1].number if blocks else self._pushed - 1
            told = {"recording": recording, "block": block, "last": last, **asdict(heard)}
            self._tell("input_audio_buffer.heard", **told)

    def _begun(self) -> MicSession:
        """The session, which hears this recording."""
        if not self._is_begun:
            self._session.begin(hands_free=self._hands_free)
            self._is_begun = True
        return self._session

    def _take(self) -> list[Block]:
        """The next blocks, during which the page either answered and was heard, or not."""
        taken: list[Block] = []
        size = 0
        while self._blocks and size < MAX_LOOK_BYTES:
            if taken and _kind(self._blocks[0]) != _kind(taken[0]):
                break
            taken.append(self._blocks.popleft())
            size += len(taken[-1].pcm)
        self._waiting -= size
        return taken

    def _fail(self, sentence: str) -> None:
        recording = self._recording
        self.drop()
        self._tell("input_audio_buffer.failed", recording=recording, message=sentence)


def _kind(block: Block) -> tuple[bool, bool]:
    return block.answering, block.played is None
