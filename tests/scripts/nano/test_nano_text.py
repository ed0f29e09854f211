"""Training text of the small voice: what may be in it, the tokenizer, and the training step's
attention."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from moss_engine.models.network import MossSpeech, causal_attend
from moss_engine.text.spoken.text import spoken_text
from moss_engine.text.tokenizer import TextTokenizer
from scripts.nano.lm.corpus import PieceTable, nano_config
from scripts.nano.lm.generate import Settings, generate
from scripts.nano.lm.sequences import WIDTHS, Shape
from scripts.nano.lm.trainer import cell_attention
from scripts.nano.prompts import Judged
from scripts.nano.text.grammar import figures
from scripts.nano.text.intents import intents
from scripts.nano.text.phrases import IRREGULAR, PATTERNS, SLOTS
from scripts.nano.text.refusals import REFUSALS
from scripts.nano.text.sentences import EVERYDAY, HARVARD, STRESS
from scripts.nano.text.small_talk import typed
from scripts.nano.tokenizer import SPECIALS, VOCAB_SIZE, train_tokenizer


def texts() -> Iterator[str]:
    yield from PATTERNS
    yield from (option for options in SLOTS.values() for option in options)
    yield from (text for questions, answers in intents() for text in (*questions, *answers))
    yield from ["system\n", "user\n", "assistant\n"] * 50


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts())


def test_tokenizer_has_its_size_and_specials(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE == nano_config().vocab_size
    config = nano_config()
    found = [
        tokenizer.token_to_id(name)
        for name in ("<|im_end|>", "<|endoftext|>", "<|sosp|>", "<|audio|>")
    ]
    assert found == [
        config.eos_token_id,
        config.pad_token_id,
        config.sosp_token_id,
        config.modality_pad_token_id,
    ]


@given(
    text=st.one_of(
        st.text(), st.sampled_from(SPECIALS), st.lists(st.sampled_from(SPECIALS)).map(" ".join)
    )
)
@settings(deadline=None)
def test_any_text_can_be_encoded_as_itself(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(i >= len(SPECIALS) for i in ids)


def test_the_program_reads_the_same_pieces(tokenizer: Tokenizer) -> None:
    served = TextTokenizer(tokenizer.to_str())
    for text in (*HARVARD, *EVERYDAY, "system\n", "user\n", "assistant\n"):
        said = spoken_text(text) if not text.endswith("\n") else text
        assert served.encode(said) == tokenizer.encode(said).ids


def test_words_one_by_one_are_the_whole_text(tokenizer: Tokenizer) -> None:
    lines = [spoken_text(text) for text in EVERYDAY]
    table = PieceTable(tokenizer, lines, variants=3)
    drawn = random.Random(0)
    for line in lines:
        assert [i for word in table.words(line, None) for i in word] == tokenizer.encode(line).ids
        assert tokenizer.decode([i for word in table.words(line, drawn) for i in word]) == line
    pieces = [table.words(lines[0], drawn) for _ in range(20)]
    assert any(words != pieces[0] for words in pieces), "BPE dropout changes nothing"


def test_judged_sentences_are_recognised_wherever_they_stand() -> None:
    judged = Judged()
    for text in (*HARVARD, *EVERYDAY, *STRESS):
        assert judged.touches(spoken_text(text)) and judged.touches(spoken_text(text).lower())
    assert judged.touches("I said that the birch canoe slid on the smooth planks today.")
    assert not judged.touches("The dog sat on the warm grass beside the road.")


def test_small_talk_is_already_in_its_spoken_form_and_never_ambiguous() -> None:
    asked = [question.lower() for questions, _ in intents() for question in questions]
    assert len(set(asked)) == len(asked), "a question with two answers cannot be learnt"
    for _, answer in intents():
        assert spoken_text(answer) and not any(c.isdigit() for c in answer), answer
    assert all(
        spoken_text(refusal) == refusal and "small built-in voice" in refusal
        for refusal in REFUSALS
    )
    assert len(intents()) >= 150


def test_a_question_is_typed_in_many_ways_and_keeps_its_words() -> None:
    rng = random.Random(0)
    ways = {typed("What is the capital of France?", rng) for _ in range(300)}
    assert len(ways) > 20
    assert all("capital of france" in way.lower() for way in ways)


def test_prompts_of_the_stress_set_have_3_to_40_words() -> None:
    counts = [len(text.split()) for text in STRESS]
    assert min(counts) == 3 and max(counts) == 40
    assert sum(count > 28 for count in counts) >= 10


def test_every_slot_of_a_pattern_can_be_filled() -> None:
    from_wordnet = {
        "artifact",
        "animal",
        "abstract",
        "body",
        "event",
        "food",
        "object",
        "person",
        "plant",
        "wn_adj",
    }
    verbs_and_plurals = {"vt", "vtd", "vtp", "ving", "plural", "plurals", "Plur", "Plural"}
    for text in (*PATTERNS, *(option for options in SLOTS.values() for option in options)):
        for name in re.findall(r"\{(\w+)\}", text):
            if name not in SLOTS and name not in from_wordnet | verbs_and_plurals:
                assert figures(name, random.Random(1))
    assert all(len(forms) == 2 for forms in IRREGULAR.values())


def tiny_model() -> MossSpeech:
    torch.manual_seed(0)
    config = dataclasses.replace(
        nano_config(), hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
        num_shared_layers=1, num_modality_layers=1,
    )  # fmt: skip
    return MossSpeech(config).eval()


@torch.inference_mode()
def test_cells_attend_as_sequences_alone() -> None:
    model = tiny_model()
    shape = Shape(cells=(2, 1, *[0] * (len(WIDTHS) - 2)), text_targets=1, audio_targets=1)
    rows = torch.stack(
        [torch.randint(5, 1024, (shape.num_rows,)), torch.randint(0, 4096, (shape.num_rows,))], -1
    )
    positions = torch.cat([torch.arange(64), torch.arange(64), torch.arange(96)])
    together = model(rows, positions, cell_attention(shape, torch.float32))
    for start, width in ((0, 64), (64, 64), (128, 96)):
        here = slice(start, start + width)
        alone = model(rows[here], positions[here], causal_attend)
        torch.testing.assert_close(together.text[here], alone.text)
        torch.testing.assert_close(together.audio[here], alone.audio)


def test_direct_generation_is_the_same_in_a_batch_as_alone() -> None:
    model = tiny_model()
    greedy = Settings(
        audio_temperature=0.0, audio_top_k=0, audio_top_p=1.0, text_temperature=0.0, seed=1
    )
    prompts = [[0, 20, 1], [0, 21, 22, 23, 24, 1], [9]]
    together = generate(model, prompts, greedy, max_rows=20)
    assert together == [generate(model, [prompt], greedy, max_rows=20)[0] for prompt in prompts]
    assert all(reply for reply in together)
