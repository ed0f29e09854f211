"""Questions that would be refused, looked at before they are asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import gradio as gr

from moss_engine.api.errors import ForeignTextError, MossError
from moss_engine.api.modes import Mode
from moss_engine.text.language import doubt
from moss_engine.ui import form
from moss_engine.ui.facts import PageInfo
from moss_engine.ui.kept import Visits
from moss_engine.ui.stream import Shared

MAX_REMEMBERED = 256


class Refusals(Shared):
    """Of one page; texts that look foreign to the voice are refused once a session."""

    def __init__(self, facts: PageInfo, visits: Visits):
        self._facts = facts
        self._visits = visits
        self._doubts = Doubts()

    @form.takes_controls
    def validate(self, *arguments: Any, **named: Any) -> list[Any]:
        """Before anything is queued: a refusal is HTTP 422 and a sentence under the text.

        Where there is no text box, the reply itself says it."""
        values, conversation, request = form.bind(arguments, named)
        fine = [gr.validate(True, "") for _ in range(len(values) + 1)]
        try:
            self._check(values, conversation, request)
        except MossError as error:
            asked = next((mode for mode in self._facts.modes if mode.name == values["mode"]), None)
            if asked and asked.input == "speech":
                return fine
            return [gr.validate(False, str(error)), *fine[: len(values)]]
        return fine

    def _check(self, values: Mapping[str, Any], conversation: Any, request: gr.Request) -> None:
        conversation = self._visits.known(request, conversation)
        form.check(values, self._facts, conversation.voice if conversation else "")
        mode = self._facts.mode(values["mode"])
        self._doubts.check(self._visits.names.session(request), mode, values["text"])


class Doubts:
    """The texts that were refused, the newest ones."""

    def __init__(self) -> None:
        self._refused: deque[tuple[str, int]] = deque(maxlen=MAX_REMEMBERED)

    def check(self, session_id: str, mode: Mode, text: str) -> None:
        """Raise ForeignTextError where `mode` reads English and `text` looks otherwise, unless this
        session was told so of this text before."""
        if mode.input != "text" or not mode.spell_out:
            return
        found, key = doubt(text, mode.language), (session_id, hash(text.strip()))
        if found is None or key in self._refused:
            return
        self._refused.append(key)
        raise ForeignTextError(f"{found}; send it again to hear it anyway.")
