"""The microphone of an open tab: its blocks in their order, recordings and turns in them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moss_engine.api.errors import AudioEmptyError, AudioLongError, MossError, ParameterError
from moss_engine.api.request import Speech
from moss_engine.audio.file import MIN_S, SILENCE_PEAK
from moss_engine.audio.follower import Heard
from moss_engine.audio.hearing import Hearing, Paused, Understanding
from moss_engine.audio.turn_taking import RATE_HZ, Change, is_murmur
from moss_engine.ui.audio_in.ingest import JOIN, AudioIngest, Recording

LOOK_S = 0.35  # of new speech, whose words are shown
SHOWN_S = 0.15  # of silence
MAX_WAITING_BYTES = 1 << 20  # half a minute
MAX_SAYING = 400  # letters of the answer's last words
BEHIND = "The server is too busy to listen; say it again in a moment."


@dataclass(frozen=True)
class BlockResult:
    """What a block brought about: whether somebody is talking, the utterance of the recordings that
    it completed, and `text`, what was understood so far. The last word of what it completed ended
    `silent_s` before its end. `pauses`: whoever talks is silent, and may be done. While the page
    answers, `sure` says that somebody means to interrupt it."""

    talking: bool = False
    utterance: str = ""
    seconds: float = 0.0
    text: str = ""
    sure: bool = True
    silent_s: float = 0.0
    pauses: bool = False


class MicSession:
    """One microphone of a visitor, recording after recording. `paused` is as for a `Hearing`."""

    def __init__(self, ingest: AudioIngest, visitor: str = "", paused: Paused = lambda said: None):
        self._ingest = ingest
        self._visitor = visitor
        self._saying = ""  # the words of the answer that were last said
        self._hearing = Hearing(
            ingest.hear,
            ingest.transcribe_partial,
            paused,
            by_words=ingest.by_words,
            max_s=ingest.max_s,
            look_s=LOOK_S,
        )

    def begin(self, *, hands_free: bool) -> None:
        """A new recording; what was not completed is forgotten."""
        ingest = self._ingest
        if hands_free and ingest.detector is None:
            raise ParameterError(
                "Hands-free talking is not installed here; press the button to talk."
            )
        self._hearing.use(ingest.detector if hands_free else None, ingest.judge)

    async def hear(
        self,
        body: bytes,
        *,
        answering: bool,
        end: bool,
        saying: str = "",
        played: bytes | None = None,
    ) -> BlockResult:
        """Take the next int16 PCM at 16 kHz; `end` completes the recording. `played`, as long, is
        what the loudspeaker was given meanwhile, where that is known.

        Hands-free, turns are found and completed by themselves, and `end` ends the one that goes
        on; `answering` says that the page is talking meanwhile, and `saying` its last words. Raises
        an InputError where nothing was said.
        """
        if len(body) % 2:
            raise ParameterError("A block of the recording was lost; record it again.")
        self._saying = saying or self._saying
        pcm = np.frombuffer(body, "<i2").astype(np.int16)
        out = None if played is None else np.frombuffer(played, "<i2").astype(np.int16)
        found = await self._hearing.take(pcm, answering=answering, played=out)
        if not self._hearing.finds:
            return self._record(end)
        return await self._follow(found + (self._hearing.finish() if end else []))

    def _record(self, end: bool) -> BlockResult:
        """Push to talk: everything counts, from the first block to the last."""
        hearing, max_s = self._hearing, self._ingest.max_s
        if hearing.follower.held_s > max_s:
            hearing.use(None)
            raise AudioLongError(f"The recording is longer than {max_s:g} s; say it in parts.")
        if not end:
            hearing.look()
            return BlockResult(True, seconds=hearing.follower.held_s, text=hearing.turn.text or "")
        whole = hearing.follower.sound
        hearing.use(None)
        if len(whole) < MIN_S * RATE_HZ:
            raise AudioEmptyError("That was too short to hold a word; talk, then press again.")
        if np.abs(whole.astype(np.int32)).max() < SILENCE_PEAK * 32768:
            raise AudioEmptyError("We heard nothing; check the microphone and speak a sentence.")
        recording = self._keep(whole)
        return BlockResult(utterance=recording.key, seconds=recording.seconds)

    async def _follow(self, found: list[tuple[Heard, Understanding]]) -> BlockResult:
        """Hands-free: the turns that a block completes, or the end of the microphone."""
        hearing, follower = self._hearing, self._hearing.follower
        turns = [(heard, known) for heard, known in found if heard.change is Change.ENDED]
        kept = [one for turn in turns if (one := await self._keep_turn(*turn))]
        if turns and not kept:
            hearing.paused(None)
        hearing.look()
        sure = not (hearing.transcribe_partial and follower.interrupts)
        last = turns[-1][0] if turns else None
        return BlockResult(
            follower.talking,
            JOIN.join(recording.key for recording in kept),
            sum(recording.seconds for recording in kept) or follower.length_s,
            hearing.turn.text or "",
            sure or hearing.means_it(self._saying),
            last.silent_s + (follower.num_taken - last.at) / RATE_HZ if last else 0.0,
            follower.talking and follower.silent_s >= SHOWN_S,
        )

    async def _keep_turn(self, turn: Heard, understood: Understanding) -> Recording | None:
        """A turn that is over; None where it held no words, but a cough or a murmur."""
        assert turn.pcm is not None, "a turn that ended has its sound"
        words, by_words = await understood.words(turn.num_spoken), self._ingest.by_words
        if words is not None and (by_words or words.sure):
            # Another language than the recogniser's is none to a checkpoint that hears by itself.
            if is_murmur(words.text):
                return None
            if turn.interrupts and not self._hearing.meant(words.text, turn.spoken_s, self._saying):
                return None
        self._hearing.keep(turn)
        return self._keep(turn.pcm, await understood.speech(turn.num_spoken))

    def _keep(self, pcm: np.ndarray, known: Speech | None = None) -> Recording:
        """What is not `known` is heard once more, or refused."""
        return self._ingest.keep(pcm, RATE_HZ, known=known, visitor=self._visitor)


@dataclass(eq=False)
class Taking:
    """A recording that is being taken, under the page's number for it."""

    number: int
    hands_free: bool
    is_begun: bool = False
    num_blocks: int = 0


class Microphone:
    """A `MicSession` whose blocks are heard one after the other, beside everything else. `tell`
    hands the page what they brought about. Used on one event loop."""

    def __init__(
        self, ingest: AudioIngest, visitor: str, tell: Callable[..., None], paused: Paused
    ):
        self._session = MicSession(ingest, visitor, paused)
        self._tell = tell
        self._taking: Taking | None = None
        self._blocks: deque[tuple[Taking, int, dict[str, Any]]] = deque()  # to be heard
        self._waiting = 0  # bytes of them
        self._hearing: asyncio.Task[None] | None = None
        self.answering, self._saying, self._has_played = False, "", False

    def begin(self, recording: int, hands_free: bool) -> None:
        """A recording of that number begins, whatever was recorded before."""
        self._taking = Taking(recording, hands_free)

    def update(self, answering: bool, saying: str, has_played: bool) -> None:
        """What the page says from the next block on, and whether the second half of a block is what
        was played meanwhile."""
        self.answering, self._saying = answering, saying[-MAX_SAYING:]
        self._has_played = has_played

    def push(self, pcm: bytes) -> None:
        size = len(pcm) // 2 if self._has_played else len(pcm)
        self._put(
            body=pcm[:size],
            played=pcm[size:] if self._has_played else None,
            answering=self.answering,
            end=False,
            saying=self._saying,
        )

    def end(self) -> None:
        """Nothing more comes of this recording."""
        self._put(body=b"", answering=False, end=True)

    def drop(self) -> None:
        """What is on its way is nobody's."""
        self._taking = None

    def close(self) -> None:
        self.drop()
        if self._hearing is not None:
            self._hearing.cancel()
        self._session.begin(hands_free=False)  # what is being understood is nobody's, either

    def _put(self, **block: Any) -> None:
        if (taking := self._taking) is None:
            return
        self._blocks.append((taking, taking.num_blocks, block))
        taking.num_blocks += not block["end"]
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
                    self._session.begin(hands_free=taking.hands_free)
                    taking.is_begun = True
                heard = await self._session.hear(**block)
            except MossError as error:
                self._fail(taking, str(error))
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
