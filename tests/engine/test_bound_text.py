"""Reading aloud: a reply whose words are given writes exactly these, and speaks each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.api.events import FinishReason, Sampled
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row, code_of
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.engine.sequence import Segment, allowed_text_ids
from tests.engine.engine_support import only, serve
from tests.fakes import IDS, LIMITS, PAD, WARM, FakeProcessor, FakeRuntime, make_request, noisy

WORDS = ((40, 41), (42,), (43, 44, 45))
SPEECH = (Row(IDS.sosp, 0), Row(PAD, 7), Row(PAD, IDS.eosp))


def text(*ids: int) -> tuple[Row, ...]:
    return tuple(Row(text_id, 0) for text_id in ids)


@pytest.mark.parametrize(
    ("rows", "allowed"),
    [
        ((), {40}),  # nothing to speak of yet
        (text(40), {41}),  # never inside a word
        (text(40, 41), {42, IDS.sosp}),
        ((*text(40, 41), *SPEECH), {42}),  # never two spans without a word between them
        ((*text(40, 41), *SPEECH, *text(42)), {43, IDS.sosp}),
        (text(40, 41, 42), {43, IDS.sosp}),
        (text(40, 41, 42, 43, 44), {45}),
        (text(40, 41, 42, 43, 44, 45), {IDS.sosp}),  # the last words are spoken, too
        ((*text(40, 41, 42, 43, 44, 45), *SPEECH), {IDS.im_end}),
    ],
)
def test_what_may_follow(rows: tuple[Row, ...], allowed: set[int]):
    assert set(allowed_text_ids(rows, WORDS, IDS)) == allowed


def test_without_words_the_reply_ends():
    assert allowed_text_ids((), (), IDS) == (IDS.im_end,)
    assert allowed_text_ids(SPEECH, (), IDS) == (IDS.im_end,)


class Reader(FakeProcessor):
    """Every line is a segment whose words, of one id for each letter, are bound; "?" binds none."""

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        return tuple(
            segment
            if segment.prompt[0].text == ord("?")
            else replace(segment, bound_words=words_of(segment.prompt))
            for segment in super().prepare(request)
        )


def words_of(prompt: tuple[Row, ...]) -> tuple[tuple[int, ...], ...]:
    text = bytes(row.text for row in prompt[:-1])
    return tuple(tuple(word) for word in text.split())


def reader(runtime: FakeRuntime) -> Engine:
    return Engine(runtime, Reader(), EngineConfig(), samples_per_code=960)


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_reply_writes_its_words_and_speaks_between_them(seed: int):
    """By a network that would write anything, in every segment, beside replies that are free."""
    runtime = FakeRuntime(noisy, replace(LIMITS, num_blocks=400, max_seq_len=900))
    asked = [
        make_request("to be or\nnot", mode="lines", channel=WARM, max_rows=600, seed=seed),
        make_request("? free", mode="lines", channel=WARM, max_rows=60, seed=seed),
        make_request("read this aloud", mode="lines", channel=WARM, max_rows=600, seed=seed),
    ]
    first, free, second = serve(reader(runtime), *asked)
    for events, words in ((first, "to be or not"), (second, "read this aloud")):
        rows = events[-1].rows
        assert events[-1].reason is FinishReason.STOP
        written = bytes(row.text for row in rows if row.text > IDS.text_pad).decode()
        assert written == words.replace(" ", "")
        assert any(code_of(row, IDS) is not None for row in rows)
        for place, row in enumerate(rows):
            if row.text == IDS.sosp:
                assert rows[place - 1].text > IDS.text_pad, "a span begins behind a word"
            if row.text == IDS.im_end:
                assert rows[place - 1] == Row(PAD, IDS.eosp), "and the end behind a span"
    (alone,) = serve(
        Engine(FakeRuntime(noisy), FakeProcessor(), EngineConfig(), samples_per_code=960), asked[1]
    )
    assert free[-1].rows == alone[-1].rows, "replies without bound words are as ever"


def test_rows_without_a_choice_cost_no_step():
    """Each step but a segment's first draws what may be chosen: where to speak, and the sound."""
    runtime = FakeRuntime(noisy, replace(LIMITS, num_blocks=400, max_seq_len=900))
    runtime.few_rows = 8
    request = make_request("to be or\nnot", mode="lines", channel=WARM, max_rows=600)
    (events,) = serve(reader(runtime), request)
    rows, texts = (
        events[-1].rows,
        [words_of(line) for line in (text(*b"to be or "), text(*b"not "))],
    )
    assert [event.row for event in only(events, Sampled)] == list(rows)
    chosen, start = len(texts), 0
    for words in texts:
        end = next(i for i in range(start, len(rows)) if rows[i].text == IDS.im_end) + 1
        for place in range(start, end):
            reply = rows[start:place]
            speaks = any(row.text == IDS.sosp for row in reply) and (
                reply[-1].text == IDS.sosp
                or (reply[-1].text == PAD and reply[-1].audio != IDS.eosp)
            )
            chosen += speaks or len(allowed_text_ids(reply, words, IDS)) > 1
        start = end
    assert len(runtime.batches) == chosen < len(rows)


def test_a_runtime_gets_as_many_of_them_as_it_runs_like_one():
    """One at a time where it says nothing of several."""
    limits = replace(LIMITS, num_blocks=400, max_seq_len=900)
    found = {}
    for few_rows in (1, 3):
        runtime = FakeRuntime(noisy, limits)
        runtime.few_rows = few_rows
        request = make_request("abcdefgh", mode="lines", channel=WARM, max_rows=600)
        (events,) = serve(reader(runtime), request)
        assert [row.text for row in events[-1].rows[:8]] == list(b"abcdefgh")
        found[few_rows] = max(len(batch.sequences[0].rows) for batch in runtime.batches[1:])
    assert found == {1: 1, 3: 3}
