"""A reply on its way from its handler to the browser: its first message, all others, and the
sentence that it may end with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import gradio as gr

from moss_engine.api.errors import MossError
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.sound_way import SoundWay
from moss_engine.ui.stream import ReplyClock
from moss_engine.ui.view import View, fail, take

Told = AsyncGenerator[dict[str, Any], None]


async def relay(
    view: View,
    clock: ReplyClock,
    way: SoundWay,
    conversation: Conversation,
    stream: Callable[[View], Told],
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Yields before anything is begun: Gradio cannot close a generator that never has. A MossError
    of the `stream` is its last message, and what Gradio is told."""
    message, view = take(view, None)
    yield way.wire(message), conversation
    try:
        async with aclosing(stream(view)) as told:
            async for message in told:
                yield way.wire(message), gr.skip()
    except MossError as error:
        message, _ = take(replace(fail(view, str(error)), seq=1), clock.elapsed_s())
        yield way.wire(message), gr.skip()
        raise gr.Error(str(error), print_exception=False) from None
    finally:
        way.close()
