"""A visitor's conversation, as the server keeps it; what a browser sends back of it is never believed."""

from __future__ import annotations

import base64
import html
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.audio import write_wav
from moss_engine.request import Message, Reply, Text
from moss_engine.tokens import Row
from moss_engine.ui.view import NOTES, View


@dataclass(eq=False)
class Turn:
    """What was typed and what became of it: `pcm` is the reply's sound so far, `rows` its rows when it is over."""

    typed: str
    mode: str
    spoken: str = ""
    note: str = ""
    pcm: list[bytes] = field(default_factory=list)
    sample_rate_hz: int = 0
    rows: tuple[Row, ...] = ()
    over: bool = False
    wav: Path | None = None

    def take(self, message: Mapping[str, Any], view: View) -> None:
        """Keep what a message says of this reply."""
        self.pcm.append(base64.b64decode(message["pcm"]))
        self.spoken, self.note, self.rows, self.over = view.text, view.note, view.rows, view.over
        self.sample_rate_hz = view.sample_rate_hz

    def close(self) -> None:
        """Nothing more comes; a reply that was not over was stopped."""
        if not self.over:
            self.over, self.note = True, NOTES["stopped"]


@dataclass
class Conversation:
    turns: list[Turn] = field(default_factory=list)
    session_id: str = ""

    def history(self, mode: str) -> tuple[Message, ...]:
        """The finished turns of a mode, as messages to answer after."""
        done = [turn for turn in self.turns if turn.mode == mode and turn.rows]
        return tuple(message for turn in done
                     for message in (Message("user", Text(turn.typed)), Message("assistant", Reply(turn.rows))))

    def messages(self, folder: Path) -> list[dict[str, Any]]:
        """The conversation as gr.Chatbot messages; sound of finished turns is written to `folder` once."""
        shown: list[dict[str, Any]] = []
        for turn in self.turns:
            # gr.Chatbot shows text as HTML even where it renders no Markdown.
            shown.append({"role": "user", "content": html.escape(turn.typed, quote=False)})
            said = "\n".join(part for part in (turn.spoken.strip(), turn.note) if part)
            if turn.over and said:
                shown.append({"role": "assistant", "content": html.escape(said, quote=False)})
            if turn.over and turn.wav is None and (pcm := b"".join(turn.pcm)):
                turn.wav = folder / secrets.token_urlsafe(16) / "moss-speech.wav"
                turn.wav.parent.mkdir(parents=True)
                write_wav(turn.wav, np.frombuffer(pcm, "<i2").astype(np.int16), turn.sample_rate_hz)
                turn.pcm.clear()
            if turn.wav is not None and turn.wav.exists():
                shown.append({"role": "assistant", "content": {"path": str(turn.wav), "alt_text": turn.spoken}})
        return shown
