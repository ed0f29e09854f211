"""Somebody who talks without a browser: asks, hears the answer, and interrupts it by the next
question."""

from __future__ import annotations

import base64
from typing import Any, cast

import numpy as np

from scripts.bench.stress import talkers
from scripts.bench.stress.talkers import Talker
from scripts.bench.stress.visitor import Answer, Visitor
from scripts.progress import Progress

SOUND = {"pcm": base64.b64encode(bytes(2 * 24_000)).decode(), "rate": 24, "end": False}
"""A thousand seconds of an answer: no test is so slow that it hears it out."""


class Listener:
    """A program that hears a question in every loud block that a silent one follows."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stopped: list[str] = []
        self.over_answers: list[bool] = []
        self._talking = False

    async def microphone(self) -> str:
        return "key"

    async def say(
        self, key: str, seq: int, pcm: np.ndarray, *, answering: bool = False
    ) -> dict[str, Any]:
        before, self._talking = self._talking, bool(pcm.any())
        self.over_answers += [answering] * (self._talking and not before)
        said = before and not self._talking
        return {"talking": self._talking, "sure": True, "utterance": f"said {seq}" * said}

    async def ask(self, *, on_message: Any, utterance: str, run: str, **_values: Any) -> Answer:
        self.asked.append(run)
        on_message(SOUND)
        on_message({"pcm": "", "rate": 24, "end": True})
        return Answer(0.0, "done")

    async def stop(self, heard: str = "") -> None:
        self.stopped.append(heard)


async def test_every_question_is_answered_and_interrupts_the_answer_before():
    block = np.full(talkers.BLOCK, 20_000, np.int16)
    visitor, sound = Listener(), np.concatenate([np.tile(block, 2), np.tile(0 * block, 3)])
    talker = Talker(cast("Visitor", visitor), sound)
    await talker.talk(3, Progress(3, "turns"))
    seen = talker.seen
    assert len(visitor.asked) == len(seen.starts) == len(seen.answers) == 3
    assert [heard.split(":")[0] for heard in visitor.stopped] == visitor.asked
    assert visitor.over_answers[:3] == [False, True, True] and len(seen.stops) == 3
    assert all(answer.heard_s < 1000.0 and not answer.gaps for answer in seen.answers)
    assert seen.ends == ["done"] * 3
