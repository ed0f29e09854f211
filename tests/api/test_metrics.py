from dataclasses import asdict, replace
from functools import reduce

import numpy as np
import pytest

from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    CodecRun,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
)
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.tokens import Modality, Row


def row(time_s: float, num_rows: int, modality: Modality) -> Sampled:
    return Sampled("r", time_s, num_rows, Row(0, 0), modality)


def chunk(time_s: float, seconds: float) -> AudioChunk:
    return AudioChunk("r", time_s, 5, np.zeros(round(seconds * 1000), np.float32), 0, 1000)


def folded(events: list[Event]) -> Timeline:
    return reduce(fold, events, Timeline())


START = [Accepted("r", 0.0, 0, 40), Started("r", 0.5, 0, 16)]
ROWS = [
    row(0.75, 1, Modality.TEXT),
    row(0.85, 2, Modality.TEXT),
    row(1.05, 3, Modality.AUDIO),
    row(1.10, 4, Modality.AUDIO),
    row(1.25, 5, Modality.AUDIO),
]


def test_every_figure_of_a_reply():
    end = Finished("r", 2.1, 5, FinishReason.STOP, ())
    figures = measure(folded([*START, *ROWS, chunk(1.5, 1.0), chunk(2.0, 1.0), end]))
    assert figures == RequestMetrics(
        queue_wait_ms=pytest.approx(500),
        prefill_ms=pytest.approx(250),
        first_row_ms=pytest.approx(750),
        ttfa_ms=pytest.approx(1500),
        text_rows_per_s=pytest.approx(1 / 0.1),
        audio_rows_per_s=pytest.approx(3 / 0.4),
        rtf=pytest.approx(2.0 / 2.0),
        audio_s=2.0,
        buffered_s=pytest.approx(1.5 + 2.0 - 2.1),
        underruns=0,
        stalled_ms=0.0,
        num_rows=5,
        num_prompt_rows=40,
        num_cached_rows=16,
        codec_ms=None,
        codec_replies=None,
    )


def test_a_figure_is_none_until_it_is_known():
    assert measure(folded(START[:1])).queue_wait_ms is None
    figures = measure(folded(START))
    assert figures.queue_wait_ms == pytest.approx(500)
    unknown = {name for name, value in asdict(figures).items() if value is None}
    rates = {"text_rows_per_s", "audio_rows_per_s", "rtf", "codec_ms", "codec_replies"}
    assert unknown == {"prefill_ms", "first_row_ms", "ttfa_ms"} | rates
    assert figures.audio_s == figures.buffered_s == figures.underruns == 0


def test_rows_of_the_step_that_was_prefill_took_no_time_of_their_own():
    first = [row(0.75, number, Modality.TEXT) for number in (1, 2, 3)]
    assert measure(folded([*START, *first])).text_rows_per_s is None
    rows = [*first, row(0.95, 4, Modality.TEXT), row(0.95, 5, Modality.TEXT)]
    assert measure(folded([*START, *rows])).text_rows_per_s == pytest.approx(2 / 0.2)


def test_underruns_stop_the_listeners_clock():
    # 1 s of audio at 1 runs dry at 2; the next comes at 2.3 and lasts to 3.3; the third, at 3.4, is
    # late again.
    figures = measure(folded([*START, chunk(1.0, 1.0), chunk(2.3, 1.0), chunk(3.4, 0.5)]))
    assert figures.underruns == 2
    assert figures.stalled_ms == pytest.approx(400)
    assert figures.buffered_s == pytest.approx(0.5)


def test_pauses_for_a_listener_far_behind_are_no_working_time():
    """Eight seconds of sound in two of work, the rest waiting: as fast as without the wait."""
    rows = [
        Sampled("r", 0.5 + 0.1 * i + held_s, i + 1, Row(0, 0), Modality.AUDIO, held_s)
        for i, held_s in enumerate([0.0, 0.0, 2.0, 5.0])
    ]
    sound = [
        AudioChunk("r", time_s, 5, np.zeros(4000, np.float32), 0, 1000, held_s)
        for time_s, held_s in ((1.0, 0.0), (7.0, 5.0))
    ]
    figures = measure(folded([*START, *rows, *sound]))
    assert figures.rtf == pytest.approx(2.0 / 8.0)
    assert figures.audio_rows_per_s == pytest.approx(10.0)


def test_the_codec_s_figures_are_averages_over_its_runs():
    alone, shared = CodecRun(0.010, 1), CodecRun(0.030, 3)
    figures = measure(
        folded([*START, *(replace(chunk(1.5, 1.0), codec=run) for run in (alone, shared))])
    )
    assert (figures.codec_ms, figures.codec_replies) == (pytest.approx(20), 2)
    assert measure(folded([*START, chunk(1.5, 1.0)])).codec_ms is None
