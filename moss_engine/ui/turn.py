"""A turn of a conversation: what was asked, and the reply from its first event to what is history
of it. Events are folded into it, and messages for the page taken out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from moss_engine.api import metrics
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Failed,
    Finished,
    FinishReason,
    Placed,
    Sampled,
    Started,
    TextDelta,
    Thought,
    Waiting,
)
from moss_engine.api.info import ServiceInfo
from moss_engine.api.metrics import Timeline
from moss_engine.api.modes import Mode
from moss_engine.api.request import Speech, Text
from moss_engine.api.tokens import Modality, Row
from moss_engine.audio.pcm import to_pcm16
from moss_engine.audio.playback import Answered
from moss_engine.ui.audio_in.ingest import Utterance
from moss_engine.ui.clip import Clip

ENDINGS = {
    FinishReason.STOP: "done",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stopped",
}
NOTES = {
    "length": "The reply was cut at its length limit; raise it in the settings to hear more.",
    "stopped": "Stopped.",
}
GREW = (
    "The reply was cut where a sentence grew far longer than its text or than the longest reply; "
    "ask again, or raise that in the settings."
)


@dataclass
class News:
    """What no message told yet: int16 PCM, words with the sample that they are spoken at, rows, and
    their ids as they are shown, those of speech as ~id."""

    pcm: list[bytes] = field(default_factory=list)
    text: list[tuple[int, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Turn(Answered):
    """What was typed or said in a `mode`, and its reply.

    `run` names the reply in the browser and is no secret. `state` is one of waiting, thinking,
    speaking, done, length, stopped, failed; the last four end it. The question reached the page at
    `received_s` of `clock` and was accepted at `accepted_s`; a service elsewhere accepts a little
    before the page hears of it, and that little is not known here. `num_left_out` earlier messages
    did not fit beside this one, which are `left_out` turns of the conversation; `thought` is
    when a brain got how far; `placed` is the replica that makes the reply, in a cluster.

    `num_made` samples came; those of messages are `num_samples`, and their sound is `pcm` until it
    is a clip; `unkept` says why it could not become one. `pieces_of` says what text ids stand for.
    """

    mode: Mode
    run: str = ""
    seed: int = 0
    asked: str | Utterance = ""
    state: str = "waiting"
    note: str = ""
    seq: int = 0
    num_left_out: int = 0
    left_out: int = 0
    thought: dict[str, float] = field(default_factory=dict)
    placed: Placed | None = None
    num_made: int = 0
    sample_rate_hz: int = 0
    pcm: list[bytes] = field(default_factory=list)
    question_clip: Clip | None = None
    answer_clip: Clip | None = None
    unkept: str = ""
    timeline: Timeline = field(default_factory=Timeline)
    clock: Callable[[], float] = time.monotonic
    pieces_of: Callable[[list[int]], dict[str, str]] = lambda ids: {}
    received_s: float = 0.0
    accepted_s: float | None = None
    _news: News = field(default_factory=News)

    def __post_init__(self) -> None:
        self.received_s = self.clock()

    # What it is.

    @property
    def speaks(self) -> bool:
        return self.mode.output == "speech"

    @property
    def reads(self) -> bool:
        """Whether the answer is the text itself, read aloud."""
        return self.mode.split_sentences

    @property
    def content(self) -> Text | Speech:
        return Text(self.asked) if isinstance(self.asked, str) else self.asked.speech

    @property
    def utterances(self) -> set[str]:
        return set() if isinstance(self.asked, str) else set(self.asked.keys)

    @property
    def over(self) -> bool:
        return self.state in ("done", "length", "stopped", "failed")

    # What becomes of it.

    def fold(self, event: Event) -> bool:
        """One more event of the reply; whether the browser should hear of it at once, rather than
        with the next regular message. What comes behind its end counts no more."""
        if self.over:
            return False
        is_first_row = isinstance(event, Sampled) and self.timeline.first_row_s is None
        self.timeline = metrics.fold(self.timeline, event)
        if isinstance(event, Sampled | TextDelta):
            self._fold_written(event)
            return is_first_row
        if isinstance(event, AudioChunk):
            assert event.start_sample == self.num_made, "the sound has a gap"
            self.state = "speaking"
            self.num_made += len(event.samples)
            self.sample_rate_hz = event.sample_rate_hz
            # Little-endian, as browsers and WAV files want it.
            self._news.pcm.append(to_pcm16(event.samples).astype("<i2").tobytes())
        elif isinstance(event, Accepted):
            self.accepted_s = self.clock() if self.accepted_s is None else self.accepted_s
            self.num_left_out = event.num_left_out
        elif isinstance(event, Started | Waiting):
            self.state = "waiting" if isinstance(event, Waiting) else "thinking"
        elif isinstance(event, Thought):
            self.thought[event.stage] = event.time_s
        elif isinstance(event, Placed):
            self.placed = event
        elif isinstance(event, Failed):
            self.end("failed", event.message)
        else:
            assert isinstance(event, Finished)
            self.end(ENDINGS[event.reason])
        return True

    def _fold_written(self, event: Sampled | TextDelta) -> None:
        if self.state == "waiting":  # it goes on
            self.state = "speaking" if self.num_made else "thinking"
        if isinstance(event, TextDelta):
            self._news.text.append((event.start_sample, event.text))
            return
        self._news.rows.append(event.row)
        is_text = event.modality is Modality.TEXT
        self._news.ids.append(event.row.text if is_text else ~event.row.audio)

    def end(self, state: str, note: str | None = None) -> None:
        """The reply is over, with a sentence."""
        usual = GREW if state == "length" and self.reads else NOTES.get(state, "")
        self.state = state
        if not self.is_cut:
            self.note = usual if note is None else note

    def close(self) -> None:
        """Nothing more comes; a reply that was not over was stopped."""
        if not self.over:
            self.end("stopped")

    def cut(self, num_samples: int, info: ServiceInfo) -> None:
        """Only the first samples reached the ear; the rest was never said."""
        whole = self.num_samples and num_samples >= self.num_samples
        if self.speaks and not self.is_cut and not whole:
            super().cut(num_samples, info)
            self.note = NOTES["stopped"]

    # What is told of it.

    def elapsed_s(self) -> float | None:
        """Seconds since the reply was accepted, which is what events count in; None before that."""
        return None if self.accepted_s is None else self.clock() - self.accepted_s

    def heard_samples(self) -> int:
        """Samples that a listener who plays from the first chunk on has heard at the most."""
        first_s, now_s = self.timeline.first_pcm_s, self.elapsed_s()
        if first_s is None or now_s is None:
            return 0
        return min(self.num_made, int((now_s - first_s) * self.sample_rate_hz))

    def stages(self) -> dict[str, float]:
        """When each stage was reached, in seconds since the request was accepted; what came before
        that is negative."""
        timeline = self.timeline
        if self.accepted_s is None:
            return {}
        listened_s = None if isinstance(self.asked, str) else self.asked.listened_s
        said_s, understood_s = listened_s or (None, None)
        before = {"received": self.received_s, "said": said_s, "understood": understood_s}
        times = {
            "started": timeline.started_s,
            "first_row": timeline.first_row_s,
            "first_chunk": timeline.first_pcm_s,
            "finished": timeline.now_s if self.over else None,
        }
        return {
            **{name: at_s - self.accepted_s for name, at_s in before.items() if at_s is not None},
            "accepted": 0.0,
            **self.thought,
            **{name: at_s for name, at_s in times.items() if at_s is not None},
        }

    def message(self, pool: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The next message; `stream.to_wire` makes it JSON. `pool` is news of the whole
        service: counts of blocks and requests, and of each replica where there are some."""
        now_s, news = self.elapsed_s(), self._news
        message = {
            "run": self.run,
            "seq": self.seq,
            "state": self.state,
            "note": self.note,
            "end": self.over,
            "seed": self.seed,
            "speaks": self.speaks,
            "now_s": now_s,
            "stages": self.stages(),
            "figures": asdict(metrics.measure(self.timeline, now_s)),
            "pool": pool,
            "placed": asdict(self.placed) if self.placed else None,
            "rate": self.sample_rate_hz,
            "pcm": b"".join(news.pcm),
            "text": [list(delta) for delta in news.text],
            "ids": news.ids,
            "pieces": self.pieces_of(news.ids),
        }
        self.seq, self._news = self.seq + 1, News()
        if not self.is_cut:
            self.pcm += news.pcm
            self.words += news.text
            self.rows = () if self.state == "failed" else (*self.rows, *news.rows)
            self.num_samples = self.num_made
        return message

    @property
    def has_written(self) -> bool:
        """Whether there are rows or words that no message told."""
        return bool(self._news.ids or self._news.text)

    def sound(self) -> np.ndarray:
        """int16 [n] of the reply, as far as it was heard; it is forgotten here."""
        pcm = np.frombuffer(b"".join(self.pcm), "<i2").astype(np.int16)[: self.num_samples]
        self.pcm.clear()
        return pcm
