"""The microphone of an open tab: its blocks in their order, recordings and turns in them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from moss_engine.api.errors import AudioEmptyError, AudioLongError, MossError, ParameterError
from moss_engine.audio.file import MIN_S, SILENCE_PEAK
from moss_engine.audio.floor import Floor, Taken
from moss_engine.audio.hearing import Hearing, Paused
from moss_engine.audio.turn_taking import RATE_HZ, Change, is_murmur
from moss_engine.ui.audio_in.ingest import AudioIngest, Recording

BLOCK_BYTES = RATE_HZ // 5  # 0.1 s, that are heard at a time
LOOK_S = 0.35  # of new speech, whose words are shown
SHOWN_S = 0.12  # of silence: less than ends any turn
MAX_WAITING_BYTES = 1 << 20  # half a minute
MAX_SAYING = 400  # letters of the answer's last words
BEHIND = "The server is too busy to listen; say it again in a moment."
FAULT = "The program failed at what was said; say it again."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BlockResult:
    """What is known after a block: whether somebody is talking, the key and length of the recording
    that it completed (`utterance`), whose last word ended `silent_s` ago, and the `text` understood
    so far. `pauses`: the speaker is silent, and may be done. While the page answers,
    `begins` means that somebody may begin to talk, and `sure` that this is meant to interrupt."""

    talking: bool = False
    begins: bool = False
    utterance: str = ""
    seconds: float = 0.0
    text: str = ""
    sure: bool = True
    silent_s: float = 0.0
    pauses: bool = False


@dataclass
class PageSays:
    """What the page tells of its answer while it listens, as an `Answerer`: the last `words`, and
    whether it has `played` something lately. `asked` is the key of the last question."""

    answering: bool = False
    unheard: bool = False
    words: str = ""
    played: bool = False
    asked: str = ""

    def saying(self) -> str:
        return self.words

    def may_go_on(self, turn: Recording) -> bool:
        return turn.key == self.asked


@dataclass(eq=False)
class Taking:
    """A recording that is being taken, under the page's number for it."""

    number: int
    hands_free: bool
    is_begun: bool = False
    num_blocks: int = 0


class Microphone:
    """The microphone of an open tab, recording after recording, beside what the `page` says. Its
    blocks are heard one after the other, beside everything else, and `tell` hands the page what
    they brought about; `paused` is as for a `Hearing`. What is being said goes on with recordings
    of the keys `before`. Used on one event loop."""

    def __init__(
        self,
        ingest: AudioIngest,
        visitor: str = "",
        tell: Callable[..., None] = lambda kind, **fields: None,
        paused: Paused = lambda said: None,
    ):
        self.page = PageSays()
        self.before: tuple[str, ...] = ()
        self._ingest = ingest
        self._visitor = visitor
        self._tell = tell
        hearing = Hearing(
            ingest.hear,
            ingest.transcribe_partial,
            paused,
            by_words=ingest.by_words,
            max_s=ingest.max_s,
            look_s=LOOK_S,
        )
        self._floor = Floor(hearing, self.page, waits=True)
        self._taking: Taking | None = None
        self._blocks: deque[tuple[Taking, int, dict[str, Any]]] = deque()  # to be heard
        self._waiting = 0  # bytes of them
        self._hearing: asyncio.Task[None] | None = None

    # What the page sends.

    def begin(self, recording: int, hands_free: bool) -> None:
        """A recording of that number begins, whatever was recorded before."""
        self._taking = Taking(recording, hands_free)

    def push(self, pcm: bytes) -> None:
        """Few samples at a time, however many come: what a turn brings about comes before the next
        one. If the page has `played` something, that is the second half."""
        size = len(pcm) // 2 if self.page.played else len(pcm)
        for start in range(0, size, BLOCK_BYTES):
            upto = min(size, start + BLOCK_BYTES)
            out = pcm[size + start : size + upto] if self.page.played else None
            self._put(body=pcm[start:upto], played=out)

    def end(self) -> None:
        """Nothing more comes of this recording."""
        self._put(body=b"", end=True)

    def drop(self) -> None:
        """Nobody wants the recording any more, nor what of it is on its way."""
        self._taking = None

    def close(self) -> None:
        self.drop()
        if self._hearing is not None:
            self._hearing.cancel()
        self.use(hands_free=False)  # what is being understood is nobody's, either

    def _put(self, *, end: bool = False, **block: Any) -> None:
        if (taking := self._taking) is None:
            return
        self._blocks.append((taking, taking.num_blocks, {"end": end, **block}))
        taking.num_blocks += not end
        self._waiting += len(block["body"])
        if self._waiting > MAX_WAITING_BYTES:
            self._fail(taking, BEHIND)
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.ensure_future(self._hear_all())

    async def _hear_all(self) -> None:
        while self._blocks:
            taking, number, block = self._blocks.popleft()
            self._waiting -= len(block["body"])
            if taking is not self._taking:
                continue
            try:
                if not taking.is_begun:
                    self.use(hands_free=taking.hands_free)
                    taking.is_begun = True
                heard = await self.hear(**block)
            except MossError as error:
                self._fail(taking, str(error))
                continue
            except Exception:
                log.exception("a recording failed")
                self._fail(taking, FAULT)
                continue
            if taking is not self._taking:
                continue
            if last := block["end"]:
                self.drop()
            told = {"recording": taking.number, "block": number - last, "last": last}
            self._tell("input_audio_buffer.heard", **told, **asdict(heard))

    def _fail(self, taking: Taking, sentence: str) -> None:
        if taking is self._taking:
            self.drop()
            recording = taking.number
            self._tell("input_audio_buffer.failed", recording=recording, message=sentence)

    # What is heard.

    def use(self, *, hands_free: bool) -> None:
        """A new recording; what was not completed is forgotten."""
        ingest = self._ingest
        if hands_free and ingest.detector is None:
            raise ParameterError(
                "Hands-free talking is not installed here; press the button to talk."
            )
        self.before = ()
        self._floor.use(ingest.detector if hands_free else None, ingest.judge)

    async def hear(
        self, body: bytes, played: bytes | None = None, *, end: bool = False
    ) -> BlockResult:
        """Take the next int16 PCM at 16 kHz, half a second at the most; `end` completes the
        recording. `played`, as long, is what the loudspeaker was given meanwhile, where that is
        known.

        Hands-free, turns are found and completed by themselves, and `end` ends the one that goes
        on. Raises an InputError where nothing was said.
        """
        if len(body) % 2:
            raise ParameterError("A block of the recording was lost; record it again.")
        pcm = np.frombuffer(body, "<i2").astype(np.int16)
        out = None if played is None else np.frombuffer(played, "<i2").astype(np.int16)
        floor = self._floor
        told = BlockResult()
        async for taken in floor.take(pcm, out):
            told = await self._follow(taken, told)
        if not floor.hearing.finds:
            return self._record(end)
        if end:
            async for taken in floor.finish():
                told = await self._follow(taken, told)
        follower = floor.follower
        return replace(
            told,
            talking=follower.talking,
            begins=self.page.answering and follower.may_begin,
            seconds=told.seconds or follower.length_s,
            text=floor.hearing.turn.text or "",
            sure=floor.is_sure,
            pauses=follower.talking and follower.silent_s >= SHOWN_S,
        )

    def _record(self, end: bool) -> BlockResult:
        """Push to talk: everything counts, from the first block to the last."""
        hearing, follower, max_s = self._floor.hearing, self._floor.follower, self._ingest.max_s
        if follower.held_s > max_s:
            hearing.use(None)
            raise AudioLongError(f"The recording is longer than {max_s:g} s; say it in parts.")
        if not end:
            return BlockResult(True, seconds=follower.held_s, text=hearing.turn.text or "")
        whole = follower.sound
        hearing.use(None)
        if len(whole) < MIN_S * RATE_HZ:
            raise AudioEmptyError("That was too short to hold a word; talk, then press again.")
        if np.abs(whole.astype(np.int32)).max() < SILENCE_PEAK * 32768:
            raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
        recording = self._ingest.keep(whole, RATE_HZ, visitor=self._visitor)
        return BlockResult(utterance=recording.key, seconds=recording.seconds)

    async def _follow(self, taken: Taken, told: BlockResult) -> BlockResult:
        """Hands-free: a turn that begins or ends."""
        heard, floor = taken.heard, self._floor
        if heard.change is Change.BEGAN:
            self.before = taken.mends.called.keys if taken.mends else ()
        if heard.change is not Change.ENDED:
            return told
        assert heard.pcm is not None, "a turn that ended has its sound"
        words, by_words = await taken.understood.words(heard.num_spoken), self._ingest.by_words
        # Another language than the recogniser's is none to a checkpoint that hears by itself.
        if words is not None and (by_words or words.sure) and is_murmur(words.text):
            floor.hearing.paused(None)
            return told
        recording = self._ingest.keep(
            heard.pcm,
            RATE_HZ,
            known=await taken.understood.speech(heard.num_spoken),
            visitor=self._visitor,
            before=self.before,
        )
        self.page.asked = recording.key
        floor.ended(taken, recording)
        silent_s = heard.silent_s + (floor.follower.num_taken - heard.at) / RATE_HZ
        return replace(told, utterance=recording.key, seconds=recording.seconds, silent_s=silent_s)
