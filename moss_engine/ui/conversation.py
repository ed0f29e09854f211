"""A visitor's conversation, as the server keeps it; what a browser sends back of it is never
believed.

Its history holds what was said and what was heard: codes of recordings, so that nothing is encoded
twice, and rows of replies up to the last sample that reached the ear, so that their keys and values
are found again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Reply, Speech, Text
from moss_engine.api.tokens import Row, rows_until_code
from moss_engine.ui.audio_in.clip import Clip, cut_clip, write_clip
from moss_engine.ui.audio_in.recordings import Utterance
from moss_engine.ui.view import NOTES, View

POSITION = re.compile(r"([0-9a-f]{8}):(\d{1,12})")


class PlaybackPosition(NamedTuple):
    """How much of a reply reached the ear: the reply's run, and a number of samples."""

    run: str
    samples: int

    @staticmethod
    def read(text: str) -> PlaybackPosition | None:
        """RUN:SAMPLES; None where a browser says something else, or nothing."""
        found = POSITION.fullmatch(text)
        return PlaybackPosition(found[1], int(found[2])) if found else None


@dataclass(eq=False)
class Turn:
    """What was typed or said, and what became of it.

    `remembered`: it is history for later turns; `speaks`: it is answered by speech; `reads`: the
    answer is the text itself, read aloud; `through_text`: it is history as words. `pcm` is the
    reply's sound so far, until it is a clip, `unkept` why it could not become one; `rows` its rows,
    `heard` the samples that reached the ear if not all did.
    `left_out` earlier turns did not fit beside this one.
    """

    asked: str | Utterance
    remembered: bool
    speaks: bool = True
    reads: bool = False
    run: str = ""
    said: list[tuple[int, str]] = field(default_factory=list)  # (first sample, text)
    note: str = ""
    pcm: list[bytes] = field(default_factory=list)
    num_samples: int = 0
    sample_rate_hz: int = 0
    rows: tuple[Row, ...] = ()
    over: bool = False
    heard: int | None = None
    left_out: int = 0
    question_clip: Clip | None = None
    answer_clip: Clip | None = None
    through_text: bool = False
    unkept: str = ""

    @property
    def content(self) -> Text | Speech:
        return Text(self.asked) if isinstance(self.asked, str) else self.asked.speech

    @property
    def utterances(self) -> set[str]:
        return set() if isinstance(self.asked, str) else set(self.asked.keys)

    @property
    def spoken(self) -> str:
        """The reply's text, as far as it was heard."""
        return "".join(
            text for start, text in self.said if self.heard is None or start < self.heard
        )

    def take(self, message: Mapping[str, Any], view: View) -> None:
        """Keep what a message says of this reply."""
        self.run = view.run
        self.pcm.append(message["pcm"])
        self.said += [(start, text) for start, text in message["text"]]
        self.note, self.over = view.note, view.over
        self.rows = () if view.state == "failed" else view.rows
        self.num_samples, self.sample_rate_hz = view.num_samples, view.sample_rate_hz

    def close(self) -> None:
        """Nothing more comes; a reply that was not over was stopped."""
        if not self.over:
            self.over, self.note = True, NOTES["stopped"]

    def cut(self, heard: int) -> None:
        """Only the first `heard` samples reached the ear; the rest was never said."""
        if (
            self.speaks
            and self.heard is None
            and (heard < self.num_samples or not self.num_samples)
        ):
            self.heard, self.note = heard, NOTES["stopped"]
            if self.answer_clip:
                self.answer_clip = _kept(self, partial(cut_clip, self.answer_clip, heard))

    def heard_rows(self, info: ServiceInfo) -> tuple[Row, ...]:
        """The rows of what was heard."""
        if self.heard is None:
            return self.rows
        return rows_until_code(self.rows, info.num_codes(self.heard), info.ids)

    def sound(self) -> np.ndarray:
        """int16 [n] of the reply, as far as it was heard; it is forgotten here."""
        pcm = np.frombuffer(b"".join(self.pcm), "<i2").astype(np.int16)[: self.heard]
        self.pcm.clear()
        return pcm


@dataclass(eq=False)
class Conversation:
    """`forgotten` turns, from the first on, are history no longer; `voice` is the visitor's own; it
    was last used at `used_s`."""

    turns: list[Turn] = field(default_factory=list)
    session_id: str = ""
    visitor: str = ""
    forgotten: int = 0
    voice: str = ""
    used_s: float = 0.0
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, earlier: Conversation) -> None:
        """This conversation goes on where another one ended."""
        self.turns[:0] = earlier.turns
        self.forgotten += earlier.forgotten

    def history(self, info: ServiceInfo) -> tuple[Message, ...]:
        """The turns to answer after: those remembered, of any mode, of whose reply something was
        heard."""
        return tuple(
            message
            for turn, answer in self._remembered(info)[self.forgotten :]
            for message in (Message("user", turn.content), Message("assistant", answer))
        )

    def forget(self, num_messages: int) -> None:
        """The service left out so many messages of the history, the earliest ones."""
        self.forgotten += num_messages // 2

    def add(self, turn: Turn) -> None:
        """A turn was accepted; earlier ones that hold the same recordings are replaced by it."""
        if turn not in self.turns:
            self.turns = [
                other for other in self.turns if not other.utterances & turn.utterances
            ] + [turn]

    def cut(self, heard: str) -> None:
        """Note what was heard of a reply, where `heard` is a PlaybackPosition."""
        position = PlaybackPosition.read(heard)
        with self._writing:
            for turn in self.turns:
                if position and turn.remembered and turn.run == position.run:
                    turn.cut(position.samples)

    def entries(self, folder: Path) -> list[dict[str, Any]]:
        """What was said so far, for the page's Transcript; sound of finished turns is written to
        `folder` once, and not kept otherwise."""
        with self._writing:
            return [
                entry | {"reads": turn.reads, "id": f"{turn.run}:{entry['role'][0]}"}
                for turn in self.turns
                for entry in (_question(turn, folder), *_answer(turn, folder))
            ]

    def _remembered(self, info: ServiceInfo) -> list[tuple[Turn, Text | Reply]]:
        found: list[tuple[Turn, Text | Reply]] = []
        for turn in self.turns:
            if not turn.remembered:
                continue
            if turn.through_text and (words := turn.spoken.strip()):
                found.append((turn, Text(words)))
            elif not turn.through_text and (rows := turn.heard_rows(info)):
                found.append((turn, Reply(rows)))
        return found


def _question(turn: Turn, folder: Path) -> dict[str, Any]:
    if isinstance(turn.asked, str):
        return _entry("user", turn.asked)
    if turn.question_clip is None and len(turn.asked.pcm):
        turn.question_clip = _kept(
            turn, partial(write_clip, folder, turn.asked.pcm, turn.asked.rate_hz)
        )
        turn.asked = replace(turn.asked, pcm=turn.asked.pcm[:0].copy())
    transcript = turn.asked.speech.transcript
    if transcript is None:
        return _entry("user", "", clip=turn.question_clip)
    return _entry(
        "user", transcript.text, f"As {transcript.recogniser} heard it.", turn.question_clip
    )


def _answer(turn: Turn, folder: Path) -> list[dict[str, Any]]:
    if not turn.over:
        return []
    left_out = (
        f"The first {turn.left_out} turns no longer fit beside this one and were left out."
        if turn.left_out
        else ""
    )
    if turn.answer_clip is None and len(pcm := turn.sound()):
        turn.answer_clip = _kept(turn, partial(write_clip, folder, pcm, turn.sample_rate_hz))
    note = " ".join(part for part in (turn.note, left_out, turn.unkept) if part)
    return [_entry("assistant", turn.spoken.strip(), note, turn.answer_clip)]


def _kept(turn: Turn, make: Callable[[], Clip | None]) -> Clip | None:
    """The clip that is made so; None where there is no room for it, which the turn then says."""
    try:
        return make()
    except OSError as error:
        turn.unkept = f"Its sound cannot be heard again: {error.strerror}."
        return None


def _entry(role: str, text: str, note: str = "", clip: Clip | None = None) -> dict[str, Any]:
    return {
        "role": role,
        "text": text,
        "note": note,
        "clip": clip.message() if clip and clip.path.exists() else None,
    }
