"""What the page knows of a reply: a pure fold of the service's events, and the messages that carry
it to the browser.

    view = fold(view, event)            after every event
    message, view = take(view, now_s)   whenever something is to be shown: what is new since the
                                        last message

A message holds everything that changed: PCM, text with the sample from which on it is spoken,
sampled ids, and the stages and figures of the reply so far. The PCM of all messages joined is the
reply's sound.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
    Transcribed,
)
from moss_engine.api.metrics import Timeline
from moss_engine.api.tokens import Modality, Row
from moss_engine.api.transcript import Transcript
from moss_engine.audio.pcm import to_pcm16

ENDINGS = {
    FinishReason.STOP: "done",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stopped",
}
NOTES = {
    "length": "The reply was cut at its length limit; raise it in the settings to hear more.",
    "stopped": "Stopped.",
}
GREW = "The reply was cut where it grew far longer than its text; ask again."


@dataclass(frozen=True)
class View:
    """A reply after some events.

    `run` names it in the browser and is no secret; `speaks` says whether sound is to come, `reads`
    that it is the text itself;
    `received_s` is when the question reached the page, before it was accepted and so negative.
    `rows` are those of the messages so far, `new_*` wait for the next one. `num_left_out` earlier
    messages did not fit beside this one; `transcript` is what a recogniser understood of the
    question, `listened_s` from when to when it listened, and `thought` when a brain got how far;
    `placed` is the replica that makes the reply, in a cluster. `parts` are
    the stretches of the reply, each a stream of the codec: row and sample at which they begin;
    `pauses` are the codes of silence that are heard after a row.
    `state` is one of waiting, thinking, speaking,
    done, length, stopped, failed; the last four end it.
    """

    run: str
    seed: int
    speaks: bool = True
    reads: bool = False
    received_s: float | None = None
    num_left_out: int = 0
    transcript: Transcript | None = None
    listened_s: tuple[float, float] | None = None
    thought: Mapping[str, float] = field(default_factory=dict)
    placed: Placed | None = None
    state: str = "waiting"
    note: str = ""
    seq: int = 0
    timeline: Timeline = field(default_factory=Timeline)
    text: str = ""
    num_samples: int = 0
    sample_rate_hz: int = 0
    rows: tuple[Row, ...] = ()
    new_pcm: tuple[bytes, ...] = ()
    new_text: tuple[tuple[int, str], ...] = ()
    new_rows: tuple[Row, ...] = ()
    new_ids: tuple[int, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    pauses: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def accepted(self) -> bool:
        return self.timeline.accepted_s is not None

    @property
    def over(self) -> bool:
        return self.state in ("done", "length", "stopped", "failed")

    def heard_samples(self, now_s: float | None) -> int:
        """Samples that a listener who plays from the first chunk on has heard at the most."""
        first_s = self.timeline.first_pcm_s
        if first_s is None or now_s is None:
            return 0
        return min(self.num_samples, int((now_s - first_s) * self.sample_rate_hz))

    def stages(self) -> dict[str, float]:
        """When each stage was reached, in seconds since the request was accepted; `received` was
        before that."""
        t = self.timeline
        if t.accepted_s is None:
            return {}
        thought = {name: t.accepted_s + at_s for name, at_s in self.thought.items()}
        times = {
            "accepted": t.accepted_s,
            **thought,
            "started": t.started_s,
            "first_row": t.first_row_s,
            "first_chunk": t.first_pcm_s,
        }
        if self.over:
            times["finished"] = t.now_s
        stages = {name: at_s - t.accepted_s for name, at_s in times.items() if at_s is not None}
        before = {} if self.received_s is None else {"received": self.received_s}
        if self.listened_s is not None:
            before |= {"said": self.listened_s[0], "understood": self.listened_s[1]}
        return stages | before


def fold(view: View, event: Event) -> View:
    """The view after one more event; nothing follows a terminal one."""
    assert not view.over, "an event after the terminal one"
    view = replace(view, timeline=metrics.fold(view.timeline, event))
    if isinstance(event, Started):
        return replace(view, state="thinking")
    if isinstance(event, Sampled):
        shown_id = event.row.text if event.modality is Modality.TEXT else ~event.row.audio
        begins = (len(view.rows) + len(view.new_rows), view.num_samples)
        return replace(
            view,
            new_ids=(*view.new_ids, shown_id),
            new_rows=(*view.new_rows, event.row),
            pauses=(*view.pauses, (begins[0], event.silence)) if event.silence else view.pauses,
            parts=view.parts if event.part < len(view.parts) else (*view.parts, begins),
        )
    if isinstance(event, TextDelta):
        new = (event.start_sample, event.text)
        return replace(view, text=view.text + event.text, new_text=(*view.new_text, new))
    if isinstance(event, AudioChunk):
        assert event.start_sample == view.num_samples, "the sound has a gap"
        return replace(
            view,
            state="speaking",
            num_samples=view.num_samples + len(event.samples),
            sample_rate_hz=event.sample_rate_hz,
            new_pcm=(*view.new_pcm, _pcm(event)),
        )
    if isinstance(event, Failed):
        return fail(view, event.message)
    if isinstance(event, Finished):
        state = ENDINGS[event.reason]
        note = GREW if state == "length" and view.reads else NOTES.get(state, "")
        return replace(view, state=state, note=note)
    if isinstance(event, Transcribed):
        return replace(view, transcript=event.transcript)
    if isinstance(event, Thought):
        return replace(view, thought={**view.thought, event.stage: event.time_s})
    if isinstance(event, Placed):
        return replace(view, placed=event)
    assert isinstance(event, Accepted)
    return replace(view, num_left_out=event.num_left_out)


def fail(view: View, message: str) -> View:
    """The reply ends with a sentence."""
    return replace(view, state="failed", note=message)


def halt(view: View) -> View:
    """The reply was stopped before it began."""
    return replace(view, state="stopped", note=NOTES["stopped"])


def urgent(event: Event, before: View) -> bool:
    """Whether the browser should hear of an event at once, rather than with the next regular
    message."""
    first_row = isinstance(event, Sampled) and before.timeline.first_row_s is None
    return first_row or not isinstance(event, Sampled | TextDelta)


def take(
    view: View, now_s: float | None, pool: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], View]:
    """The next message and the view with nothing new in it; `to_wire` makes it JSON.

    `now_s` is seconds since the request was accepted, None before; `pool` is what is known of the
    whole service: counts of blocks and requests, and of each replica where there are some.
    """
    message = {
        "run": view.run,
        "seq": view.seq,
        "state": view.state,
        "note": view.note,
        "end": view.over,
        "seed": view.seed,
        "speaks": view.speaks,
        "now_s": now_s,
        "stages": view.stages(),
        "transcript": asdict(view.transcript) if view.transcript else None,
        "figures": asdict(metrics.measure(view.timeline, now_s)),
        "pool": dict(pool or {}),
        "placed": asdict(view.placed) if view.placed else None,
        "rate": view.sample_rate_hz,
        "pcm": b"".join(view.new_pcm),
        "text": [list(delta) for delta in view.new_text],
        "ids": list(view.new_ids),
        "parts": [list(part) for part in view.parts],
        "pauses": [[row, list(codes)] for row, codes in view.pauses],
    }
    return message, replace(
        view,
        seq=view.seq + 1,
        rows=view.rows + view.new_rows,
        new_rows=(),
        new_pcm=(),
        new_text=(),
        new_ids=(),
    )


def to_wire(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as JSON: its int16 PCM in base64."""
    return {**message, "pcm": base64.b64encode(message["pcm"]).decode("ascii")}


def _pcm(chunk: AudioChunk) -> bytes:
    """int16 PCM, little-endian as browsers and WAV files want it."""
    return to_pcm16(chunk.samples).astype("<i2").tobytes()
