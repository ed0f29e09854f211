"""The engine over a scripted runtime: what a step emits, and in which order sequences run."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moss_engine.api.errors import BusyError, ContextError, ParameterError
from moss_engine.api.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.info import EngineStats
from moss_engine.api.request import Message, Progress, Reply, Request, Text
from moss_engine.api.tokens import Row, code_of, text_rows
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.engine.sequence import Segment
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.make import make_runtime
from moss_engine.text.modes import read_default_sampling, read_modes
from moss_engine.text.processor import Processor
from moss_engine.text.tokenizer import TextTokenizer
from tests.fakes import (
    HEADER,
    IDS,
    LIMITS,
    PAD,
    SPOKEN,
    WARM,
    Clock,
    FakeProcessor,
    FakeRuntime,
    make_request,
    noisy,
    scripted,
)


def make_engine(
    runtime: FakeRuntime,
    clock: Clock | None = None,
    processor: FakeProcessor | None = None,
    **options: float,
) -> Engine:
    config, clock = EngineConfig(**options), clock or Clock()
    return Engine(runtime, processor or FakeProcessor(), config, samples_per_code=960, clock=clock)


def run(engine: Engine, steps: int = 500) -> dict[str, list[Event]]:
    """Step until nothing is left to do; the events of each request."""
    events: dict[str, list[Event]] = {}
    for _ in range(steps):
        result = engine.step()
        for event in result.events:
            events.setdefault(event.request_id, []).append(event)
        if not result.events and not result.num_rows:
            engine.check_integrity()
            return events
    raise AssertionError("the engine did not come to rest")


def serve(engine: Engine, *requests: Request) -> list[list[Event]]:
    accepted = [engine.submit(request) for request in requests]
    events = run(engine)
    return [[first, *events[first.request_id]] for first in accepted]


def only(events: list[Event], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def assert_at_rest(engine: Engine) -> None:
    """Nobody is being served and no block is used, promised or leaked."""
    engine.step()
    engine.check_integrity()
    stats = replace(engine.stats(), blocks_cached=0, blocks_free=0)
    assert stats == EngineStats(*[0] * 7)


PENALISED = replace(WARM, repetition_penalty=1.3)


def test_a_reply_from_first_to_last_event():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)))
    (events,) = serve(engine, make_request("hello"))
    assert [type(event) for event in events] == [
        Accepted,
        Started,
        Sampled,
        TextDelta,
        Sampled,
        TextDelta,
        *[Sampled] * 6,
        Finished,
    ]
    assert events[0].num_prompt_rows == 6 and events[1].num_cached_rows == 0
    assert [event.row for event in only(events, Sampled)] == SPOKEN
    assert [event.num_rows for event in only(events, Sampled)] == list(range(1, 9))
    assert "".join(event.modality.value[0] for event in only(events, Sampled)) == "tttaaaat"
    assert "".join(event.text for event in only(events, TextDelta)) == "ab"
    assert events[-1] == Finished(events[0].request_id, 0.0, 8, FinishReason.STOP, tuple(SPOKEN))
    assert_at_rest(engine)


def test_max_rows_ends_a_reply_by_length():
    engine = make_engine(FakeRuntime(scripted([Row(ord("x"), 0)])))
    (events,) = serve(engine, make_request(max_rows=7))
    assert (events[-1].reason, events[-1].num_rows) == (FinishReason.LENGTH, 7)
    assert_at_rest(engine)


def test_segments_run_one_after_another_as_one_reply():
    runtime = FakeRuntime(scripted(SPOKEN))
    engine = make_engine(runtime)
    (events,) = serve(engine, make_request("one\ntwo\nthree", mode="lines"))
    assert len(only(events, Started)) == len(only(events, Finished)) == 1
    assert events[-1].rows == tuple(SPOKEN * 3) and events[-1].reason is FinishReason.STOP
    assert [e.start_sample for e in only(events, TextDelta)] == [0, 0, 2880, 2880, 5760, 5760]
    prompts = [
        "".join(chr(row.text) for row in batch.sequences[0].rows[:-1])
        for batch in runtime.batches
        if batch.sequences[0].rows[-1].text == HEADER
    ]
    assert prompts == ["one", "two", "three"]
    assert_at_rest(engine)


def test_a_segmented_reply_never_waits_for_blocks_that_others_want():
    # Two replies fill the pool with promises; at every seam one's blocks are free for a moment.
    engine = make_engine(FakeRuntime(noisy, replace(LIMITS, num_blocks=16, block_size=4)))
    requests = [
        make_request(f"{i}bc\nshort{i}\nx", mode="lines", channel=WARM, max_rows=24, seed=i)
        for i in range(5)
    ]
    ended: list[str] = []
    for request in requests:
        engine.submit(request)
    for _ in range(400):
        engine.runtime.batches.clear()
        events = engine.step().events
        engine.check_integrity()
        ran = sum(len(batch.sequences) for batch in engine.runtime.batches)
        assert ran >= engine.stats().running, "a started reply was left out of a step"
        ended += [event.request_id for event in only(list(events), Finished)]
    assert sorted(ended) == sorted(request.request_id for request in requests)
    assert_at_rest(engine)


def test_paused_turns_rest_while_others_run():
    engine = make_engine(FakeRuntime(noisy))
    one, two = (make_request(channel=WARM, max_rows=40, seed=i) for i in range(2))
    engine.submit(one), engine.submit(two)
    engine.step()
    rested = [event.request_id for _ in range(5) for event in engine.step({one.request_id}).events]
    assert set(rested) == {two.request_id}
    assert engine.step({one.request_id, two.request_id}).num_rows == 0
    assert len(run(engine)) == 2


def test_a_second_turn_of_a_chat_finds_the_first_and_answers_as_if_everything_were_computed(
    tiny_checkpoint: Path,
):
    """With the real network, processor and sampler: the reply's rows come back as history."""
    config = EngineConfig(checkpoint=tiny_checkpoint, block_size=8, kv_rows=2048, dtype="float32")
    model = ModelConfig.from_file(tiny_checkpoint / "config.json")
    modes = read_modes(tiny_checkpoint / "processor_config.json")
    chat = replace(modes.modes[1], history=True, default=True)
    tokenizer = TextTokenizer.from_file(tiny_checkpoint / "tokenizer.json")
    sampling = read_default_sampling(tiny_checkpoint / "generation_config.json")
    processor = Processor(tokenizer, model, replace(modes, modes=(chat,)), sampling, 4000)

    def ask(name: str, *messages: Message) -> Request:
        return Request(name, "s", messages, chat.name, replace(sampling, max_rows=60))

    def answers(*asked: Request) -> list[list[Event]]:
        engine = Engine(make_runtime(config), processor, config, samples_per_code=960)
        return [serve(engine, request)[0] for request in asked]

    question, again = Message("user", Text("hello world")), Message("user", Text("and you"))
    ((*_, first),) = answers(ask("first", question))
    second = ask("second", question, Message("assistant", Reply(first.rows)), again)
    after_first, fresh = answers(ask("first", question), second)[1], answers(second)[0]
    so_far = len(processor.prepare(ask("first", question))[0].prompt) + len(first.rows)
    assert only(after_first, Started)[0].num_cached_rows == (so_far - 1) // 8 * 8
    assert only(fresh, Started)[0].num_cached_rows == 0
    assert after_first[-1].rows == fresh[-1].rows


def test_a_reply_of_many_segments_ends_at_its_cap():
    prompt = (*text_rows(b"hi", IDS), *text_rows([HEADER], IDS))
    segments = tuple(Segment(prompt, 64, reply_rows=20) for _ in range(50))
    engine = make_engine(FakeRuntime(scripted(SPOKEN)))
    engine.processor.prepare = lambda request: segments
    ((*_, end),) = serve(engine, make_request("hi"))
    assert end.reason is FinishReason.LENGTH
    assert end.rows == (*SPOKEN, *SPOKEN, *SPOKEN[:4])


def test_sharing_a_step_changes_no_row():
    """Turns that are left out for others say what they say alone, their penalties included."""
    alone = []
    requests = [make_request(name, max_rows=40, channel=PENALISED) for name in "abcde"]
    for request in requests:
        alone.append(serve(make_engine(FakeRuntime(noisy)), request)[0][-1].rows)
    limits = replace(LIMITS, max_batch=2, num_blocks=256)
    engine = make_engine(FakeRuntime(noisy, limits))
    for request in requests:
        engine.submit(request)
    ends = {}
    for number in range(500):
        ahead_s = {request.request_id: 3.0 + (number + i) % 5 for i, request in enumerate(requests)}
        ends |= {e.request_id: e.rows for e in only(engine.step((), ahead_s).events, Finished)}
    assert [ends[request.request_id] for request in requests] == alone
    seeded = replace(requests[0], sampling=replace(requests[0].sampling, seed=8))
    assert serve(make_engine(FakeRuntime(noisy)), seeded)[0][-1].rows != alone[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_fail_one_request_only(value: float):
    def network(ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        text, audio = scripted(SPOKEN)(ids)
        if ids[0] == ord("!") and len(ids) > 6:
            audio[3] = value
        return text, audio

    engine = make_engine(FakeRuntime(network))
    good, bad, other = serve(engine, *(make_request(text) for text in ("good", "!bad", "other")))
    assert isinstance(bad[-1], Failed) and bad[-1].code == "E_REPLY"
    assert bad[-1].message.endswith("again.")
    assert len(only(bad, Sampled)) == 2
    assert good[-1].rows == other[-1].rows == tuple(SPOKEN)
    assert_at_rest(engine)


def test_waiting_too_long_fails_with_a_sentence():
    clock = Clock()
    runtime = FakeRuntime(scripted([Row(ord("x"), 0)]), replace(LIMITS, max_batch=1))
    engine = make_engine(runtime, clock, wait_limit_s=5.0)
    first, second = make_request(max_rows=100), make_request()
    engine.submit(first), engine.submit(second)
    engine.step()
    clock.now_s += 5.1
    (failed,) = only(list(engine.step().events), Failed)
    assert (failed.request_id, failed.code) == (second.request_id, BusyError.code)
    assert engine.stats().running == 1


def test_refusals_leave_nothing_behind():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)), max_waiting=0)
    engine.submit(make_request(request_id="mine"))
    with pytest.raises(ParameterError, match="request_id"):
        engine.submit(make_request(request_id="mine"))
    with pytest.raises(ContextError):
        engine.submit(make_request("x" * 200))
    for _ in range(LIMITS.max_batch - 1):
        engine.submit(make_request())
    with pytest.raises(BusyError):
        engine.submit(make_request())
    with pytest.raises(BusyError):  # before it is read
        engine.submit(make_request("x" * 200))
    assert len(run(engine)) == LIMITS.max_batch
    assert_at_rest(engine)


def test_left_over_blocks_are_counted_and_taken_back(caplog: pytest.LogCaptureFixture):
    engine = make_engine(FakeRuntime(noisy))
    engine._blocks.reserve("ghost", 10)
    engine._blocks.allocate("ghost", [1, 2, 3, 4, 5])
    with caplog.at_level(logging.CRITICAL):
        engine.step()
    assert engine.stats().leaked_blocks == 2
    assert engine.stats().blocks_used == 0


def test_a_request_that_can_never_run_crowds_nobody_out():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)), max_waiting=0)
    crowd = [replace(make_request(), visitor="crowd") for _ in range(LIMITS.max_batch)]
    for request in crowd:
        engine.submit(request)
    with pytest.raises(ContextError):
        engine.submit(replace(make_request(max_rows=LIMITS.max_seq_len), visitor="other"))
    events = run(engine)
    assert all(isinstance(events[request.request_id][-1], Finished) for request in crowd)


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


ROOMY = replace(LIMITS, num_blocks=400, max_seq_len=900)


@pytest.mark.parametrize("seed", range(2))
def test_a_bound_reply_writes_its_words_and_speaks_between_them(seed: int):
    """By a network that would write anything, in every segment, beside replies that are free."""
    asked = [
        make_request("to be or\nnot", mode="lines", channel=WARM, max_rows=600, seed=seed),
        make_request("? free", mode="lines", channel=WARM, max_rows=60, seed=seed),
        make_request("read this aloud", mode="lines", channel=WARM, max_rows=600, seed=seed),
    ]
    reader = make_engine(FakeRuntime(noisy, ROOMY), processor=Reader())
    first, free, second = serve(reader, *asked)
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
    (alone,) = serve(make_engine(FakeRuntime(noisy)), asked[1])
    assert free[-1].rows == alone[-1].rows, "replies without bound words are as ever"


class Ticking(Clock):
    """Later whenever it is asked."""

    def __call__(self) -> float:
        self.now_s += 1e-3
        return self.now_s


def test_a_runtime_gets_as_many_bound_or_known_rows_at_a_time_as_it_runs_like_one():
    """One where it says nothing of several. Rows of one step have one time."""
    bound, known, times = {}, {}, {}
    for few_rows in (1, 8):
        runtime = FakeRuntime(noisy, ROOMY)
        runtime.few_rows = few_rows
        reader = make_engine(runtime, Ticking(), processor=Reader())
        request = make_request("abcdefgh", mode="lines", channel=WARM, max_rows=600)
        (events,) = serve(reader, request)
        times[few_rows] = len({event.time_s for event in only(events, Sampled)[:8]})
        rows, reader._replays = events[-1].rows, True
        assert [row.text for row in rows[:8]] == list(b"abcdefgh")
        bound[few_rows] = max(len(batch.sequences[0].rows) for batch in runtime.batches[1:])
        runtime.batches.clear()
        again = replace(request, request_id="again", progress=Progress(rows[:-1]))
        (rest,) = serve(reader, again)
        assert rest[-1].rows == rows
        known[few_rows] = len(runtime.batches)
    assert bound == {1: 1, 8: 8} and times == {1: 8, 8: 1}
    assert known[1] == len(rows) and known[8] <= 2 + len(rows) // 8
