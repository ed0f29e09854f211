"""POST /v1/audio/transcriptions, as OpenAI's own client for Python uses it."""

from __future__ import annotations

import io
from dataclasses import replace

import httpx
import openai
import pytest
from openai.types.audio import TranscriptionTextDoneEvent

from moss_engine.api.captions import captions, vtt
from moss_engine.api.transcript import Word
from moss_engine.audio.pcm import to_pcm16, write_wav
from tests.endpoints.endpoint_support import MODEL, running
from tests.ui.page_support import INFO, FakeService, no_room, signal


@pytest.fixture(scope="module")
def url():
    with running(FakeService(info=replace(INFO, recogniser="scripted"))) as url:
        yield url


@pytest.fixture(scope="module")
def recording() -> bytes:
    file = io.BytesIO()
    write_wav(file, to_pcm16(signal(1.0)), 24_000)
    return file.getvalue()


def test_a_recording_becomes_its_words(client, recording):
    answer = client.audio.transcriptions.create(model=MODEL, file=("a.wav", recording))
    assert answer.text == "What time is it?" and answer.usage.seconds == 1.0
    text = client.audio.transcriptions.create(
        model=MODEL, file=("a.wav", recording), response_format="text"
    )
    assert text.strip() == "What time is it?"


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({"model": "whisper"}, True, "model"),
        ({}, True, "model"),
        ({"model": MODEL}, False, "file"),
        ({"model": MODEL, "response_format": "diarized_json"}, True, "response_format"),
        ({"model": MODEL, "stream": "true", "response_format": "srt"}, True, "response_format"),
        ({"model": MODEL, "stream": "maybe"}, True, "stream"),
        ({"model": MODEL, "timestamp_granularities[]": "line"}, True, "timestamp_granularities[0]"),
        ({"model": MODEL, "language": "de"}, True, "language"),
        ({"model": MODEL, "language": "enough"}, True, "language"),
    ],
)
def test_what_is_wrong_is_named(url, recording, fields, files, param):
    sent = {"file": ("a.wav", recording)} if files else {"other": ("a.wav", b"x")}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", data=fields, files=sent)
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param


def test_words_and_segments_have_their_times(client, url, recording):
    answer = client.audio.transcriptions.create(
        model="whisper-1",
        file=("a.wav", recording),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert (answer.text, answer.language, answer.duration) == ("What time is it?", "english", 1.0)
    assert [(w.word, w.start, w.end) for w in answer.words] == [
        ("What", 0.0, 0.25), ("time", 0.25, 0.5), ("is", 0.5, 0.75), ("it", 0.75, 1.0),
    ]  # fmt: skip
    assert [(s.id, s.start, s.end, s.text) for s in answer.segments] == [
        (0, 0.0, 1.0, " What time is it?")
    ]
    for name in ("timestamp_granularities", "timestamp_granularities[]"):
        sent = {"model": MODEL, "response_format": "verbose_json", name: ["word", "segment"]}
        told = httpx.post(
            f"{url}/v1/audio/transcriptions", data=sent, files={"file": ("a.wav", recording)}
        )
        assert {"words", "segments"} <= told.json().keys()
    plain = client.audio.transcriptions.create(
        model=MODEL, file=("a.wav", recording), response_format="verbose_json"
    )
    assert plain.words is None and len(plain.segments) == 1


def test_english_is_its_own_translation(client, recording):
    answer = client.audio.translations.create(
        model="whisper-1", file=("a.wav", recording), response_format="verbose_json"
    )
    assert (answer.text, answer.task) == ("What time is it?", "translate")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("srt", "1\n00:00:00,000 --> 00:00:01,000\nWhat time is it?\n\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nWhat time is it?\n\n"),
    ],
)
def test_captions_are_a_file(client, recording, name, file):
    answer = client.audio.transcriptions.create(
        model=MODEL, file=("a.wav", recording), response_format=name
    )
    assert answer == file


def test_a_caption_is_a_sentence_or_part_of_a_long_one():
    said = "Hi there. " + "word " * 30 + "end. Late"
    words = [Word(text, 3600 + n / 2, 3600 + n / 2 + 0.4) for n, text in enumerate(said.split())]
    words[-1] = Word("Late & <last>", 3700.0, 3700.9996)
    found = captions(words)
    assert found[0].text == "Hi there." and found[-1].text == "Late & <last>" and len(found) == 5
    assert " ".join(caption.text for caption in found) == " ".join(word.text for word in words)
    assert all(c.end_s - c.start_s <= 7 and len(c.text) <= 84 for c in found)
    assert vtt(found).endswith("01:01:40.000 --> 01:01:41.000\nLate &amp; &lt;last&gt;\n\n")


def test_words_are_streamed(client, recording):
    events = list(
        client.audio.transcriptions.create(
            model="gpt-4o-mini-transcribe", file=("a.wav", recording), stream=True
        )
    )
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == "What time is it?"
    TranscriptionTextDoneEvent.model_validate(events[-1].model_dump())


def test_what_has_no_effect_is_taken_and_named(url, recording):
    fields = {
        "model": MODEL, "language": "en-US", "prompt": "Names.", "temperature": "0.2",
        "include[]": "logprobs", "timestamp_granularities[]": "word",
    }  # fmt: skip
    files = {"file": ("a.wav", recording)}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", data=fields, files=files)
    assert answer.status_code == 200
    names = answer.headers["x-moss-ignored"].split(", ")
    assert names == ["prompt", "temperature", "include", "timestamp_granularities"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data; boundary=x"),
        (b"junk", "multipart/form-data"),
        (b"{}", "application/json"),
    ],
)
def test_forms_that_are_none_are_refused(url, content, kind):
    answer = httpx.post(
        f"{url}/v1/audio/transcriptions", content=content, headers={"content-type": kind}
    )
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_a_file_that_is_no_sound_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="no audio file that can be read"):
        client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"not a sound"))


def test_a_long_recording_needs_no_room_on_a_disk(client):
    file = io.BytesIO()
    write_wav(file, to_pcm16(signal(30.0)), 48_000)
    with no_room():
        answer = client.audio.transcriptions.create(model=MODEL, file=("a.wav", file.getvalue()))
    assert answer.text == "What time is it?"
