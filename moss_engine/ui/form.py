"""What the browser asks, checked, as a request: the values of the page's controls, and replay
files.

Such a file is a reply as its rows, settings and fingerprints, from which the same sound is made
without running the network. The browser writes it, from what `recipe` told it and the rows that it
was shown; `read_replay` takes it apart, believing nothing.
"""

from __future__ import annotations

import math
import re
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from moss_engine.api import service
from moss_engine.api.controls import BY_NAME, CONTROLS, MAX_PAGE_SEED
from moss_engine.api.errors import (
    ForeignTextError,
    InputError,
    ParameterError,
    UnsupportedModeError,
)
from moss_engine.api.modes import Mode
from moss_engine.api.request import (
    ChannelSampling,
    Message,
    Recorded,
    Request,
    Sampling,
    Speech,
    Text,
)
from moss_engine.api.tokens import Row
from moss_engine.text.language import check_language
from moss_engine.ui.entrance.asgi import Refused
from moss_engine.ui.entrance.guard import parse_json
from moss_engine.ui.facts import PageInfo

RUN = re.compile(r"[0-9a-f]{8}")


def defaults(facts: PageInfo) -> dict[str, Any]:
    """The values that the page opens with: the checkpoint's own where it has some."""
    own = {"mode": facts.default_mode.name, "voice": facts.voices[0]}
    values = {}
    for control in CONTROLS:
        value: Any = facts.sampling
        for field in control.path:
            value = getattr(value, field)
        values[control.name] = value if control.path else own.get(control.name, control.default)
    return {**values, "seed": BY_NAME["seed"].default}


KINDS: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "choice": (str,),
    "number": (int, float, type(None)),
    "flag": (bool,),
}


def read(given: Any, facts: PageInfo) -> dict[str, Any]:
    """The values of all controls, of those that a browser or a program sends: the page's own for
    what is left out. Raises ParameterError for one of another kind."""
    if not isinstance(given, dict):
        raise ParameterError("values must be an object with a value for each control.")
    values = {**defaults(facts), **{name: given[name] for name in BY_NAME if name in given}}
    for name, value in values.items():
        kind = BY_NAME[name].kind
        if not isinstance(value, KINDS[kind]) or (kind == "number" and isinstance(value, bool)):
            raise ParameterError(f"{name} must be a {kind}, not {_short(value)}.")
    return values


def check(values: Mapping[str, Any], facts: PageInfo, own_voice: str = "") -> None:
    """Raise a MossError with one sentence where there are no such mode, voice and recording here,
    for a visitor who has that own voice. The rest is the service's to refuse."""
    modes = [mode.name for mode in facts.modes]
    if values["mode"] not in modes:
        raise UnsupportedModeError(
            f"There is no mode {_short(values['mode'])}; choose one of {', '.join(modes)}."
        )
    mode = facts.mode(values["mode"])
    if mode.input == "speech" and not values["utterance"]:
        raise InputError("Nothing was said yet; record a question or choose a file.")
    if values["voice"] not in facts.voices and (not own_voice or values["voice"] != own_voice):
        raise ParameterError(
            f"There is no voice {_short(values['voice'])}; choose one of {', '.join(facts.voices)}."
        )
    if values["system"].strip() and not mode.own_system:
        raise ParameterError(
            f"The mode {mode.name!r} has a fixed system turn; leave the system prompt empty."
        )


def run_name(run: Any) -> str:
    """What a reply is called: as its caller says, or drawn."""
    return run if isinstance(run, str) and RUN.fullmatch(run) else secrets.token_hex(4)


def draw_seed(values: Mapping[str, Any]) -> Any:
    """The seed to use: a new one, or the one given, which the service may refuse yet."""
    return secrets.randbelow(MAX_PAGE_SEED) if values["new_seed"] else _whole(values["seed"])


def sampling_of(values: Mapping[str, Any], facts: PageInfo, seed: Any) -> Sampling:
    fields: dict[str, Any] = {"min_rows": facts.sampling.min_rows}
    channels: dict[str, dict[str, Any]] = {"text": {}, "audio": {}}
    for control in CONTROLS:
        value = values[control.name]
        value = _whole(value) if control.integer else value
        if len(control.path) == 2:
            channels[control.path[0]][control.path[1]] = value
        elif control.path:
            fields[control.path[0]] = value
    text, audio = (ChannelSampling(**channels[name]) for name in ("text", "audio"))
    return Sampling(**{**fields, "seed": seed, "text": text, "audio": audio})


def request_of(
    values: Mapping[str, Any],
    facts: PageInfo,
    seed: int,
    history: Sequence[Message],
    said: Text | Speech,
    session_id: str,
) -> Request:
    """A request with a new secret id: `said` after `history`. `values` have passed `check`.

    Every mode begins with its own system turn, whatever the modes of the turns before were: it is
    what tells the network how to answer. So a change between spoken and written answers computes
    the conversation once more (without encoding anything again), and a change between typing and
    talking computes nothing again.
    """
    own = values["system"]
    asked = service.request_of(
        facts,
        (*history, Message("user", said)),
        session_id,
        mode=values["mode"],
        system=own if own.strip() else None,
        voice=values["voice"],
        speed=values["speed"],
    )
    return replace(asked, sampling=sampling_of(values, facts, seed), truncate_history=True)


def _whole(value: Any) -> Any:
    """3.0 -> 3: browsers do not tell the two apart. Anything else is left for the check."""
    return (
        int(value)
        if isinstance(value, float) and math.isfinite(value) and value.is_integer()
        else value
    )


def _short(value: Any) -> str:
    return repr(str(value)[:40])


def key_of(text: str) -> int:
    """By which a text that was doubted is found again."""
    return hash(text.strip())


def doubt_once(doubted: deque[int], mode: Mode, text: str) -> None:
    """Raise ForeignTextError where `mode` reads English and `text` looks otherwise, unless its key
    is among those that were `doubted`, to which it is added."""
    key = key_of(text)
    if mode.input != "text" or key in doubted:
        return
    try:
        check_language(mode, text, "send it again to hear it anyway")
    except ForeignTextError:
        doubted.append(key)
        raise


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


def read_replay(file: Any, facts: PageInfo) -> Recording:
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


def _check_made_by(made_by: Any, facts: PageInfo) -> None:
    assert facts.made_by is not None, "it was looked for before"
    ours = asdict(facts.made_by)
    _require(isinstance(made_by, dict) and all(isinstance(made_by.get(n), str) for n in ours))
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
    _require(isinstance(ids, list) and 0 < len(ids) <= MAX_ROWS)
    _require(all(type(i) is int and ~highest <= i < len(facts.pieces) for i in ids))
    return tuple(Row(special.modality_pad, ~i) if i < 0 else Row(i, special.audio_pad) for i in ids)


def _texts(texts: Any) -> list[tuple[int, str]]:
    _require(_are_pairs(texts, MAX_TEXTS) and all(isinstance(text, str) for _, text in texts))
    starts = [start for start, _ in texts]
    _require(starts == sorted(starts) and sum(len(text) for _, text in texts) <= MAX_TEXT_CHARS)
    return [(start, text) for start, text in texts]


def _pauses(pauses: Any, num_rows: int, facts: PageInfo) -> list[tuple[int, tuple[int, ...]]]:
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
