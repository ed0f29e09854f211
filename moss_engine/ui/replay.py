"""Replay files: a reply as its rows, settings and fingerprints, from which the same sound is made
without running the network. The browser writes one, from what `recipe` told it and the rows that it
was shown; `read_replay` takes it apart, believing nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moss_engine.api.controls import CONTROLS, MAX_PAGE_SEED
from moss_engine.api.errors import InputError
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Recorded
from moss_engine.api.tokens import Row
from moss_engine.ui.entrance.asgi import Refused
from moss_engine.ui.entrance.guard import parse_json

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


def recipe(values: Mapping[str, Any], facts: ServiceInfo, seed: int) -> dict[str, Any] | None:
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


def read_replay(file: Any, facts: ServiceInfo) -> Recording:
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
    _require(isinstance(found, dict) and found.get("format") == FORMAT)
    if found.get("version") != VERSION:
        raise InputError(
            "The replay file is of another version of this program; save the reply again."
        )
    _check_made_by(found.get("made_by"), facts)
    settings: Any = found.get("settings")
    _require(isinstance(settings, dict))
    if settings.get("voice") not in facts.voices:
        raise InputError(
            "The voice of the replay file is not installed here; choose another replay file."
        )
    rows = _rows(found.get("ids"), facts)
    pauses = _pauses(found.get("pauses"), len(rows), facts)
    recorded = _parts(rows, _texts(found.get("text")), pauses, found.get("parts"))
    seed = settings.get("seed")
    _require(type(seed) is int and 0 <= seed <= MAX_PAGE_SEED)
    again = {key: found.get(key) for key in ("format", "version", "made_by", "settings", "rate")}
    return Recording(recorded, settings["voice"], seed, again)


def _require(fine: bool) -> None:
    if not fine:
        raise InputError(DAMAGED)


def _are_pairs(values: Any, at_most: int) -> bool:
    """Whether it is a list of pairs, each of which begins with a row or a sample."""
    fine = isinstance(values, list) and len(values) <= at_most
    return fine and all(
        isinstance(pair, list) and len(pair) == 2 and _is_below(pair[0], MAX_SAMPLES)
        for pair in values
    )


def _is_below(value: Any, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _check_made_by(made_by: Any, facts: ServiceInfo) -> None:
    assert facts.made_by is not None, "it was looked for before"
    ours = asdict(facts.made_by)
    _require(isinstance(made_by, dict) and all(isinstance(made_by.get(n), str) for n in ours))
    for name, remedy in (("checkpoint", "--checkpoint"), ("codec", "--codec")):
        if made_by[name] != ours[name]:
            raise InputError(
                f"The replay file was made by {name} {made_by[name][:SHOWN_DIGITS]}, and here runs "
                f"{ours[name][:SHOWN_DIGITS]}; start the program with that one by {remedy}."
            )


def _rows(ids: Any, facts: ServiceInfo) -> tuple[Row, ...]:
    """Text ids from 0 on, and audio ids as ~id, as rows."""
    special = facts.ids
    highest = max(special.audio_pad, special.eosp)
    _require(isinstance(ids, list) and 0 < len(ids) <= MAX_ROWS)
    _require(all(type(i) is int and ~highest <= i < len(facts.pieces) for i in ids))
    return tuple(Row(special.modality_pad, ~i) if i < 0 else Row(i, special.audio_pad) for i in ids)


def _texts(texts: Any) -> list[tuple[int, str]]:
    _require(_are_pairs(texts, MAX_TEXTS) and all(isinstance(text, str) for _, text in texts))
    starts = [start for start, _ in texts]
    _require(starts == sorted(starts) and sum(len(text) for _, text in texts) <= MAX_TEXT_CHARS)
    return [(start, text) for start, text in texts]


def _pauses(pauses: Any, num_rows: int, facts: ServiceInfo) -> list[tuple[int, tuple[int, ...]]]:
    """The number of a row, and codes that are heard after it."""
    _require(_are_pairs(pauses, num_rows) and all(isinstance(codes, list) for _, codes in pauses))
    places = [row for row, _ in pauses]
    _require(sorted(set(places)) == places and all(row < num_rows for row in places))
    codes = [code for _, codes in pauses for code in codes]
    _require(len(codes) <= MAX_ROWS and all(_is_below(code, facts.ids.num_codes) for code in codes))
    return [(row, tuple(codes)) for row, codes in pauses]


def _parts(
    rows: Sequence[Row],
    texts: Sequence[tuple[int, str]],
    pauses: Sequence[tuple[int, tuple[int, ...]]],
    parts: Any,
) -> tuple[Recorded, ...]:
    """The stretches of a reply; `parts` are the row and the sample at which each begins."""
    _require(_are_pairs(parts, MAX_PARTS) and all(_is_below(at, MAX_SAMPLES) for _, at in parts))
    _require(bool(parts) and parts == sorted(parts) and parts[0] == [0, 0])
    _require(parts[-1][0] < len(rows))
    ends = [*parts[1:], [len(rows), math.inf]]
    return tuple(
        Recorded(
            tuple(rows[row:end_row]),
            tuple((at - sample, text) for at, text in texts if sample <= at < end_sample),
            tuple((at - row, codes) for at, codes in pauses if row <= at < end_row),
        )
        for (row, sample), (end_row, end_sample) in zip(parts, ends, strict=True)
    )
