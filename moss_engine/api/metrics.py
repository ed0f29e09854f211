"""Figures of one request, folded from its events. Pure: all times are those that the events
carry."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from moss_engine.api.events import Accepted, AudioChunk, Event, Sampled, Started
from moss_engine.api.tokens import Modality


def _metric(unit: str, meaning: str) -> Any:
    return field(metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True)
class RequestMetrics:
    """Each field's `unit` and one-sentence `meaning` are in its metadata (see `meanings`); None:
    not known yet."""

    queue_wait_ms: float | None = _metric(
        "ms", "From the request being accepted to its first prefill step."
    )
    prefill_ms: float | None = _metric(
        "ms",
        "From the start of the first prefill step to the first sampled row, for the prompt rows "
        "not found in the prefix cache.",
    )
    first_row_ms: float | None = _metric(
        "ms", "From the request being accepted to the first sampled row (time to first token)."
    )
    ttfa_ms: float | None = _metric(
        "ms",
        "From the request being accepted to the first samples handed to the listener (time to "
        "first audio, without the way to the ear).",
    )
    text_rows_per_s: float | None = _metric(
        "rows/s",
        "Rows sampled in text mode, divided by the time that the steps which sampled them took.",
    )
    audio_rows_per_s: float | None = _metric(
        "rows/s",
        "Rows sampled in audio mode, divided by the time that the steps which sampled them took.",
    )
    rtf: float | None = _metric(
        "",
        "Real-time factor: working time from the request being accepted to its latest samples, "
        "without the pauses in which it was held back for its listener, divided by the seconds of "
        "audio made; below 1 is faster than speech.",
    )
    audio_s: float = _metric("s", "Seconds of audio made so far.")
    buffered_s: float = _metric(
        "s",
        "Audio that a listener who plays in real time from the first chunk on has not heard yet.",
    )
    underruns: int = _metric(
        "", "How often such a listener ran out of audio before the next chunk came."
    )
    stalled_ms: float = _metric(
        "ms", "How long such a listener heard nothing because of underruns."
    )
    num_rows: int = _metric("rows", "Reply rows sampled so far, in both modes.")
    num_prompt_rows: int | None = _metric(
        "rows", "Rows of the prompt (of its first part, if it is spoken in parts)."
    )
    num_cached_rows: int | None = _metric(
        "rows", "Prompt rows found in the prefix cache, hence not computed again."
    )
    codec_ms: float | None = _metric(
        "ms",
        "How long a run of the codec takes on average to make a chunk of sound, without the wait "
        "for its turn; on a GPU for several replies at a time.",
    )
    codec_replies: float | None = _metric(
        "", "For how many replies such a run made sound, on average."
    )


def meanings() -> dict[str, str]:
    """What each figure means: field name -> sentence."""
    return {f.name: f.metadata["meaning"] for f in fields(RequestMetrics)}


class Timeline(NamedTuple):
    """What `fold` remembers of the events so far; times in seconds of the events' clock, which
    begins when the request is accepted. The last three are sums over the codec's runs that made the
    reply's sound.

    A named tuple, which is renewed ten times as fast as a frozen dataclass: that happens for every
    row of every reply.
    """

    now_s: float = 0.0
    started_s: float | None = None
    first_row_s: float | None = None
    last_row_s: float | None = None
    row_held_s: float = 0.0
    num_rows: int = 0
    text_rows: int = 0
    text_s: float = 0.0
    audio_rows: int = 0
    audio_row_s: float = 0.0
    num_prompt_rows: int | None = None
    num_cached_rows: int | None = None
    first_pcm_s: float | None = None
    last_pcm_s: float | None = None
    pcm_held_s: float = 0.0
    audio_s: float = 0.0
    stalled_s: float = 0.0
    underruns: int = 0
    codec_runs: int = 0
    codec_replies: int = 0
    codec_s: float = 0.0


def fold(timeline: Timeline, event: Event) -> Timeline:
    """The timeline with one more event; start from `Timeline()`."""
    if isinstance(event, Sampled):
        return _fold_row(timeline, event)
    timeline = timeline._replace(now_s=event.time_s, num_rows=event.num_rows)
    if isinstance(event, Accepted):
        return timeline._replace(num_prompt_rows=event.num_prompt_rows)
    if isinstance(event, Started):
        rows = event.num_prompt_rows
        return timeline._replace(
            started_s=event.time_s,
            num_cached_rows=event.num_cached_rows,
            num_prompt_rows=timeline.num_prompt_rows if rows is None else rows,
        )
    if isinstance(event, AudioChunk):
        return _fold_chunk(timeline, event)
    return timeline


def _fold_row(timeline: Timeline, event: Sampled) -> Timeline:
    now_s, last_row_s = event.time_s, timeline.last_row_s
    known: dict[str, Any] = {
        "now_s": now_s, "num_rows": event.num_rows, "last_row_s": now_s, "row_held_s": event.held_s,
    }  # fmt: skip
    if last_row_s is None or now_s == timeline.first_row_s:  # the first step's time is prefill
        return timeline._replace(first_row_s=now_s, **known)
    step_s = now_s - last_row_s - (event.held_s - timeline.row_held_s)
    if event.modality is Modality.TEXT:
        known["text_rows"], known["text_s"] = timeline.text_rows + 1, timeline.text_s + step_s
    else:
        known["audio_rows"] = timeline.audio_rows + 1
        known["audio_row_s"] = timeline.audio_row_s + step_s
    return timeline._replace(**known)


def _fold_chunk(timeline: Timeline, event: AudioChunk) -> Timeline:
    late_s = event.time_s - _runs_dry_s(timeline) if timeline.first_pcm_s is not None else 0.0
    if late_s > 0:
        timeline = timeline._replace(
            underruns=timeline.underruns + 1, stalled_s=timeline.stalled_s + late_s
        )
    if event.codec is not None:
        timeline = timeline._replace(
            codec_runs=timeline.codec_runs + 1,
            codec_replies=timeline.codec_replies + event.codec.num_replies,
            codec_s=timeline.codec_s + event.codec.ran_s,
        )
    return timeline._replace(
        first_pcm_s=event.time_s if timeline.first_pcm_s is None else timeline.first_pcm_s,
        last_pcm_s=event.time_s,
        pcm_held_s=event.held_s,
        audio_s=timeline.audio_s + len(event.samples) / event.sample_rate_hz,
    )


def _runs_dry_s(timeline: Timeline) -> float:
    """When the listener has played everything made so far."""
    assert timeline.first_pcm_s is not None
    return timeline.first_pcm_s + timeline.stalled_s + timeline.audio_s


def measure(timeline: Timeline, now_s: float | None = None) -> RequestMetrics:
    """The figures at `now_s` of the events' clock (default: the last event's time)."""
    now_s = timeline.now_s if now_s is None else now_s
    return RequestMetrics(
        queue_wait_ms=_ms(timeline.started_s),
        prefill_ms=_ms(timeline.first_row_s, timeline.started_s),
        first_row_ms=_ms(timeline.first_row_s),
        ttfa_ms=_ms(timeline.first_pcm_s),
        text_rows_per_s=_per(timeline.text_rows, timeline.text_s),
        audio_rows_per_s=_per(timeline.audio_rows, timeline.audio_row_s),
        rtf=_per((timeline.last_pcm_s or 0.0) - timeline.pcm_held_s, timeline.audio_s),
        audio_s=timeline.audio_s,
        buffered_s=max(0.0, _runs_dry_s(timeline) - now_s)
        if timeline.first_pcm_s is not None
        else 0.0,
        underruns=timeline.underruns,
        stalled_ms=timeline.stalled_s * 1000,
        num_rows=timeline.num_rows,
        num_prompt_rows=timeline.num_prompt_rows,
        num_cached_rows=timeline.num_cached_rows,
        codec_ms=_per(timeline.codec_s * 1000, timeline.codec_runs),
        codec_replies=_per(timeline.codec_replies, timeline.codec_runs),
    )


def _ms(end_s: float | None, start_s: float | None = 0.0) -> float | None:
    return None if start_s is None or end_s is None else (end_s - start_s) * 1000


def _per(amount: float, of: float) -> float | None:
    return amount / of if of else None
