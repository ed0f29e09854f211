"""From a reply's events to messages at the pace of a listener.

Events are taken as they come, and sound is acknowledged as a listener who plays from the first
chunk on hears it: the service makes a bounded stretch more than that, which is how far the browser
is led.

A view is what the page shows of a reply: events are folded into it, and messages taken out of it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from moss_engine.api import metrics
from moss_engine.api.errors import MossError
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
    Waiting,
)
from moss_engine.api.metrics import Timeline
from moss_engine.api.service import ReplyStream
from moss_engine.api.tokens import Modality, Row
from moss_engine.api.transcript import Transcript
from moss_engine.audio.opus import RATES_HZ, OpusStream
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
    if isinstance(event, Started | Waiting):
        return replace(view, state="waiting" if isinstance(event, Waiting) else "thinking")
    if view.state == "waiting" and isinstance(event, Sampled | TextDelta):  # it goes on
        view = replace(view, state="speaking" if view.num_samples else "thinking")
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


TICK_S = 0.1  # between messages that carry no sound and no news of a stage
SILENCE_S = 0.25  # longest time without a message: how late a lost connection may be noticed
Messages = AsyncGenerator[dict[str, Any], None]
WAYS = ("pcm", "opus")
TICKS_S = {"pcm": TICK_S, "opus": SILENCE_S}  # between messages without sound
DIGITS = 5  # after the point, of seconds and figures: less than half a sample
NAME = ("run", "seq")
FOLDED = ("figures", "stages", "pool")  # of which what changed is told
NEW = ("text", "ids", "pieces", "head")  # of one message; all others last until they change


class Pool(Protocol):
    """Counts of the whole service; those of `now` where older ones will not do: the page begins a
    reply a little later for each that is made beside it."""

    def __call__(self, *, now: bool) -> Awaitable[Mapping[str, Any]]: ...


class ReplyClock:
    """The page's clock as seconds since a reply was accepted, which is what events count in.

    `received_s` is when the question reached the page, `listened_s` from when to when a recogniser
    listened to it. A service elsewhere accepts a little before
    the page hears of it; that little is not known here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.received_s = clock()
        self.listened_s: tuple[float, float] | None = None
        self._accepted_s: float | None = None

    def accepted(self) -> None:
        self._accepted_s = self._accepted_s or self._clock()

    def begun(self, asked_s: float, accepted_s: float) -> None:
        """The reply was asked for and accepted before it was wanted."""
        self.received_s, self._accepted_s = asked_s, accepted_s

    def elapsed_s(self) -> float | None:
        """Seconds since the reply was accepted; None before that."""
        return None if self._accepted_s is None else self._clock() - self._accepted_s

    @property
    def received_before_s(self) -> float | None:
        """When the question reached the page, in the events' time: negative."""
        return None if self._accepted_s is None else self.received_s - self._accepted_s

    @property
    def listened_before_s(self) -> tuple[float, float] | None:
        """The same, in the events' time."""
        if self._accepted_s is None or self.listened_s is None:
            return None
        return self.listened_s[0] - self._accepted_s, self.listened_s[1] - self._accepted_s


async def messages(
    reply: ReplyStream, view: View, clock: ReplyClock, pool: Pool, tick_s: float = TICK_S
) -> AsyncGenerator[tuple[dict[str, Any], View], None]:
    """Every message of a reply with the view after it; the last one has `end`. Between
    those that are urgent there are at least `tick_s`.

    Leaving early, by break or cancellation, stops the reply.
    """
    sent_s = time.monotonic()
    async with contextlib.aclosing(ticking(reply.events(acknowledge=False), TICK_S)) as ticks:
        while not view.over:
            due = False
            reply.acknowledge(view.heard_samples(clock.elapsed_s()))
            event = await anext(ticks)
            if event is not None:
                due = urgent(event, view)
                if isinstance(event, Accepted):
                    clock.accepted()
                    listened_s = clock.listened_before_s
                    view = replace(view, received_s=clock.received_before_s, listened_s=listened_s)
                view = fold(view, event)
            waited_s = time.monotonic() - sent_s
            if (
                due
                or waited_s >= SILENCE_S
                or (waited_s >= tick_s and (view.new_ids or view.new_text))
            ):
                message, view = take(
                    view, clock.elapsed_s(), await pool(now=view.over or not view.num_samples)
                )
                sent_s = time.monotonic()
                yield message, view


async def ticking(
    events: AsyncGenerator[Event, None], tick_s: float
) -> AsyncGenerator[Event | None, None]:
    """Every event as it comes, and None when none came for `tick_s`; closes `events` at its end."""
    taking: asyncio.Task[Event] | None = None
    try:
        while True:
            taking = taking or asyncio.ensure_future(_next(events))
            if not (await asyncio.wait({taking}, timeout=tick_s))[0]:
                yield None
                continue
            done, taking = taking, None
            try:
                event = done.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        if taking is not None:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await taking
        await events.aclose()


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await events.__anext__()


class Wire:
    """How the messages of one reply travel to a tab: as JSON of what is new since the message
    before, and its sound as bytes: int16 PCM, or packets of Opus for a slow link. A rate that Opus
    does not know travels as PCM."""

    def __init__(self, sound: str):
        self._opus = sound == "opus"
        self._told: dict[str, Any] = {}
        self._stream: OpusStream | None = None

    def pack(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """What is new of a message, and its sound; `sound` says which way that goes."""
        if not self._opus or (message["rate"] and message["rate"] not in RATES_HZ):
            return self._news({**message, "sound": "pcm"}), message["pcm"]
        packets = self._packets(message)
        head = _text(self._stream.head) if self._stream and packets else None
        return self._news({**message, "sound": "opus", "head": head}), framed(packets)

    def _news(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """`run` and `seq`, what changed of figures and counts, and what is new of all else."""
        new: dict[str, Any] = {}
        for key, value in rounded({k: v for k, v in message.items() if k != "pcm"}).items():
            if key in FOLDED:
                told = self._told.setdefault(key, {})
                value = {name: one for name, one in value.items() if told.get(name) != one}
                told.update(value)
            elif key not in (*NEW, *NAME):
                if key in self._told and self._told[key] == value:
                    continue
                self._told[key] = value
            if value or key not in (*FOLDED, *NEW):
                new[key] = value
        return new

    def _packets(self, message: Mapping[str, Any]) -> list[bytes]:
        packets = []
        if message["pcm"]:
            self._stream = self._stream or OpusStream(message["rate"])
            packets = self._stream.push(np.frombuffer(message["pcm"], "<i2").astype(np.int16))
        if message["end"] and self._stream:
            packets += self._stream.end()
        return packets

    def close(self) -> None:
        """The reply is over, perhaps before its end."""
        if self._stream:
            self._stream.close()


def rounded(value: Any) -> Any:
    """JSON with all of its numbers short."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def framed(packets: list[bytes]) -> bytes:
    """Every packet behind its length, as two bytes with the lower first."""
    return b"".join(len(packet).to_bytes(2, "little") + packet for packet in packets)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


async def whole(
    view: View, clock: ReplyClock, told: Callable[[View], Messages]
) -> AsyncGenerator[dict[str, Any], None]:
    """Every message of a reply, the first of them before anything is begun; a MossError of `told`
    is the last one."""
    message, view = take(view, None)
    yield message
    try:
        async with aclosing(told(view)) as rest:
            async for message in rest:
                yield message
    except MossError as error:
        failed = replace(fail(view, str(error)), seq=message["seq"] + 1)
        message, _ = take(failed, clock.elapsed_s())
        yield message
