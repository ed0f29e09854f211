"""Voices and speaking rates: fields of the checkpoint, tokens of the prompt, sentences for what
there is not."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from moss_engine.api.errors import CheckpointError, ParameterError
from moss_engine.api.events import Finished
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import stream
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.models.config import ModelConfig
from moss_engine.models.manifest import write_manifest
from moss_engine.text.processor import Processor, load_processor
from moss_engine.text.tokenizer import TextTokenizer
from tests.fixtures.make_tiny_checkpoint import CHAT, READ

VOICES = [
    {"name": "ben", "label": "Ben", "token": "<voice:ben>", "default": False},
    {"name": "ada", "label": "Ada", "token": "<voice:ada>", "default": True},
]
RATES = [{"speed": 1.2**k, "token": f"<rate:{k}>"} for k in range(-2, 3)]
TOKENS = [voice["token"] for voice in VOICES] + [rate["token"] for rate in RATES]


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint, in two voices and five speaking rates."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, folder)
    change(folder, voices=VOICES, rates=RATES)
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    pieces = [
        piece for piece, _ in sorted(values["model"]["vocab"].items(), key=lambda item: item[1])
    ]
    replaced = dict(zip(pieces[-len(TOKENS) :], TOKENS, strict=True))  # BPE pieces give their ids
    vocab = values["model"]["vocab"]
    values["model"]["merges"] = [
        merge for merge in values["model"]["merges"] if "".join(merge) not in replaced
    ]
    for piece, token in replaced.items():
        values["added_tokens"].append(
            {**values["added_tokens"][0], "id": vocab.pop(piece), "content": token}
        )
    path.write_text(json.dumps(values), encoding="utf-8")
    write_manifest(folder, {"name": "tiny with voices"})
    return folder


def change(folder: Path, **fields: object) -> None:
    path = folder / "processor_config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, **fields}), encoding="utf-8")


def load(folder: Path) -> Processor:
    return load_processor(folder, ModelConfig.from_file(folder / "config.json"), 4000)


def ask(processor: Processor, mode: str = "read", **changes: object) -> Request:
    messages = (Message("user", Text("Hello you. And a world.")),)
    return replace(Request("r", "s", messages, mode, processor.default_sampling), **changes)


def special_rows(folder: Path, prompt: tuple) -> list[str]:
    names = {
        i: name
        for name, i in TextTokenizer.from_file(folder / "tokenizer.json").special_ids.items()
    }
    return [names[row.text] for row in prompt if row.text in names]


@pytest.mark.parametrize("mode", ["read", "chat"])
def test_voice_and_rate_stand_in_the_system_turn_of_every_segment(folder: Path, mode: str) -> None:
    processor = load(folder)
    plain = ["<|im_start|>", f"<{mode}>", "<voice:ben>", "<rate:-2>", "<|im_end|>"]
    segments = processor.prepare(ask(processor, mode, voice="ben", speed=0.7))
    assert len(segments) == (2 if mode == "read" else 1)
    for segment in segments:
        assert special_rows(folder, segment.prompt)[:5] == plain
        assert [row.text for row in segment.prompt].count({"read": READ, "chat": CHAT}[mode]) == 1


def test_the_nearest_rate_is_taken_and_the_default_voice(folder: Path) -> None:
    processor = load(folder)
    for speed, token in {0.7: -2, 0.76: -2, 0.77: -1, 1.0: 0, 1.1: 1, 1.5: 2}.items():
        prompt = processor.prepare(ask(processor, speed=speed))[0].prompt
        assert special_rows(folder, prompt)[2:4] == ["<voice:ada>", f"<rate:{token}>"]


def test_slow_speech_may_have_more_rows(folder: Path) -> None:
    change(folder, min_cap_rows=1)
    processor = load(folder)
    rows = {
        speed: processor.prepare(ask(processor, speed=speed))[0].max_rows
        for speed in (0.75, 1.0, 1.5)
    }
    assert rows == {0.75: math.ceil(10 * 8.0 / 0.75), 1.0: 80, 1.5: 80}


def test_a_speed_out_of_range_and_an_unknown_voice_are_sentences(folder: Path) -> None:
    processor = load(folder)
    for speed in (0.69, 1.51, -1.0, math.nan, math.inf, "1", True, None):
        with pytest.raises(ParameterError, match=r"speed is .*0\.7 to 1\.5\."):
            processor.prepare(ask(processor, speed=speed))
    with pytest.raises(ParameterError, match="'eve' is unknown; choose one of ada, ben"):
        processor.prepare(ask(processor, voice="eve"))


def test_without_the_fields_there_is_nothing_to_choose(tiny_checkpoint: Path) -> None:
    processor = load(tiny_checkpoint)
    assert processor.speakers.names == () and processor.speakers.speeds is None
    prompt = processor.prepare(ask(processor))[0].prompt
    assert special_rows(tiny_checkpoint, prompt)[:3] == ["<|im_start|>", "<read>", "<|im_end|>"]
    with pytest.raises(ParameterError, match=r"speaks at one speed; leave it at 1\."):
        processor.prepare(ask(processor, speed=1.2))


@pytest.mark.parametrize(
    "fields",
    [
        {"voices": [*VOICES, {**VOICES[0], "name": "eve", "token": "<voice:eve>"}]},
        {"voices": [VOICES[1], VOICES[1]]},
        {"voices": [VOICES[0]]},
        {"voices": [{"name": "ada"}]},
        {"rates": [{"speed": 0, "token": "<rate:0>"}]},
        {"rates": [{"speed": 1.0, "token": "<rate:9>"}]},
    ],
)
def test_fields_that_do_not_fit_are_refused(folder: Path, fields: dict) -> None:
    change(folder, **fields)
    with pytest.raises(CheckpointError):
        load(folder)


async def test_the_service_offers_the_networks_voices_and_speeds(folder: Path) -> None:
    service = build_service(EngineConfig(checkpoint=folder))
    service.start()
    try:
        info = await service.describe()
        assert info.voices == ("ada", "ben") and info.speeds == (0.7, 1.5)
        request = Request(
            "r", "s", (Message("user", Text("Hello.")),), "read", info.sampling, "ben", speed=1.3
        )
        events = [event async for event in stream(service, request)]
        assert isinstance(events[-1], Finished)
        with pytest.raises(ParameterError, match="'nano' is unknown; choose one of ada, ben"):
            await service.submit(replace(request, request_id="q", voice="nano"))
    finally:
        service.close()
