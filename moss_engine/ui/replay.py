"""Replay files: a reply as its rows, settings and fingerprints, from which the same sound is made
without running the network.

The browser writes them, from what `recipe` told it and the rows that it was shown; `read` takes
one apart, believing nothing.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from moss_engine.api.controls import CONTROLS, MAX_PAGE_SEED
from moss_engine.api.errors import InputError, MossError
from moss_engine.api.request import Message, Recorded, Request, Text
from moss_engine.api.service import SpeechService
from moss_engine.api.tokens import Row
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.entrance.asgi import Refused
from moss_engine.ui.entrance.guard import parse_json
from moss_engine.ui.facts import PageInfo, PoolWatch
from moss_engine.ui.stream import Messages, ReplyClock, View, messages, whole

FORMAT, VERSION = "moss-speech-reply", 1
MAX_FILE_BYTES = 200 * 1024
MAX_ROWS, MAX_TEXTS, MAX_TEXT_CHARS, MAX_PARTS = 30_000, 10_000, 40_000, 256
MAX_SAMPLES = 1 << 31
SHOWN_DIGITS = 12  # of a fingerprint
DAMAGED = "This is no replay file, or a damaged one; choose one that this page has saved."


@dataclass(frozen=True)
class Recording:
    """What a replay file asks for; `recipe` is that of the reply that it was made of."""

    recorded: tuple[Recorded, ...]
    voice: str
    seed: int
    recipe: dict[str, Any]


def recipe(values: Mapping[str, Any], facts: PageInfo, seed: int) -> dict[str, Any] | None:
    """What a replay file says of a reply besides its rows; None where none can be replayed."""
    if facts.made_by is None:
        return None
    numbers = {
        control.name: values[control.name]
        for control in CONTROLS
        if control.kind == "number" and control.name != "seed"
    }
    names = {name: values[name] for name in ("mode", "voice")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": asdict(facts.made_by),
        "settings": {**names, **numbers, "seed": seed},
        "rate": facts.sample_rate_hz,
    }


def read(file: Any, facts: PageInfo) -> Recording:
    """A replay file's text, taken apart. Raises an InputError that says what is wrong with it, and
    names both fingerprints where another checkpoint or codec made it."""
    if facts.made_by is None:
        raise InputError("This service cannot speak recorded replies; ask for new ones.")
    if not isinstance(file, str) or len(file.encode("utf-8", "replace")) > MAX_FILE_BYTES:
        raise InputError(
            f"The file is larger than {MAX_FILE_BYTES // 1024} kB, which no replay file is; choose "
            "another one."
        )
    try:
        found = parse_json(file.encode("utf-8", "surrogatepass"))
    except Refused:
        raise InputError(DAMAGED) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(DAMAGED)
    if found.get("version") != VERSION:
        raise InputError(
            "The replay file is of another version of this program; save the reply again."
        )
    _check_made_by(found.get("made_by"), facts)
    settings = found.get("settings")
    if not isinstance(settings, dict):
        raise InputError(DAMAGED)
    if settings.get("voice") not in facts.voices:
        raise InputError(
            "The voice of the replay file is not installed here; choose another replay file."
        )
    rows = _rows(found.get("ids"), facts)
    pauses = _pauses(found.get("pauses"), len(rows), facts)
    recorded = _parts(rows, _texts(found.get("text")), pauses, found.get("parts"))
    seed = settings.get("seed")
    if type(seed) is not int or not 0 <= seed <= MAX_PAGE_SEED:
        raise InputError(DAMAGED)
    again = {key: found.get(key) for key in ("format", "version", "made_by", "settings", "rate")}
    return Recording(recorded, settings["voice"], seed, again)


def _check_made_by(made_by: Any, facts: PageInfo) -> None:
    assert facts.made_by is not None, "it was looked for before"
    ours = asdict(facts.made_by)
    fine = isinstance(made_by, dict) and all(isinstance(made_by.get(name), str) for name in ours)
    if not fine:
        raise InputError(DAMAGED)
    for name, remedy in (("checkpoint", "--checkpoint"), ("codec", "--codec")):
        if made_by[name] != ours[name]:
            raise InputError(
                f"The replay file was made by {name} {made_by[name][:SHOWN_DIGITS]}, and here runs "
                f"{ours[name][:SHOWN_DIGITS]}; start the program with that one by {remedy}."
            )


def _rows(ids: Any, facts: PageInfo) -> tuple[Row, ...]:
    """Text ids from 0 on, and audio ids as ~id, as rows."""
    special = facts.ids
    highest = max(special.audio_pad, special.eosp)
    fine = isinstance(ids, list) and 0 < len(ids) <= MAX_ROWS
    if not fine or not all(type(i) is int and ~highest <= i < len(facts.pieces) for i in ids):
        raise InputError(DAMAGED)
    return tuple(Row(special.modality_pad, ~i) if i < 0 else Row(i, special.audio_pad) for i in ids)


def _texts(texts: Any) -> list[tuple[int, str]]:
    fine = isinstance(texts, list) and len(texts) <= MAX_TEXTS
    if not fine or not all(_is_text(text) for text in texts):
        raise InputError(DAMAGED)
    starts = [start for start, _ in texts]
    if starts != sorted(starts) or sum(len(text) for _, text in texts) > MAX_TEXT_CHARS:
        raise InputError(DAMAGED)
    return [(start, text) for start, text in texts]


def _is_text(text: Any) -> bool:
    pair = isinstance(text, list) and len(text) == 2
    return pair and _is_sample(text[0]) and isinstance(text[1], str)


def _is_sample(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_SAMPLES


def _pauses(pauses: Any, num_rows: int, facts: PageInfo) -> list[tuple[int, tuple[int, ...]]]:
    """The number of a row, and codes that are heard after it."""
    if not isinstance(pauses, list) or not all(_is_pause(pause, facts) for pause in pauses):
        raise InputError(DAMAGED)
    places = [row for row, _ in pauses]
    if sorted(set(places)) != places or any(not 0 <= row < num_rows for row in places):
        raise InputError(DAMAGED)
    if sum(len(codes) for _, codes in pauses) > MAX_ROWS:
        raise InputError(DAMAGED)
    return [(row, tuple(codes)) for row, codes in pauses]


def _is_pause(pause: Any, facts: PageInfo) -> bool:
    pair = isinstance(pause, list) and len(pause) == 2 and isinstance(pause[1], list)
    return (
        pair
        and type(pause[0]) is int
        and all(type(code) is int and 0 <= code < facts.ids.num_codes for code in pause[1])
    )


def _parts(
    rows: Sequence[Row],
    texts: Sequence[tuple[int, str]],
    pauses: Sequence[tuple[int, tuple[int, ...]]],
    parts: Any,
) -> tuple[Recorded, ...]:
    """The stretches of a reply; `parts` are the row and the sample at which each begins."""
    fine = isinstance(parts, list) and 0 < len(parts) <= MAX_PARTS
    pairs = fine and all(
        isinstance(part, list) and len(part) == 2 and all(_is_sample(i) for i in part)
        for part in parts
    )
    if not pairs or parts != sorted(parts) or parts[0] != [0, 0] or parts[-1][0] >= len(rows):
        raise InputError(DAMAGED)
    ends = [*parts[1:], [len(rows), math.inf]]
    return tuple(
        Recorded(
            tuple(rows[row:end_row]),
            tuple((at - sample, text) for at, text in texts if sample <= at < end_sample),
            tuple((at - row, codes) for at, codes in pauses if row <= at < end_row),
        )
        for (row, sample), (end_row, end_sample) in zip(parts, ends, strict=True)
    )


class Replays:
    """What becomes of replay files that visitors open."""

    def __init__(self, service: SpeechService, facts: PageInfo, pool: PoolWatch):
        self._service = service
        self._facts = facts
        self._pool = pool

    def check(self, file: str) -> str:
        """Why a replay file would be refused, as one sentence, or "": asked first, as a refusal
        must not silence what is heard."""
        try:
            read(file, self._facts)
        except MossError as error:
            return str(error)
        return ""

    async def replay(
        self, file: str, run: str, conversation: Conversation, tick_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of a reply that a file holds, called `run`. It is no part of the
        conversation."""
        clock = ReplyClock()

        def told(view: View) -> Messages:
            return self._told(file, view, clock, conversation, tick_s)

        async with aclosing(whole(View(run=run, seed=0), clock, told)) as messages:
            async for message in messages:
                yield message

    async def _told(
        self, file: str, view: View, clock: ReplyClock, conversation: Conversation, tick_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        facts, recording = self._facts, read(file, self._facts)
        await self._service.cancel_session(conversation.session_id)
        reply = await self._service.submit(
            Request(
                secrets.token_urlsafe(16),
                conversation.session_id,
                (Message("user", Text("")),),
                facts.default_mode.name,
                facts.sampling,
                recording.voice,
                recorded=recording.recorded,
                visitor=conversation.visitor,
            )
        )
        told = messages(reply, view, clock, self._pool.counts, tick_s)
        async with aclosing(told) as stream:
            async for message, _ in stream:
                yield message | {
                    "seed": recording.seed,
                    "recipe": recording.recipe,
                    "pieces": facts.pieces_of(message["ids"]),
                }
