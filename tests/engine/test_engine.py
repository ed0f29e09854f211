"""The engine over a scripted runtime: what a step emits, and in which order sequences run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moss_engine.api.events import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.modes import read_default_sampling, read_modes
from moss_engine.api.request import ChannelSampling, Message, Reply, Request, Sampling, Text
from moss_engine.api.tokens import Modality, Row, text_rows
from moss_engine.config import EngineConfig
from moss_engine.engine.engine import Engine
from moss_engine.engine.sequence import Segment
from moss_engine.models.config import ModelConfig
from moss_engine.runtime.base import BatchSampling, ScheduledBatch
from moss_engine.runtime.make import make_runtime
from moss_engine.text.processor import Processor
from moss_engine.text.tokenizer import TextTokenizer
from tests.engine.engine_support import assert_at_rest, make_engine, only, run, sampled_rows, serve
from tests.fakes import (
    HEADER,
    IDS,
    LIMITS,
    PAD,
    SPOKEN,
    WARM,
    FakeDecoder,
    FakeRuntime,
    make_request,
    noisy,
    scripted,
)

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


def test_text_is_placed_on_the_time_line_of_the_sound():
    span = SPOKEN[2:7]
    engine = make_engine(FakeRuntime(scripted([SPOKEN[0], *span, SPOKEN[1], *span, SPOKEN[-1]])))
    (events,) = serve(engine, make_request())
    assert [(event.text, event.start_sample) for event in only(events, TextDelta)] == [
        ("a", 0),
        ("b", 3 * 960),
    ]


def test_max_rows_ends_a_reply_by_length():
    engine = make_engine(FakeRuntime(scripted([Row(ord("x"), 0)])))
    (events,) = serve(engine, make_request(max_rows=7))
    assert (events[-1].reason, events[-1].num_rows) == (FinishReason.LENGTH, 7)
    assert_at_rest(engine)


def test_eosp_is_held_back_for_min_rows():
    engine = make_engine(FakeRuntime(scripted([SPOKEN[2], Row(PAD, IDS.eosp), SPOKEN[-1]])))
    request = make_request()
    request = replace(request, sampling=replace(request.sampling, min_rows=6, max_rows=12))
    rows = serve(engine, request)[0][-1].rows
    assert IDS.eosp not in [row.audio for row in rows[1:5]]
    assert IDS.eosp in [row.audio for row in rows[5:]]


def test_the_runtime_sees_every_row_once_and_in_its_place():
    runtime = FakeRuntime(scripted(SPOKEN), replace(LIMITS, max_step_rows=8))
    engine = make_engine(runtime)
    serve(engine, make_request("a prompt of 24 letters.."))
    shares = [batch.sequences[0] for batch in runtime.batches]
    assert [(s.num_cached, len(s.rows), s.sample) for s in shares] == [
        (0, 8, False),
        (8, 8, False),
        (16, 8, False),
        (24, 1, True),
        *[(25 + i, 1, True) for i in range(7)],
    ]


def test_a_second_turn_prefills_only_its_new_rows():
    runtime = FakeRuntime(scripted(SPOKEN))
    engine = make_engine(runtime)
    history = (
        "the first "
        "question"
    )  # the fake prompt ends with HEADER, so a later one repeats only the text
    (first,) = serve(engine, make_request(history))
    (second,) = serve(engine, make_request(history + " and more"))
    assert (
        only(second, Started)[0].num_cached_rows
        == len(history) // LIMITS.block_size * LIMITS.block_size
    )
    assert only(second, Sampled)[0].row == only(first, Sampled)[0].row
    assert sum(len(s.rows) for s in runtime.batches[len(SPOKEN)].sequences) == 28 - 16


def test_segments_run_one_after_another_as_one_reply():
    runtime = FakeRuntime(scripted(SPOKEN))
    engine = make_engine(runtime)
    (events,) = serve(engine, make_request("one\ntwo\nthree", mode="lines"))
    assert len(only(events, Started)) == len(only(events, Finished)) == 1
    assert events[-1].rows == tuple(SPOKEN * 3) and events[-1].reason is FinishReason.STOP
    assert [event.start_sample for event in only(events, TextDelta)] == [
        0,
        0,
        2880,
        2880,
        5760,
        5760,
    ]
    prompts = [
        "".join(chr(row.text) for row in batch.sequences[0].rows[:-1])
        for batch in runtime.batches
        if batch.sequences[0].rows[-1].text == HEADER
    ]
    assert prompts == ["one", "two", "three"]
    assert_at_rest(engine)


def test_a_segment_cut_by_its_cap_does_not_end_the_reply_but_tells():
    engine = make_engine(FakeRuntime(scripted([Row(ord("x"), 0)])))
    (events,) = serve(engine, make_request("one\ntwo", mode="lines", max_rows=5))
    assert events[-1].reason is FinishReason.LENGTH and events[-1].num_rows == 10


def test_segments_draw_different_numbers():
    engine = make_engine(FakeRuntime(noisy))
    (events,) = serve(engine, make_request("same\nsame", mode="lines", channel=WARM, max_rows=8))
    assert events[-1].rows[:8] != events[-1].rows[8:]


def test_a_segmented_reply_never_waits_for_blocks_that_others_want():
    # Two replies fill the pool with promises; at every seam one's blocks are free for a moment.
    engine = make_engine(FakeRuntime(noisy, replace(LIMITS, num_blocks=16, block_size=4)))
    requests = [
        make_request(f"{i}bc\nshort{i}\nx", mode="lines", channel=WARM, max_rows=24, seed=i)
        for i in range(5)
    ]
    gaps = dict.fromkeys((r.request_id for r in requests), 0)
    for request in requests:
        engine.submit(request)
    for _ in range(400):
        batch_count = len(engine.runtime.batches)
        events = engine.step().events
        engine.check_integrity()
        ran = (
            len(engine.runtime.batches[batch_count].sequences)
            if len(engine.runtime.batches) > batch_count
            else 0
        )
        assert ran >= engine.stats().running, "a started reply was left out of a step"
        for event in only(list(events), Finished):
            gaps.pop(event.request_id)
    assert not gaps
    assert_at_rest(engine)


def test_the_same_seed_gives_the_same_rows_whoever_else_is_served():
    request = make_request("a question", channel=WARM, max_rows=30, seed=7)
    (alone,) = serve(make_engine(FakeRuntime(noisy)), request)
    for others in range(1, 4):
        crowd = [
            make_request(f"{i} another", channel=WARM, max_rows=9 + 5 * i, seed=i)
            for i in range(others)
        ]
        engine = make_engine(FakeRuntime(noisy, replace(LIMITS, max_step_rows=12)))
        *_, together = serve(engine, *crowd, request)
        assert sampled_rows(together) == sampled_rows(alone)
    (other,) = serve(
        make_engine(FakeRuntime(noisy)),
        replace(request, sampling=replace(request.sampling, seed=8)),
    )
    assert sampled_rows(other) != sampled_rows(alone)


def test_paused_turns_rest_while_others_run():
    engine = make_engine(FakeRuntime(noisy))
    one, two = (make_request(channel=WARM, max_rows=40, seed=i) for i in range(2))
    engine.submit(one), engine.submit(two)
    engine.step()
    rested = [event.request_id for _ in range(5) for event in engine.step({one.request_id}).events]
    assert set(rested) == {two.request_id}
    assert engine.step({one.request_id, two.request_id}).num_rows == 0
    assert len(run(engine)) == 2


def test_mode_of_a_row_is_the_one_it_was_sampled_in():
    engine = make_engine(FakeRuntime(scripted(SPOKEN)))
    (events,) = serve(engine, make_request())
    sosp = next(event for event in only(events, Sampled) if event.row.text == IDS.sosp)
    assert sosp.modality is Modality.TEXT


def test_text_heads_that_are_left_out_change_no_row(tiny_checkpoint: Path):
    """Spans of speech with text between them, two replies at once; the last blocks are found again
    complete."""
    plain = EngineConfig(
        checkpoint=tiny_checkpoint, block_size=8, kv_rows=2048, dtype="float32", skip_unused=False
    )
    model = ModelConfig.from_file(tiny_checkpoint / "config.json")
    values = ChannelSampling(temperature=1.0, top_k=30, top_p=1.0, repetition_penalty=1.1)
    sampling = Sampling(values, values, max_rows=120, min_rows=0, seed=4)
    prompts = (text_rows(range(20, 49), model.special), [Row(model.sosp_token_id, 0)])

    class Prompts:
        ids = model.special

        def prepare(self, request: Request) -> tuple[Segment, ...]:
            return (Segment(tuple(row for rows in prompts for row in rows), 120),)

        def speaks(self, request: Request) -> bool:
            return True

        def open_text_decoder(self) -> FakeDecoder:
            return FakeDecoder()

    def replies(config: EngineConfig) -> tuple[list[tuple[Row, ...]], int]:
        runtime = make_runtime(config)
        engine = Engine(runtime, Prompts(), config, samples_per_code=960)
        batches, forward = [], runtime.forward
        runtime.forward = lambda batch: batches.append(batch) or forward(batch)  # type: ignore
        asked = [
            Request(name, name, (), "speech", replace(sampling, seed=seed))
            for name, seed in (("a", 1), ("b", 2), ("c", 3), ("d", 1))
        ]
        answers = [serve(engine, *asked[:2]), serve(engine, *asked[2:])]
        rows = [events[-1].rows for pair in answers for events in pair]
        parts = [part for batch in batches for part in batch.sequences]
        return rows, sum(not part.text_logits for part in parts)

    wanted, num_less = replies(plain)
    assert num_less == 0
    found, num_less = replies(replace(plain, skip_unused=True))
    assert found == wanted and num_less > 100
    spoken = [row.text == model.modality_pad_token_id for rows in wanted for row in rows]
    assert any(spoken) and not all(spoken)


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


def test_turns_that_nobody_hears_on_are_not_counted_over_and_over():
    """More than fit into a step, and all of them are held back for long."""
    runtime = FakeRuntime(noisy, replace(LIMITS, max_batch=2, num_blocks=256))
    engine = make_engine(runtime)
    told: list[tuple[str, ...]] = []
    step = runtime.step

    def noting(batch: ScheduledBatch, sampling: BatchSampling) -> list[Row | None]:
        told.append(sampling.finished)
        return step(batch, sampling)

    runtime.step = noting  # type: ignore[method-assign]
    names = {engine.submit(make_request(name, max_rows=60)).request_id for name in "abcd"}
    far = dict.fromkeys(names, 60.0)
    while engine.stats().running < 4:
        engine.step((), far)
    for _ in range(100):
        assert not engine.step(names, far).num_rows
    engine.step((), far)
    assert len(told[-1]) == len(set(told[-1])) == 2
