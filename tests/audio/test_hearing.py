"""How the sound of one microphone is taken."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from moss_engine.audio.hearing import AT_ONCE_S, Hearing
from moss_engine.audio.turn_taking import RATE_HZ, Change


class Certain:
    """Hears speech in every frame, and who opens it is heard by it, too."""

    def open(self) -> Certain:
        return self

    def probability(self, pcm: np.ndarray) -> float:
        return 1.0


def listening() -> Hearing:
    async def hear(*given: object) -> None:
        raise AssertionError("nobody pauses")

    hearing = Hearing(hear, None, lambda said: None, by_words=False, max_s=30.0)  # type: ignore[arg-type]
    hearing.use(Certain())  # type: ignore[arg-type]
    return hearing


def test_a_small_block_waits_for_no_other_thread():
    """Those of many talkers would wait for each other on the way there and back."""
    hearing, block = listening(), np.full(round(AT_ONCE_S * RATE_HZ), 1000, np.int16)
    with pytest.raises(StopIteration) as first:
        hearing.take(block, answering=False).send(None)
    with pytest.raises(StopIteration) as second:
        hearing.take(block, answering=False).send(None)
    found = first.value.value + second.value.value
    assert [heard.change for heard, _ in found] == [Change.BEGAN]


@pytest.mark.parametrize("played", [None, np.zeros(RATE_HZ, np.int16)])
def test_what_takes_longer_leaves_the_event_loop_to_others(played: np.ndarray | None):
    hearing, second = listening(), np.full(RATE_HZ, 1000, np.int16)

    async def take() -> tuple[list[Change], bool]:
        others = asyncio.Event()
        asyncio.get_running_loop().call_soon(others.set)
        found = await hearing.take(second, answering=False, played=played)
        return [heard.change for heard, _ in found], others.is_set()

    assert asyncio.run(take()) == ([Change.BEGAN], True)
