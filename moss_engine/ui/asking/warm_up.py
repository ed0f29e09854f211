"""The first requests of all, before anybody visits."""

from __future__ import annotations

import numpy as np

from moss_engine.api.errors import EngineFaultError
from moss_engine.api.events import Failed
from moss_engine.api.metrics import Timeline, fold, measure
from moss_engine.api.request import Speech, Text
from moss_engine.api.service import SpeechService, stream
from moss_engine.ui import form
from moss_engine.ui.asking.forecast import Seen
from moss_engine.ui.facts import PageInfo

WARM_UP_ROWS = 64
WARM_UP_HZ = 16_000  # one second of silence for the encoder


async def warm_up(service: SpeechService, facts: PageInfo) -> Seen | None:
    """Send a warm-up request: the first use of every part is slow, and a part that does not work
    should be known now. Answers with how a second one went, from which the first visitor's forecast
    is made."""
    values = {**form.defaults(facts), "max_rows": min(WARM_UP_ROWS, facts.sampling.max_rows)}
    said: Text | Speech = Text("Hello.")
    if facts.recogniser is not None:
        await service.glimpse(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
    if facts.encodes:
        codes = await service.encode(np.zeros(WARM_UP_HZ, np.float32), WARM_UP_HZ)
        said = Speech(codes) if facts.default_mode.input == "speech" else said
    for _ in range(2):
        timeline = Timeline()
        request = form.request_of(values, facts, 0, (), said, "warm-up")
        async for event in stream(service, request):
            timeline = fold(timeline, event)
            if isinstance(event, Failed):
                raise EngineFaultError(event.message)
    text = said.text if isinstance(said, Text) else ""
    return Seen.of(measure(timeline), 0, text, facts.default_mode.split_sentences)
