"""When words begin: what an answer says of its own, against a recogniser that hears it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from moss_engine.api.events import AudioChunk, TextDelta
from moss_engine.api.request import Text
from moss_engine.api.service import request_of, stream
from moss_engine.api.transcript import Word
from moss_engine.audio.playback import Answered, char_places

LEAST_S = 0.036
"""A word to which the recogniser gives one of its steps of 24 ms alone was not found by it."""


async def word_errors(service: Any, texts: Sequence[str]) -> dict[str, list[float]]:
    """Milliseconds between where each word begins and where the recogniser of `service` hears it
    begin, over all voices in turn: `whole`, as the answer tells when it is complete, and `early`,
    as its places tell before there is sound; `unsure` are those that it did not find."""
    info = await service.describe()
    found: dict[str, list[float]] = {"whole": [], "early": [], "unsure": []}
    for number, text in enumerate(texts):
        said, sound = list[tuple[int, str]](), []
        voice = info.voices[number % len(info.voices)]
        request = request_of(info, Text(text), "words", seed=number, voice=voice)
        async for event in stream(service, request):
            if isinstance(event, TextDelta):
                said.append((event.start_sample, event.text))
            elif isinstance(event, AudioChunk):
                sound.append(event.samples)
        wave = np.concatenate(sound)
        heard = (await service.transcribe(wave, info.sample_rate_hz, True)).words
        whole = Answered(words=said, num_samples=len(wave)).timed(info.sample_rate_hz)
        early_s = _early_s(said, info.sample_rate_hz)
        for ours, theirs in _pairs(whole, heard):
            word = heard[theirs]
            kinds = {"whole": whole[ours].start_s, "early": early_s[ours]}
            if word.end_s - word.start_s < LEAST_S:
                kinds = {"unsure": whole[ours].start_s}
            for kind, start_s in kinds.items():
                found[kind].append(1000 * abs(start_s - word.start_s))
    return found


def _pairs(one: Sequence[Word], other: Sequence[Word]) -> list[tuple[int, int]]:
    """The words that both have, in order, by their numbers."""
    bare = [[re.sub(r"[^a-z']", "", word.text.lower()) for word in words] for words in (one, other)]
    blocks = difflib.SequenceMatcher(None, *bare, autojunk=False).get_matching_blocks()
    return [(a + at, b + at) for a, b, size in blocks for at in range(size)]


def _early_s(said: list[tuple[int, str]], rate_hz: int) -> list[float]:
    """Where each word begins, by the words of its place alone."""
    text, places = "".join(text for _, text in said), list[float]()
    for start in sorted({start for start, _ in said}):
        places += char_places([word for word in said if word[0] == start], rate_hz)[:-1]
    return [places[m.start()] / rate_hz for m in re.finditer(r"\S+", text)]
