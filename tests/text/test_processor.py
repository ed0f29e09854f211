"""Prompts, modes, voices and text: golden rows of the published template, and a small byte-level
tokenizer."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_engine import open_service
from moss_engine.api.errors import (
    CheckpointError,
    InputError,
    ParameterError,
    TextEmptyError,
    TextTooLongError,
    UnsupportedModeError,
)
from moss_engine.api.request import ChannelSampling, Message, Reply, Request, Sampling, Speech, Text
from moss_engine.api.tokens import Row
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.text.language import LANGUAGES
from moss_engine.text.modes import PUBLISHED_MODES, PUBLISHED_SAMPLING
from moss_engine.text.processor import Processor, load_processor
from moss_engine.text.tokenizer import TextTokenizer
from tests.fakes import CONFIG
from tests.fixtures.make_tiny_checkpoint import SPECIALS, make_tokenizer

MODE = {"input": "text", "output": "speech", "note": None}
READ = {**MODE, "name": "read", "label": "Read aloud", "system": "<read>"}
READ |= {"split_sentences": True, "default": True}
CHAT = {**MODE, "name": "chat", "label": "Small talk", "system": "<chat>"}
CHAT |= {"split_sentences": False, "default": False}
MODES = {"modes": [READ, CHAT], "segment_chars": 60, "max_rows_per_char": 3.5, "min_cap_rows": 50}
CHANNEL = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.0}
GENERATION = {
    "text": {**CHANNEL, "temperature": 0.0},
    "audio": CHANNEL,
    "max_rows": 600,
    "min_rows": 0,
}
FILES = {"processor_config.json": MODES, "generation_config.json": GENERATION}
BEN = {"name": "ben", "label": "Ben", "token": "<voice:ben>", "default": False}
ADA = {"name": "ada", "label": "Ada", "token": "<voice:ada>", "default": True}
RATES = [{"speed": 1.2**k, "token": f"<rate:{k}>"} for k in range(-2, 3)]

TOKENIZER_JSON = make_tokenizer().to_str()
TOKENIZER = TextTokenizer(TOKENIZER_JSON)


def model_config(**changes: int) -> ModelConfig:
    ids = {"sosp_token_id": 3, "eosp_token_id": 4096, "modality_pad_token_id": 4}
    ids |= {"audio_pad_token_id": 4097, "eos_token_id": 1, "pad_token_id": 2}
    sizes = {"vocab_size": 400, "audio_vocab_size": 4112}
    return replace(CONFIG, **{**sizes, **ids, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER_JSON, encoding="utf-8")
    for name in FILES:
        write(tmp_path, name)
    return tmp_path


def write(folder: Path, name: str, **fields: object) -> None:
    """A file with other fields; without those that are None."""
    values = {key: value for key, value in {**FILES[name], **fields}.items() if value is not None}
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def load(folder: Path, **changes: int) -> Processor:
    return load_processor(folder, model_config(**changes), max_text_chars=4000)


@pytest.fixture
def processor(folder: Path) -> Processor:
    return load(folder)


@pytest.fixture
def speaking(folder: Path) -> Processor:
    """In two voices and five speaking rates."""
    values = json.loads(TOKENIZER_JSON)
    tokens = [choice["token"] for choice in (ADA, BEN, *RATES)]
    for text_id, token in enumerate(tokens, TOKENIZER.vocab_size):
        values["added_tokens"].append(
            {**values["added_tokens"][0], "id": text_id, "content": token}
        )
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    write(folder, "processor_config.json", voices=[BEN, ADA], rates=RATES, min_cap_rows=1)
    return load(folder)


def ask(
    processor: Processor,
    *messages: Message,
    mode: str | None = None,
    sampling: Sampling | None = None,
    **changes: object,
) -> Request:
    mode = mode or processor.default_mode.name
    request = Request("r", "s", messages, mode, sampling or processor.default_sampling)
    return replace(request, **changes)


def say(text: str) -> Message:
    return Message("user", Text(text))


SYSTEM_IDS = [
    *(2610, 525, 264, 10950, 7743, 17847, 13, 21806),
    *(279, 1196, 594, 4755, 448, 21355, 14507, 13),
]
USER_IDS = [11622, 104811, 109432, 100633, 9370, 44991, 26939, 100802, 102280, 105869, 1773]
CODES = (2861, 10370, 11506, 2252, 10663, 10663, 11135, 11135, 7812, 14633)


class GoldenTokenizer:
    """The ids that the published tokenizer gives to the pieces of the golden prompts."""

    def __init__(self):
        self.special_ids = {
            "<|im_start|>": 151644,
            "<|im_end|>": 151645,
            "<|object_ref_start|>": 151646,
        }
        self.pieces = {
            "system\n": [8948, 198],
            "user\n": [872, 198],
            "assistant\n": [77091, 198],
            "\n": [198],
            PUBLISHED_MODES.default.system: SYSTEM_IDS,
            "question": USER_IDS,
        }

    def encode(self, text: str) -> list[int]:
        return self.pieces[text]


def published() -> Processor:
    return Processor(GoldenTokenizer(), PUBLISHED, PUBLISHED_MODES, PUBLISHED_SAMPLING, 4000)


def texts(*ids: int) -> list[Row]:
    return [Row(i, 512) for i in ids]


GOLDEN_SYSTEM = texts(151644, 8948, 198, *SYSTEM_IDS, 151645, 198)
GOLDEN_HEADER = texts(151644, 77091, 198, 151646)


def golden_prompt(*messages: Message, mode: str) -> list[Row]:
    processor = published()
    (segment,) = processor.prepare(ask(processor, *messages, mode=mode))
    return list(segment.prompt)


SPOKEN = [Row(151646, 512), *(Row(151667, code) for code in CODES), Row(151667, 16384)]


@pytest.mark.parametrize(
    ("content", "mode", "rows"),
    [
        (Text("question"), "text-to-speech", texts(*USER_IDS)),
        (Speech(CODES), "speech-to-speech", SPOKEN),
    ],
)
def test_golden_questions(content: Text | Speech, mode: str, rows: list[Row]):
    user = [*texts(151644, 872, 198), *rows, *texts(151645, 198)]
    prompt = golden_prompt(Message("user", content), mode=mode)
    assert prompt == [*GOLDEN_SYSTEM, *user, *GOLDEN_HEADER]


def test_golden_written_answer_has_no_sosp():
    processor = published()
    mode = replace(processor.modes[2], system=PUBLISHED_MODES.default.system)
    assert mode.output == "text"
    assert list(processor.prompt(mode, (say("question"),)))[-3:] == texts(151644, 77091, 198)


def test_a_system_message_takes_the_place_of_the_modes_own():
    rows = golden_prompt(
        Message("system", Text("question")), say("question"), mode="text-to-speech"
    )
    assert rows[:16] == texts(151644, 8948, 198, *USER_IDS, 151645, 198)
    assert rows[16:19] == texts(151644, 872, 198)


@pytest.mark.parametrize(
    "ending",
    [[Row(151667, 16384), Row(151645, 99)], [Row(151667, 16384)], []],
    ids=["complete", "cut after eosp", "cut in speech"],
)
def test_an_earlier_reply_stands_in_the_grid_as_it_was_sampled(ending: list[Row]):
    first = golden_prompt(say("question"), mode="text-to-speech")
    spoken = [Row(151667, 5), Row(151667, 6)]
    rows = golden_prompt(
        say("question"),
        Message("assistant", Reply((*spoken, *ending))),
        say("question"),
        mode="text-to-speech",
    )
    so_far = [*first, *spoken, Row(151667, 16384)]
    assert rows[: len(so_far)] == so_far, (
        "the first turn's rows, hence its KV blocks, are found again"
    )
    assert rows[len(so_far) : len(so_far) + 5] == texts(151645, 198, 151644, 872, 198)
    assert rows[-4:] == GOLDEN_HEADER


def test_audio_that_was_sampled_beside_an_earlier_replys_text_is_no_history():
    mixed = (Row(11, 99), Row(151646, 16384), Row(151667, 5), Row(151667, 16384), Row(12, 98))
    rows = golden_prompt(
        say("question"), Message("assistant", Reply(mixed)), say("question"), mode="text-to-speech"
    )
    start = rows.index(Row(151667, 5))
    speech = [Row(151667, 5), Row(151667, 16384)]
    assert rows[start - 2 : start + 3] == [*texts(11, 151646), *speech, *texts(12)]


def test_typed_text_is_stripped_and_a_system_turn_is_not():
    plain = golden_prompt(say("question"), mode="text-to-speech")
    assert golden_prompt(say(" question\n"), mode="text-to-speech") == plain
    system = Message("system", Text(" question"))
    with pytest.raises(KeyError, match=" question"):
        golden_prompt(system, say("question"), mode="text-to-speech")


def test_read_prompt(processor: Processor):
    encode = TOKENIZER.encode
    (segment,) = processor.prepare(ask(processor, say("The cat sat.")))
    system = [0, *encode("system\n"), 5, 1, *encode("\n")]
    user = [0, *encode("user\n"), *encode("The cat sat."), 1, *encode("\n")]
    ids = [*system, *user, 0, *encode("assistant\n")]
    assert segment.prompt == tuple(Row(i, 4097) for i in ids)


@pytest.mark.parametrize("mode", ["read", "chat"])
def test_a_text_is_spelled_out_once(processor: Processor, monkeypatch, mode: str):
    spelled: list[str] = []
    english = LANGUAGES["en"]

    def spoken_text(text: str) -> str:
        spelled.append(text)
        return english.spoken_text(text)

    monkeypatch.setitem(LANGUAGES, "en", replace(english, spoken_text=spoken_text))
    processor.prepare(ask(processor, say("It is 7 o'clock.\n\nA cat sat."), mode=mode))
    assert "".join(spelled).count("cat") == 1 and "".join(spelled).count("clock") == 1


@pytest.mark.parametrize(
    ("typed", "said"), [("is it a cat", "Is it a cat?"), ("7 cats", "seven cats")]
)
def test_a_typed_line_is_read_as_a_sentence_of_words(processor: Processor, typed: str, said: str):
    one, other = (processor.prepare(ask(processor, say(text))) for text in (typed, said))
    assert one == other


def test_every_sentence_is_a_segment_of_its_own_with_its_own_cap(processor: Processor):
    long = "the cat sat on the mat and looked at the door."
    segments = processor.prepare(
        ask(processor, say(f"{long} the mat was warm and the cat was too."))
    )
    assert len(segments) == 2
    alone = processor.prepare(ask(processor, say(long)))[0]
    assert replace(segments[0], reply_rows=alone.reply_rows) == alone
    assert segments[0].max_rows == math.ceil(len(long) * 3.5)
    assert processor.prepare(ask(processor, say("hi")))[0].max_rows == 50
    fewer = replace(processor.default_sampling, max_rows=20)
    assert processor.prepare(ask(processor, say(long), sampling=fewer))[0].max_rows == 20


def test_many_tiny_sentences_have_no_more_rows_in_all_than_their_characters(processor: Processor):
    many = processor.prepare(ask(processor, say("a. " * 1300)))
    whole = processor.prepare(ask(processor, say("word " * 700)))
    assert len(many) > 400 and len({segment.reply_rows for segment in many}) == 1
    assert many[0].reply_rows <= sum(segment.max_rows for segment in whole) * 1.2
    assert sum(segment.max_rows for segment in many) > 1.5 * many[0].reply_rows


def test_only_the_last_message_counts_without_history(processor: Processor):
    reply = Message("assistant", Reply((Row(9, 9), Row(1, 0))))
    for mode in ("read", "chat"):
        alone, after = [
            processor.prepare(ask(processor, *messages, mode=mode))
            for messages in ([say("a cat")], [say("a mat"), reply, say("a cat")])
        ]
        assert alone == after


def test_modes_and_defaults_are_the_checkpoints(processor: Processor):
    assert [mode.name for mode in processor.modes] == ["read", "chat"]
    assert processor.default_mode.name == "read"
    audio = ChannelSampling(0.6, 20, 0.95, 1.0)
    text = replace(audio, temperature=0.0)
    assert processor.default_sampling == Sampling(text, audio, max_rows=600, min_rows=0, seed=0)
    assert processor.speaks(ask(processor, say("a"))) is True


@given(
    st.lists(
        st.one_of(
            st.sampled_from(SPECIALS), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_no_text_becomes_a_special_token_and_every_text_comes_back(parts: list[str]):
    text = "".join(parts)
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(range(len(SPECIALS)))
    assert decoded(ids) == text


def decoded(*segments: list[int]) -> str:
    decoder = TOKENIZER.open_decoder()
    return "".join("".join(map(decoder.push, ids)) + decoder.end_segment() for ids in segments)


@pytest.mark.parametrize("special", SPECIALS)
def test_a_typed_special_token_is_plain_text_in_a_prompt(folder: Path, special: str):
    # A network that takes text as typed, as the published one does; the small one spells it out.
    modes = [{**mode, "spell_out": False, "history": True} for mode in MODES["modes"]]
    write(folder, "processor_config.json", modes=modes)
    processor = load(folder)
    system = Message("system", Text(special))
    for messages in ([say(f"a{special}b")], [system, say("a")]):
        plain = [Message(m.role, Text(m.content.text.replace(special, "cat"))) for m in messages]
        prompts = [
            processor.prepare(ask(processor, *these, mode="chat"))[0].prompt
            for these in (messages, plain)
        ]
        counts = [sum(row.text < len(SPECIALS) for row in prompt) for prompt in prompts]
        assert counts[0] == counts[1] == 5 + (messages[0] is not system), (
            "turn marks, and <chat> when it is ours"
        )


def test_a_character_comes_with_its_last_byte_and_half_of_one_is_not_swallowed():
    text = "né 中🙂"
    decoder = TOKENIZER.open_decoder()
    pieces = [decoder.push(i) for i in TOKENIZER.encode(text)]
    assert "".join(pieces) == text
    assert "" in pieces, "the text has characters of several ids"
    assert not any("\ufffd" in piece for piece in pieces)
    decoder = TOKENIZER.open_decoder()
    assert "".join(map(decoder.push, TOKENIZER.encode("🙂")[:-1])) == ""
    assert decoder.end_segment() == "\ufffd"


def test_segments_are_joined_with_one_space_and_special_tokens_are_not_shown():
    assert decoded([3, *TOKENIZER.encode("cat"), 1]) == "cat"
    assert decoded(*map(TOKENIZER.encode, ("the cat.", " a mat.", "cat"))) == "the cat. a mat. cat"


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("", TextEmptyError, "nothing"),
        (" \n\t ", TextEmptyError, "nothing"),
        ("a" * 100_000, TextTooLongError, "100,000"),
        ("a\x00b", InputError, "U+0000 at position 2"),
        ("a\x85", InputError, "U+0085"),
        ("ab\ud83d", InputError, "U+D83D"),
        ("?!", TextEmptyError, "spoken"),
        (7, InputError, "not a text"),
    ],
)
def test_bad_text_gets_one_sentence(
    processor: Processor, text: str, error: type[InputError], word: str
):
    with pytest.raises(error) as caught:
        processor.prepare(ask(processor, say(text)))
    sentence = str(caught.value)
    assert word.lower() in sentence.lower() and sentence.endswith(".") and len(sentence) < 160
    assert 400 <= caught.value.http_status < 500


BAD_NUMBERS = (math.nan, math.inf, -1, "0.5", True, None)
BAD_CHANNEL = {
    "temperature": (*BAD_NUMBERS, 2.1, 1e-3),
    "top_k": (*BAD_NUMBERS, 1.5, 10**30),
    "top_p": (*BAD_NUMBERS, 1.01),
    "repetition_penalty": (*BAD_NUMBERS, 0),
}
BAD_SAMPLING = {
    "max_rows": (*BAD_NUMBERS, 0, 10.0),
    "min_rows": (*BAD_NUMBERS, 601),
    "seed": (*BAD_NUMBERS, 2**63),
    "text": (None,),
    **{f"text.{field}": values for field, values in BAD_CHANNEL.items()},
    **{f"audio.{field}": values for field, values in BAD_CHANNEL.items()},
}


@pytest.mark.parametrize("name", BAD_SAMPLING)
def test_a_bad_sampling_value_is_named_and_never_clamped(processor: Processor, name: str):
    sampling = processor.default_sampling
    channel, _, field = name.rpartition(".")
    for value in BAD_SAMPLING[name]:
        changes = {field: value}
        if channel:
            changes = {channel: replace(getattr(sampling, channel), **changes)}
        with pytest.raises(ParameterError, match=re.escape(name)):
            processor.prepare(ask(processor, say("a cat"), sampling=replace(sampling, **changes)))


def test_the_ends_of_a_range_are_allowed(processor: Processor):
    for audio in (ChannelSampling(0, 0, 1, 1.0), ChannelSampling(2, 1000, 1, 2.0)):
        sampling = replace(processor.default_sampling, audio=audio)
        assert processor.prepare(ask(processor, say("a cat"), sampling=sampling))


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ((), InputError),
        ((Message("assistant", Text("a")),), InputError),
        ((Message("system", Text("a")),), InputError),
        ((say("a"), Message("system", Text("b")), say("c")), InputError),
        ((Message("user", Reply((Row(1, 1),))),), UnsupportedModeError),
        ((say("a"), Message("assistant", Reply((Row(400, 1),))), say("c")), InputError),
        ((say("a"), Message("assistant", Reply((Row(1, -1),))), say("c")), InputError),
        ((Message("user", Speech((1, 2))),), UnsupportedModeError),
        ((Message("user", Speech((4096,))), say("c")), ParameterError),
        ((Message("system", Speech((1,))), say("c")), InputError),
    ],
)
def test_bad_conversations_are_refused(
    processor: Processor, messages: tuple[Message, ...], error: type[InputError]
):
    with pytest.raises(error):
        processor.prepare(ask(processor, *messages))


def test_unknown_modes_and_ids_are_refused(processor: Processor):
    with pytest.raises(UnsupportedModeError, match="read, chat"):
        processor.prepare(ask(processor, say("a"), mode="sing"))
    for field in ("request_id", "session_id"):
        for value in ("", "x" * 201, 7, None):
            with pytest.raises(ParameterError, match=field):
                processor.prepare(ask(processor, say("a"), **{field: value}))


@pytest.mark.parametrize("name", ["tokenizer.json", *FILES])
@pytest.mark.parametrize("content", [None, "{", "{}", '{"modes": [{}]}', '{"model": 1}'])
def test_a_missing_or_damaged_file_is_named(folder: Path, name: str, content: str | None):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "word"), [({"eos_token_id": 0}, "im_end"), ({"vocab_size": 200}, "ids")]
)
def test_a_tokenizer_of_another_network_is_refused(folder: Path, changes: dict, word: str):
    with pytest.raises(CheckpointError, match=word):
        load(folder, **changes)


WRONG_MODES = [
    ({"segment_chars": 0}, r"must be positive; use the file that belongs to"),
    ({"segment_chars": None}, r"'segment_chars' is missing; use the file"),
    ({"max_rows_per_char": "fast"}, "fast"),
    ({"modes": [CHAT]}, "exactly one default"),
    ({"modes": [READ] * 2}, "different names"),
    ({"modes": [{**READ, "output": "song"}]}, "song"),
    ({"modes": [{**READ, "tempo": 1}]}, "tempo"),
    ({"modes": [{**READ, "language": "tlh"}]}, "in tlh, of which nothing"),
    ({"voices": [ADA, BEN]}, "has no <voice:ada>, <voice:ben> of"),
    ({"voices": [ADA, ADA]}, "different names"),
    ({"voices": [BEN]}, "exactly one default"),
    ({"voices": [{"name": "ada"}]}, "label"),
    ({"rates": [{"speed": 0, "token": "<rate:0>"}]}, "must be positive"),
    ({"rates": [{"speed": 1.0, "token": "<rate:9>"}]}, "has no <rate:9> of"),
]
WRONG_SAMPLING = [
    ({"max_rows": 0}, r"max_rows is 0; give a .* to \d+; use the file"),
    ({"text": {**CHANNEL, "top_p": 3}}, "top_p"),
    ({"text": {**CHANNEL, "tempo": 1}}, "tempo"),
]


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        *(("processor_config.json", *wrong) for wrong in WRONG_MODES),
        *(("generation_config.json", *wrong) for wrong in WRONG_SAMPLING),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(folder: Path, name: str, fields: dict, says):
    write(folder, name, **fields)
    with pytest.raises(CheckpointError, match=rf"(?s){name}.*{says}|{says}.*{name}"):
        load(folder)


def test_a_generation_config_without_a_later_parameter_loads(folder: Path):
    write(folder, "generation_config.json", audio={"temperature": 0.6})
    assert load(folder).default_sampling.audio == ChannelSampling(0.6, 0, 1.0, 1.0)


def test_the_published_checkpoint_is_told_by_its_tokenizer(folder: Path):
    source = TOKENIZER_JSON.replace("<|sosp|>", "<|object_ref_start|>")
    (folder / "tokenizer.json").write_text(source, encoding="utf-8")
    processor = load(folder)
    assert processor.modes == PUBLISHED_MODES.modes
    assert processor.default_sampling == PUBLISHED_SAMPLING


def special_tokens(processor: Processor, request: Request) -> list[str]:
    """Those of the first prompt of a request."""
    texts = range(len(SPECIALS), TOKENIZER.vocab_size)
    ids = [row.text for row in processor.prepare(request)[0].prompt]
    return [processor.pieces()[text_id] for text_id in ids if text_id not in texts]


@pytest.mark.parametrize("mode", ["read", "chat"])
def test_voice_and_rate_stand_in_the_system_turn_of_every_segment(speaking: Processor, mode: str):
    request = ask(speaking, say("A cat sat. And a mat."), mode=mode, voice="ben", speed=0.7)
    tokens = ["<|im_start|>", f"<{mode}>", "<voice:ben>", "<rate:-2>", "<|im_end|>"]
    assert special_tokens(speaking, request)[:5] == tokens
    segments = speaking.prepare(request)
    assert len(segments) == (2 if mode == "read" else 1)
    assert len({segment.prompt[:10] for segment in segments}) == 1


def test_the_nearest_rate_is_taken_and_the_default_voice(speaking: Processor):
    for speed, token in {0.7: -2, 0.76: -2, 0.77: -1, 1.0: 0, 1.1: 1, 1.5: 2}.items():
        tokens = special_tokens(speaking, ask(speaking, say("a cat"), speed=speed))
        assert tokens[2:4] == ["<voice:ada>", f"<rate:{token}>"]


def test_slow_speech_may_have_more_rows(speaking: Processor):
    rows = [
        speaking.prepare(ask(speaking, say("A cat sat."), speed=speed))[0].max_rows
        for speed in (0.75, 1.0, 1.5)
    ]
    assert rows == [math.ceil(10 * 3.5 / 0.75), 35, 35]


def test_a_speed_out_of_range_and_an_unknown_voice_are_sentences(speaking: Processor):
    for speed in (0.69, 1.51, -1.0, math.nan, math.inf, "1", True, None):
        with pytest.raises(ParameterError, match=r"speed is .*0\.7 to 1\.5\."):
            speaking.prepare(ask(speaking, say("a cat"), speed=speed))
    with pytest.raises(ParameterError, match="'eve' is unknown; choose one of ada, ben"):
        speaking.prepare(ask(speaking, say("a cat"), voice="eve"))


def test_without_the_fields_there_is_nothing_to_choose(processor: Processor):
    assert processor.speakers.names == () and processor.speakers.speeds is None
    with pytest.raises(ParameterError, match=r"speaks at one speed; leave it at 1\."):
        processor.prepare(ask(processor, say("a cat"), speed=1.2))


def test_the_service_offers_the_networks_voices_and_speeds():
    with open_service(kv_rows=1024) as client:
        first, second = client.info.voices
        assert client.info.speeds == (0.7, 1.5)
        with pytest.raises(ParameterError, match=f"'nano' is unknown; choose one of {first}, "):
            client.say("Hello.", voice="nano")
        spoken = [client.say("Hi.", voice=name, speed=1.3).samples for name in (first, second)]
        assert not np.array_equal(*spoken)
