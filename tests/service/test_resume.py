"""A reply that was lost half-way goes on elsewhere with the same rows, samples and text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moss_engine.api.errors import InputError
from moss_engine.api.events import AudioChunk, Event, Finished, Sampled, TextDelta
from moss_engine.api.request import Progress, Request
from moss_engine.api.tokens import SpecialIds, spoken_codes
from moss_engine.build import build_service
from moss_engine.codec.base import Push
from moss_engine.config import EngineConfig
from moss_engine.service.local import LocalService
from moss_engine.service.speech_worker import SpeechJob
from tests.fakes import SPOKEN, WARM, FakeRuntime, Network, make_request, noisy, scripted
from tests.service.service_support import ask, at_once, hear, served

SENTENCES = "Good morning.\n\nThe train leaves at nine. Come soon."


def progress_at(events: list[Event], place: int, ids: SpecialIds) -> Progress:
    """What a listener has who received the events before `place`."""
    received = events[:place]
    sampled = [event for event in received if isinstance(event, Sampled)]
    codes = [(*spoken_codes([event.row], ids), *event.silence) for event in sampled]
    chunks = [event for event in received if isinstance(event, AudioChunk)]
    return Progress(
        tuple(event.row for event in sampled),
        tuple(code for heard in codes for code in heard),
        sum(len(chunk.samples) for chunk in chunks),
        sum(len(event.text) for event in received if isinstance(event, TextDelta)),
        state=chunks[-1].state if chunks else None,
    )


def joined(events: list[Event]) -> tuple[list, bytes, str]:
    """Rows, samples and text of a stream."""
    samples = [event.samples for event in events if isinstance(event, AudioChunk)]
    return (
        [event.row for event in events if isinstance(event, Sampled)],
        np.concatenate([np.empty(0, np.float32), *samples]).tobytes(),
        "".join(event.text for event in events if isinstance(event, TextDelta)),
    )


def assert_continued(core: LocalService, request: Request, whole: list[Event], place: int) -> None:
    progress = progress_at(whole, place, core.engine.processor.ids)
    again = replace(request, request_id=f"again {place}", progress=progress)
    rest = hear(core, again)
    for before, after, complete in zip(
        joined(whole[:place]), joined(rest), joined(whole), strict=True
    ):
        assert before + after == complete
    chunks = [event for event in rest if isinstance(event, AudioChunk)]
    assert all(chunk.start_sample >= progress.num_samples for chunk in chunks)
    assert isinstance(rest[-1], Finished) and isinstance(whole[-1], Finished)
    assert (rest[-1].rows, rest[-1].reason) == (whole[-1].rows, whole[-1].reason)


SENTENCE = ask("hello", max_rows=20)
LINES = make_request("one\ntwo\nthree", mode="lines", max_rows=9, channel=WARM)


@pytest.mark.parametrize(("network", "request_"), [(scripted(SPOKEN), SENTENCE), (noisy, LINES)])
def test_a_reply_goes_on_behind_each_of_its_events(network: Network, request_: Request):
    with served(FakeRuntime(network)) as core:
        whole = hear(core, request_)
        for place in range(len(whole)):
            assert_continued(core, request_, whole, place)


def test_rows_of_another_reply_are_refused():
    with served() as core:
        rows = Progress((*SPOKEN, *SPOKEN))
        with pytest.raises(InputError, match="ask anew"):
            core.accept(replace(ask("hello"), progress=rows))


@pytest.mark.parametrize("moves", [True, False])
def test_the_built_in_voice_goes_on_bit_for_bit(monkeypatch, moves):
    """With the codec's state nothing is spoken twice."""
    core = build_service(EngineConfig(device="cpu"))
    processor = core.engine.processor
    spoken: list[int] = []
    next_push = SpeechJob.next_push

    def noted(job: SpeechJob) -> Push:
        push = next_push(job)
        spoken.extend(push.codes)
        return push

    monkeypatch.setattr(SpeechJob, "next_push", noted)
    core.start()
    try:
        request = make_request(SENTENCES, mode=processor.default_mode.name)
        sampling = replace(processor.default_sampling, seed=5)
        request = replace(request, sampling=sampling, moves=moves)
        whole = hear(core, request)
        borders = [i for i, e in enumerate(whole) if isinstance(e, Sampled) and e.silence]
        assert len(borders) == 2, "there are pauses between sentences and paragraphs"
        all_codes, resumed = len(spoken), 0
        for place in (borders[0], borders[0] + 1, borders[1] + 9, len(whole) - 3):
            spoken.clear()
            assert_continued(core, request, whole, place)
            state = progress_at(whole, place, processor.ids).state
            assert moves or state is None
            assert len(spoken) == all_codes - (state.num_codes if state else 0)
            resumed += state is not None
        assert bool(resumed) is moves, "where sound comes late, the first places have no state yet"
        stats = at_once(core.stats()).engine
        assert (stats.blocks_used, stats.blocks_reserved, stats.leaked_blocks) == (0, 0, 0)
    finally:
        core.close()
