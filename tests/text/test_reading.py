"""A mode that reads says its text and nothing else: with random weights, too."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.api.events import Finished, FinishReason, TextDelta
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.tokens import Row, is_audio_row
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.models.manifest import write_manifest
from moss_engine.text.processor import Processor
from moss_engine.text.spoken.text import as_sentence, split_sentences, spoken_text

TEXTS = (
    "Hello.",
    "Hello world and you, a and the I. Is it so? No!",
    "what's your name",
    "GDB says: 2 Linux system calls, 3.5 GHz, policy.max_len.",
    "a " * 30,
    "Supercalifragilistic words, and hyphen-words, aren't they?",
)


@pytest.fixture(scope="module")
def parts(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory):
    """Engine and processor of random weights that may speak long."""
    folder = tmp_path_factory.mktemp("reading") / "checkpoint"
    shutil.copytree(tiny_checkpoint, folder)
    path = folder / "processor_config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, "min_cap_rows": 900}), encoding="utf-8")
    write_manifest(folder, {"name": "tiny that may speak long"})
    engine = build_service(EngineConfig(checkpoint=folder)).engine
    yield engine, engine.processor
    engine.close()


def written_ids(processor: Processor, rows: tuple[Row, ...]) -> list[int]:
    """Text ids of a reply's text channel, without those that steer it."""
    ids = processor.ids
    return [
        r.text for r in rows if not is_audio_row(r, ids) and r.text not in (ids.sosp, ids.im_end)
    ]


def asked(processor: Processor, text: str, mode: str = "read") -> Request:
    return Request("r", "s", (Message("user", Text(text)),), mode, processor.default_sampling)


def read(parts, text: str, seed: int) -> tuple[str, Finished]:
    engine, processor = parts
    sampling = replace(processor.default_sampling, seed=seed, max_rows=1000)
    engine.submit(replace(asked(processor, text), sampling=sampling))
    caption = ""
    while True:
        for event in engine.step().events:
            if isinstance(event, TextDelta):
                caption += event.text
            elif isinstance(event, Finished):
                return caption, event


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_random_weights_read_every_word_once_and_in_order(parts, text: str) -> None:
    _, processor = parts
    for seed in range(2):
        caption, finished = read(parts, text, seed)
        written = "".join(processor.pieces()[i] for i in written_ids(processor, finished.rows))
        expected = [as_sentence(part) for part in split_sentences(spoken_text(text), 119)]
        assert caption == " ".join(expected) and written == "".join(expected)
        assert finished.reason is FinishReason.STOP


@pytest.mark.parametrize("rest", ["which nobody had seen", "Paris being far away", "I must say"])
def test_a_sentence_in_several_parts_is_written_as_one(parts, rest: str) -> None:
    text = f"It was a long way round the lake with all its small and quiet islands, {rest}."
    text = f"{text[:-1]}, and they went home the same way when it was dark. So did we."
    _, processor = parts
    assert len(processor.prepare(asked(processor, text))) == 3
    assert read(parts, text, 0)[0] == text


def test_whole_words_are_bound(parts) -> None:
    _, processor = parts
    (segment,) = processor.prepare(asked(processor, "Understand everything."))
    words = segment.bound_words or ()
    said = ["".join(map(processor.pieces().__getitem__, word)) for word in words]
    assert said == ["Understand", " everything."] and max(map(len, words)) > 1


def test_an_answer_is_free(parts) -> None:
    _, processor = parts
    request = asked(processor, "Hi.", "chat")
    assert [segment.bound_words for segment in processor.prepare(request)] == [None]
