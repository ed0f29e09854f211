"""The training text of the built-in voice: what may be in it, and the tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from moss_engine.text.spoken.text import spoken_text
from moss_engine.text.tokenizer import TextTokenizer
from scripts.nano.lm.sequences import PieceTable, nano_config
from scripts.nano.prompts import Judged
from scripts.nano.speech.voices import RATE_TOKENS, VOICE_TOKENS
from scripts.nano.text.grammar import SLOTS, TABLES
from scripts.nano.text.reading import Homographs
from scripts.nano.tokenizer import SPECIALS, VOCAB_SIZE, train_tokenizer
from scripts.sentences import EVERYDAY, HARVARD

TAGS = (*SPECIALS, *VOICE_TOKENS.values(), *RATE_TOKENS)
PATTERNS = [*TABLES["everyday"], *TABLES["talk"]]


def texts() -> Iterator[str]:
    yield from PATTERNS
    yield from (option for options in SLOTS.values() for option in options)
    yield from (
        frame for _, _, frames in Homographs(plain, random.Random(0)).senses for frame in frames
    )
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
    last = [tokenizer.token_to_id(name) for name in (*VOICE_TOKENS.values(), *RATE_TOKENS)]
    assert last == list(range(1010, 1024))


@given(
    text=st.one_of(st.text(), st.sampled_from(TAGS), st.lists(st.sampled_from(TAGS)).map(" ".join))
)
@settings(deadline=None)
def test_any_text_can_be_encoded_as_itself(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(len(SPECIALS) <= i < 1010 for i in ids)


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
    for text in (*HARVARD, *EVERYDAY):
        assert judged.touches(spoken_text(text)) and judged.touches(spoken_text(text).lower())
    assert judged.touches("I said that the birch canoe slid on the smooth planks today.")
    assert not judged.touches("The dog sat on the warm grass beside the road.")


def plain(text: str) -> str:
    """Slots stay as a word."""
    return text.replace("{", "").replace("}", "")


def test_forced_phonemes_stand_at_the_homograph():
    homographs = Homographs(plain, random.Random(0))
    words = {sense[0].lower() for sense in homographs.senses}
    for _ in range(500):
        text, forced = homographs.sentence()
        items = text.split()
        assert forced and "~" not in text
        assert {items[place].strip('.,?!;:"').lower() for place in forced} <= words
